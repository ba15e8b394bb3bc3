"""Drawing by chance, the same on every Python and platform.

Only `random.Random.random()` is promised by Python to give the same numbers for ever, so every
draw here is built from it with integer arithmetic; `choice`, `shuffle` and `choices` may change.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")


class Draw:
    """One stream of chance; streams of one seed do not disturb each other."""

    def __init__(self, seed: int, stream: int) -> None:
        self.random = random.Random(seed * 1000 + stream).random

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int(self.random() * limit)

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def weighted(self, items: Sequence[Item], cumulative: Sequence[int]) -> Item:
        """An item with the probability of its step in `cumulative` (see `zipf`)."""
        return items[bisect_right(cumulative, int(self.random() * cumulative[-1]))]

    def shuffled(self, items: Iterable[Item]) -> list[Item]:
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed


def zipf(size: int, shift: int) -> list[int]:
    """Cumulative integer weights 1/(rank + shift): Zipf's law with Mandelbrot's flattened head."""
    return list(accumulate(10_000_000 // (rank + shift) for rank in range(1, size + 1)))
