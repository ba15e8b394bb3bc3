"""What a row of the contest is told on its command line: task, folder and amount."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Errand:
    task: str  # "training" or "answering"
    folder: Path  # where documents.txt and questions.txt are
    amount: int  # steps or questions between two readings of the clock
    text: str
    questions: list[str]

    @classmethod
    def read(cls) -> Errand:
        folder = Path(sys.argv[2])
        text, questions = (
            (folder / f"{name}.txt").read_text(encoding="utf-8")
            for name in ("documents", "questions")
        )
        return cls(sys.argv[1], folder, int(sys.argv[3]), text, questions.splitlines())

    @property
    def documents(self) -> list[str]:
        return [line for line in self.text.split("\n") if line]

    @property
    def characters(self) -> str:
        """What a vocabulary has to hold."""
        return self.text + "".join(self.questions)
