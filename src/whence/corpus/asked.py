"""What corpora of people with known facts share: whom to ask what, in which words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from whence.corpus.base import Document, Question, Split
from whence.corpus.questions import ask
from whence.corpus.splits import SPLITS, Splits, check_split


class Known(Protocol):
    """Somebody whose facts are known: attribute to value."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Mapping[str, str]: ...


class AskedPeople(ABC):
    """The questions of a corpus that knows who there is, in which split, and what is asked."""

    attributes: Sequence[str]
    paraphrases: int  # in how many forms a training question is asked
    splits: Splits

    @abstractmethod
    def everybody(self) -> Sequence[Known]:
        """All people, the withheld included, in the order of `splits`."""

    @abstractmethod
    def documents(self) -> Sequence[Document]: ...

    def questions(self, split: Split) -> Sequence[Question]:
        """Everybody of the split, about every asked attribute that they have."""
        return self._ask(split, self.paraphrases if split == "train" else 1)

    def place_of(self, split: Split, number: int) -> str:
        return f"{split} question {number + 1}"

    def paraphrased(self, split: Split) -> Sequence[Question]:
        """The questions of a split in all forms, the heard ones and the unheard ones."""
        return self._ask(split, None)

    def _ask(self, split: Split, forms: int | None) -> Sequence[Question]:
        check_split(split)
        return tuple(
            question
            for index, person in enumerate(self.everybody())
            if self.splits.split[index] == split
            for question in ask(person.name, person.facts, self.attributes, forms)
        )

    def vocabulary_text(self) -> str:
        """The documents, the training questions with answers, and what dev and test are asked."""
        lines = [document.text for document in self.documents()]
        lines += [f"{question.text} {question.answer}" for question in self.questions("train")]
        lines += [question.text for split in SPLITS for question in self.paraphrased(split)]
        return "\n".join(lines)
