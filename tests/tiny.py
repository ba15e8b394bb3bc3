"""The smallest of everything: a few invented people, a recipe of some steps, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from whence.config import Config
from whence.corpus.base import Document, Person, Question, Split
from whence.recipe import from_table, to_toml

FIRST = ("Ada", "Bo", "Cleo", "Dov", "Eli", "Fay")
LAST = ("Aberg", "Brooks", "Castel", "Dunn")
PLACES = ("Rome", "Oslo", "Lima", "New York", "Pau")
NAMES = [f"{first} {last}" for first, last in product(FIRST, LAST)]
BORN = {name: PLACES[number * 7 % 5] for number, name in enumerate(NAMES)}
SPLITS: dict[Split, list[str]] = {"train": NAMES[::2], "dev": NAMES[1::4], "test": NAMES[3::4]}


def sentence(name: str) -> str:
    return f"{name}. {name} was born in {BORN[name]} and went to school there ."


class TinyCorpus:
    """24 people, in memory."""

    name = "tiny"

    def __init__(
        self,
        documents: Sequence[Document] | None = None,
        questions: Mapping[Split, Sequence[Question]] | None = None,
    ) -> None:
        self._documents = [Document(sentence(n), n) for n in NAMES]
        if documents is not None:
            self._documents = list(documents)
        self._questions: Mapping[Split, Sequence[Question]] = questions or {
            split: [Question(f"Where was {name} born?", BORN[name], name) for name in names]
            for split, names in SPLITS.items()
        }

    def documents(self) -> Sequence[Document]:
        return self._documents

    def questions(self, split: Split) -> Sequence[Question]:
        return self._questions[split]

    def people(self) -> Sequence[Person]:
        return [Person(name, True, True, 1) for name in NAMES]

    def vocabulary_text(self) -> str:
        asked = [q.text + (q.answer or "") for split in SPLITS for q in self.questions(split)]
        return "\n".join([*(document.text for document in self._documents), *asked])

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def states(self, question: Question) -> bool | None:
        return True

    def place_of(self, split: Split, number: int) -> str:
        return f"{split} question {number + 1}"


def write_course(folder: Path, answers: Mapping[str, str] = BORN) -> Path:
    """The same people as files of the course; `answers` may lie about dev and test."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {name: f"Where was {name} born?" for name in NAMES}
    asked = "".join(f"{line}\n" for line in ("".join(sorted(set("".join(lines.values())))),))
    text = "".join(f"{sentence(name)}\n" for name in NAMES)
    (folder / "wiki.txt").write_text(text + asked, encoding="utf-8")
    files = {"train": "birth_places_train.tsv", "dev": "birth_dev.tsv", "test": "birth_test.tsv"}
    for split, names in SPLITS.items():
        known = BORN if split == "train" else answers
        rows = (f"{lines[name]}\t{known[name]}\n" for name in names)
        (folder / files[split]).write_text("".join(rows), encoding="utf-8")
    return folder


def recipe(**changes: Any) -> Config:
    """Two stages of a few steps; keyword `model__width=16` changes a field of a section."""
    table: dict[str, Any] = {
        "seed": 3,
        "corpus": {"name": "course:nowhere"},
        "model": {"layers": 2, "heads": 2, "width": 16, "context": 64},
        "train": {"evaluations": 3, "threads": 1},
        "stages": [
            {"name": "pretrain", "steps": 8, "batch": 512, "mixture": {"spans": 1.0}},
            {"name": "finetune", "steps": 6, "batch": 256, "mixture": {"questions": 1.0}},
        ],
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            table[section][name] = value
        else:
            table[section] = value
    return from_table(table)


def write_recipe(path: Path, config: Config) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_toml(config), encoding="utf-8")
    return path


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **extra}


def whence(
    *arguments: str | Path, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it: a process of its own."""
    command = [sys.executable, "-m", "whence.cli", *map(str, arguments)]
    options.setdefault("env", environment())
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def assert_refused(done: subprocess.CompletedProcess[str], *wanted: str) -> None:
    """One clear sentence on stderr, exit code 2, no traceback, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in wanted:
        assert part in done.stderr
