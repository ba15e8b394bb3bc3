"""A corpus for tuning: a quarter of its training people are asked about instead of its dev people.

Whoever chooses a rate or a size by the dev score has used the dev answers. With a fold the choice
is made on people of the training questions, who leave the training for it; the real dev and test
answers decide nothing. (The ledger alone looks whether they are stated in the text.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from whence.corpus.base import Corpus, Document, Person, Question, Split
from whence.errors import WhenceError

FOLDS = 4


def fold_of(name: str) -> int:
    """A person's fold: by the name alone, so that all questions about somebody stay together."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()[0] % FOLDS


class FoldedCorpus:
    """`questions("dev")` are the training questions of one fold; `train` has the others."""

    def __init__(self, whole: Corpus, fold: int) -> None:
        if not 0 <= fold < FOLDS:
            raise WhenceError(f"corpus.fold must lie in 0..{FOLDS - 1}, not {fold}")
        self.whole, self.fold = whole, fold
        self.name = f"{whole.name}, fold {fold} of train"
        self._asked: dict[Split, list[tuple[int, Question]]] = {"dev": [], "train": []}
        for number, question in enumerate(whole.questions("train")):
            self._asked["dev" if fold_of(question.name) == fold else "train"].append(
                (number, question)
            )
        if not all(self._asked.values()):
            raise WhenceError(f"{whole.name} has too few training questions for folds")

    def documents(self) -> Sequence[Document]:
        return self.whole.documents()

    def questions(self, split: Split) -> Sequence[Question]:
        if split == "test":
            raise WhenceError("a fold is for choosing; test questions are asked without one")
        return [question for _, question in self._asked[split]]

    def people(self) -> Sequence[Person]:
        return self.whole.people()

    def vocabulary_text(self) -> str:
        return self.whole.vocabulary_text()

    def describe(self) -> dict[str, Any]:
        counts = {split: len(asked) for split, asked in self._asked.items()}
        return {**self.whole.describe(), "name": self.name, "questions": counts, "fold": self.fold}

    def states(self, question: Question) -> bool | None:
        return self.whole.states(question)

    def place_of(self, split: Split, number: int) -> str:
        if split == "test":
            return self.whole.place_of(split, number)
        return self.whole.place_of("train", self._asked[split][number][0])
