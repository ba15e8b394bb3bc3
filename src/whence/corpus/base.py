"""What every corpus gives: documents, questions and a ledger of the people in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, slots=True)
class Document:
    """One line of pretraining text, `Full Name. sentence .`; name is "" where it is not known."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `answer` is None where the source does not give it."""

    text: str
    answer: str | None
    name: str = ""
    attribute: str = "birth place"


@dataclass(frozen=True, slots=True)
class Person:
    """The ledger's line for a person: what a model can know of them, by construction."""

    name: str
    stated: bool | None  # the answer stands in one of the person's documents (None: not known)
    seen: bool  # at least one document of the person is in the pretraining text
    mentions: int  # in how many documents of the pretraining text the name occurs
    withheld: bool = False  # the documents and training questions were removed on purpose
    origin: str | None = None  # where the name comes from, in the synthetic world


class Corpus(Protocol):
    """Documents to pretrain on and questions to ask; nothing of dev or test answers leaks."""

    name: str

    def documents(self) -> Sequence[Document]: ...

    def questions(self, split: Split) -> Sequence[Question]: ...

    def people(self) -> Sequence[Person]: ...

    def vocabulary_text(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...

    def states(self, question: Question) -> bool | None:
        """Whether the answer stands in the person's documents, whatever is asked; None: unknown.

        A diagnostic: nothing that trains or selects may ask it about dev or test.
        """

    def place_of(self, split: Split, number: int) -> str:
        """Where question `number` of a split stands, for messages: file and line, if there are."""
