"""Characters <-> ids: id 0 pads, id 1 masks, the rest are the sorted characters of the text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from whence.errors import WhenceError
from whence.files import read_json, write_text

PAD_CHARACTER = "□"  # U+25A1
MASK_CHARACTER = "⁇"  # U+2047
PAD = 0
MASK = 1


class Vocab:
    """A fixed, ordered set of characters; `encode` refuses what it does not know, by position."""

    def __init__(self, characters: Sequence[str]) -> None:
        if list(characters[:2]) != [PAD_CHARACTER, MASK_CHARACTER]:
            raise WhenceError("a vocabulary starts with the padding □ and the mask ⁇")
        if len(set(characters)) != len(characters) or any(len(c) != 1 for c in characters):
            raise WhenceError("a vocabulary holds single characters, each of them once")
        self.characters = tuple(characters)
        self._ids = {character: number for number, character in enumerate(self.characters)}

    @classmethod
    def from_text(cls, text: str) -> Vocab:
        """The two special characters, then the sorted distinct characters of the text.

        Line ends separate documents and are counted like any other character, as the course does:
        `wiki.txt` has 254 distinct characters with its line end, and so 256 ids.
        """
        distinct = sorted(set(text) - {PAD_CHARACTER, MASK_CHARACTER})
        return cls([PAD_CHARACTER, MASK_CHARACTER, *distinct])

    def __len__(self) -> int:
        return len(self.characters)

    def __contains__(self, character: str) -> bool:
        return character in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocab) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"Vocab({len(self)} characters)"

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            position = next(i for i, character in enumerate(text) if character not in self._ids)
            raise WhenceError(
                f"character {text[position]!r} (U+{ord(text[position]):04X}) at position "
                f"{position + 1} of {_shorten(text)!r} is not in the vocabulary"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        numbers = [int(number) for number in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self):
            raise WhenceError(f"an id outside 0..{len(self) - 1} cannot be decoded")
        return "".join([self.characters[number] for number in numbers])

    def unknown(self, text: str) -> list[str]:
        """The distinct characters of the text that have no id, in order of appearance."""
        return [character for character in dict.fromkeys(text) if character not in self._ids]

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(list(self.characters), ensure_ascii=False))

    @classmethod
    def load(cls, path: Path | str) -> Vocab:
        characters = read_json(Path(path))
        if not isinstance(characters, list) or not all(isinstance(c, str) for c in characters):
            raise WhenceError(f"{path}: expected a JSON list of characters")
        try:
            return cls(characters)
        except WhenceError as error:
            raise WhenceError(f"{path}: {error}") from error


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
