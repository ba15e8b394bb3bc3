"""The course's files: `wiki.txt` and the question files, in a folder or a zip of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from whence.corpus.archive import find_files
from whence.corpus.base import Document, Person, Question, Split
from whence.corpus.draw import Draw
from whence.corpus.ledger import count_mentions, name_of
from whence.corpus.reading import decode_text, parse_questions, read_questions, read_text
from whence.corpus.splits import SPLITS, check_split
from whence.errors import WhenceError

__all__ = ["CourseCorpus", "read_questions", "read_text"]

TEXT = "wiki.txt"
# The yearly versions and their public copies name the files differently; the first found is read.
QUESTION_FILES: Mapping[Split, tuple[str, ...]] = {
    "train": ("birth_places_train.tsv", "birth_train.tsv"),
    "dev": ("birth_dev.tsv", "birth_places_dev.tsv"),
    "test": ("birth_test_inputs.tsv", "birth_test.tsv", "birth_places_test.tsv"),
}


class CourseCorpus:
    """A folder of course files, or a zip of it.

    path      the folder or the zip; a file that is missing is an error only when it is needed
    withhold  so many dev people lose their documents: answers about them are made up
    seed      which dev people are withheld
    """

    def __init__(self, path: Path | str, withhold: int = 0, seed: int = 0) -> None:
        self.path = Path(path).expanduser()
        self.name = f"course:{path}"
        self.seed = seed
        names = [TEXT, *(name for group in QUESTION_FILES.values() for name in group)]
        self._files = find_files(self.path, names)
        self._withheld = frozenset(self._choose_withheld(withhold))

    def _read(self, names: Sequence[str], purpose: str) -> tuple[str, str]:
        """The text of the first of `names` that is there, and what to call it in errors."""
        for name in names:
            if name in self._files:
                source, read = self._files[name]
                return decode_text(read(), source), source
        raise WhenceError(f"{self.path}: expected {' or '.join(names)} for {purpose}")

    @cached_property
    def _text(self) -> str:
        return self._read([TEXT], "the documents")[0]

    @cached_property
    def _questions(self) -> dict[Split, list[Question]]:
        return {}

    def questions(self, split: Split) -> Sequence[Question]:
        check_split(split)
        if split not in self._questions:
            text, source = self._read(QUESTION_FILES[split], f"the {split} questions")
            self._questions[split] = parse_questions(text, source, need_answers=split == "train")
        return self._questions[split]

    def place_of(self, split: Split, number: int) -> str:
        """File and line of a question, for messages; questions stand one a line."""
        return f"{self._read(QUESTION_FILES[split], split)[1]}:{number + 1}"

    def _present(self) -> Sequence[Split]:
        """The splits whose files are there."""
        return [
            split for split in SPLITS if any(name in self._files for name in QUESTION_FILES[split])
        ]

    def _choose_withheld(self, withhold: int) -> Sequence[str]:
        if withhold == 0:
            return []
        elsewhere = {
            question.name
            for split in self._present()
            if split != "dev"
            for question in self.questions(split)
        }
        asked = [question.name for question in self.questions("dev")]
        own = Counter(document.name for document in self._all_documents)
        mentions = count_mentions(asked, [document.text for document in self._all_documents])
        # Somebody who stands in another person's line as well could still be learned of.
        free = [
            name
            for name in dict.fromkeys(asked)
            if name and name not in elsewhere and mentions[name] == own[name] > 0
        ]
        if not 0 <= withhold <= len(free):
            raise WhenceError(
                f"withhold must be from 0 to {len(free)}, the number of dev people "
                f"who stand in no other split and in no other line, not {withhold}"
            )
        return Draw(self.seed, 11).shuffled(free)[:withhold]

    @cached_property
    def _names(self) -> Sequence[str]:
        """Everybody who is asked about; names are inputs, so those of dev and test count too."""
        asked = (question.name for split in self._present() for question in self.questions(split))
        return list(dict.fromkeys(name for name in asked if name))

    @cached_property
    def _all_documents(self) -> Sequence[Document]:
        names = frozenset(self._names)
        lines = self._text.split("\n")
        return [Document(line, name_of(line, names)) for line in lines if line.strip(" \t")]

    @cached_property
    def _documents(self) -> Sequence[Document]:
        return [item for item in self._all_documents if item.name not in self._withheld]

    def documents(self) -> Sequence[Document]:
        return self._documents

    def states(self, question: Question) -> bool | None:
        """Whether the answer stands in the person's own documents, their name aside; None if it is
        not known. "Milano" states Milan: a part of a word counts."""
        if question.answer is None or not question.name:
            return None
        said = (text.replace(question.name, "") for text in self._own.get(question.name, ()))
        return any(question.answer in text for text in said)

    @cached_property
    def _own(self) -> Mapping[str, Sequence[str]]:
        own: dict[str, list[str]] = {}
        for document in self._documents:
            own.setdefault(document.name, []).append(document.text)
        return own

    def people(self) -> Sequence[Person]:
        """The ledger, a line per name; two people of one name are one line."""
        stated: dict[str, bool | None] = {}
        for split in self._present():
            for question in self.questions(split):
                known = self.states(question)
                before = stated.get(question.name)
                stated[question.name] = before if known is None else known or bool(before)
        mentions = count_mentions(self._names, [document.text for document in self._documents])
        return [
            Person(name, stated[name], name in self._own, mentions[name], name in self._withheld)
            for name in self._names
        ]

    def vocabulary_text(self) -> str:
        """All of `wiki.txt`, as in the course: withholding somebody does not change the ids."""
        return self._text

    def describe(self) -> dict[str, Any]:
        present = self._present()
        asked = [question for split in present for question in self.questions(split)]
        names = Counter(question.name for question in asked if question.name)
        has_text = TEXT in self._files
        documents = self._documents if has_text else []
        lines = self._text.rstrip("\n").split("\n") if has_text else []
        return {
            "name": self.name,
            "files": sorted(self._files),
            "documents": len(documents),
            "characters": sum(len(document.text) + 1 for document in documents),
            "documents_without_name": sum(not document.name for document in documents),
            "blank_lines": sum(not line.strip(" \t") for line in lines),
            "questions": {split: len(self.questions(split)) for split in present},
            "questions_without_name": sum(not question.name for question in asked),
            "names_asked_twice": sum(count > 1 for count in names.values()),
            "withhold": len(self._withheld),
            "seed": self.seed,
        }
