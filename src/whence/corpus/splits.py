"""Who is asked when: train, dev and test are disjoint sets of people, and some are withheld."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from whence.corpus.base import Split
from whence.corpus.draw import Draw
from whence.errors import WhenceError
from whence.naming import nearest

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise WhenceError(
            f"unknown split {split!r}{nearest(split, SPLITS)}; expected train, dev or test"
        )


@dataclass(frozen=True, slots=True)
class Splits:
    """The split of every person, by index, and the indices of the withheld."""

    split: tuple[Split, ...]
    withheld: frozenset[int]


def split_people(
    people: int,
    seed: int,
    *,
    dev_share: float,
    test_share: float,
    withhold: int,
    shown: Collection[int] = (),
) -> Splits:
    """Split `people` at random. The withheld are dev people, but none of `shown`.

    Withholding then changes neither the training questions nor who is asked in dev: two worlds
    that differ in `withhold` alone differ in the missing documents alone.
    """
    for option, share in (("dev_share", dev_share), ("test_share", test_share)):
        if not 0 <= share < 1:
            raise WhenceError(f"{option} must be from 0 to below 1, not {share}")
    dev, test = int(people * dev_share + 0.5), int(people * test_share + 0.5)
    if dev + test >= people:
        raise WhenceError(
            f"dev_share {dev_share} and test_share {test_share} leave nobody to train on"
        )
    order = Draw(seed, 11).shuffled(range(people))
    free = [index for index in order[:dev] if index not in shown]
    if not 0 <= withhold <= len(free):
        raise WhenceError(
            f"withhold must be from 0 to {len(free)}, the number of dev people who can be, "
            f"not {withhold}; a larger dev_share makes room for more"
        )
    split: list[Split] = ["train"] * people
    for index in order[:dev]:
        split[index] = "dev"
    for index in order[dev : dev + test]:
        split[index] = "test"
    return Splits(tuple(split), frozenset(free[:withhold]))
