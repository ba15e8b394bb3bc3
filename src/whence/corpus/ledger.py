"""Which document is about whom, and how often a name is mentioned."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

WORD = re.compile(r"\w+")


def name_of(text: str, names: Collection[str]) -> str:
    """The longest of `names` that opens the text as `NAME. `; "" if none does.

    Longest, because `J. R. Smith. ` also opens with `J`; names may hold dots themselves.
    """
    end = len(text)
    while (end := text.rfind(". ", 0, end)) >= 0:
        if text[:end] in names:
            return text[:end]
        end += 1  # keep the dot in reach: in "J.. " two candidates overlap
    return ""


def occurs(name: str, text: str) -> bool:
    """Whether the name stands in the text as whole words: not `Ann Lee` in `Ann Leeds`."""
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        before, after = text[start - 1 : start], text[end : end + 1]
        if not (before.isalnum() or after.isalnum()):
            return True
        start = text.find(name, start + 1)
    return False


def count_mentions(names: Iterable[str], texts: Sequence[str]) -> Mapping[str, int]:
    """In how many texts each name occurs.

    Only the texts that hold a name's rarest word are searched, so that 20,000 names in 20,000
    texts take a second and not an hour.
    """
    unique = list(dict.fromkeys(names))
    interesting = {word for name in unique for word in WORD.findall(name)}
    where: dict[str, list[int]] = {word: [] for word in interesting}
    for index, text in enumerate(texts):
        for word in interesting.intersection(WORD.findall(text)):
            where[word].append(index)
    counts: dict[str, int] = {}
    everywhere = range(len(texts))
    for name in unique:
        candidates: Sequence[int] = min(
            (where[word] for word in WORD.findall(name)), key=len, default=everywhere
        )
        counts[name] = sum(occurs(name, texts[index]) for index in candidates)
    return counts
