"""The files that a course command is given, checked before anything long begins."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from whence.corpus.base import Document, Person, Question, Split
from whence.corpus.course import QUESTION_FILES, read_questions, read_text
from whence.course.layout import BLOCK
from whence.errors import WhenceError
from whence.vocab import Vocab


class CourseText:
    """The pretraining text: it gives the documents and, in every command, the vocabulary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = read_text(path)
        if not self.text.strip():
            raise WhenceError(f"{path}: expected one document a line, the file is empty")
        self.vocab = Vocab.from_text(self.text)

    @cached_property
    def documents(self) -> list[Document]:
        """Blank lines, like the one after the last line end, are no documents."""
        return [Document(line) for line in self.text.split("\n") if line.strip(" \t")]

    def greeting(self) -> str:
        """What the course's program says of its data."""
        return f"data has {len(self.text)} characters, {len(self.vocab)} unique."

    def questions(self, path: Path, need_answers: bool = False) -> list[Question]:
        """Questions that this vocabulary can spell; otherwise an error with file and line."""
        found = read_questions(path, need_answers)
        for number, question in enumerate(found, 1):
            length = len(question.text) + len(question.answer or "") + 1
            if need_answers and length > BLOCK - 1:
                raise WhenceError(
                    f"{path}:{number}: the question with its answer is {length} characters long, "
                    f"more than the block of {BLOCK} has room for"
                )
            # Answers are only spelled in training; a foreign character in one is merely not found.
            text = question.text + ((question.answer or "") if need_answers else "")
            for character in self.vocab.unknown(text):
                raise WhenceError(
                    f"{path}:{number}: character {character!r} (U+{ord(character):04X}) "
                    f"is not in the vocabulary, which {self.path} gives"
                )
        return found


class CourseFiles:
    """The files of one training as a corpus: documents, training questions, dev to watch."""

    def __init__(
        self, text: CourseText, train: Sequence[Question] = (), dev: Sequence[Question] = ()
    ) -> None:
        self.name = f"files:{text.path}"
        self.text = text
        self._questions: dict[Split, Sequence[Question]] = {"train": train, "dev": dev, "test": ()}

    def documents(self) -> Sequence[Document]:
        return self.text.documents

    def questions(self, split: Split) -> Sequence[Question]:
        return self._questions[split]

    def people(self) -> Sequence[Person]:
        return ()

    def vocabulary_text(self) -> str:
        return self.text.text

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "documents": len(self.text.documents),
            "characters": len(self.text.text),
            "questions": {split: len(found) for split, found in self._questions.items()},
        }

    def states(self, question: Question) -> None:
        """The course's program keeps no ledger."""

    def place_of(self, split: Split, number: int) -> str:
        return f"{split} question {number + 1}"


def nearby(split: Split, *files: Path | None) -> Path | None:
    """The split's question file in the folder of one of the files, under its usual name."""
    for file in files:
        for name in QUESTION_FILES[split]:
            if file is not None and (found := file.parent / name).is_file() and found != file:
                return found
    return None


def file_digest(path: Path | None) -> str | None:
    """By what a later command knows that it was given the same file."""
    if path is None:
        return None
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise WhenceError(f"cannot read {path}: {error.strerror or error}") from error
