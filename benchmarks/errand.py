"""What a row of the contest is told on its command line: task, folder and amount."""

from __future__ import annotations

import sys
from pathlib import Path

from textbook import Vocabulary

task, folder, amount = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
text = (folder / "documents.txt").read_text(encoding="utf-8")
questions = (folder / "questions.txt").read_text(encoding="utf-8").splitlines()
vocabulary = Vocabulary(text + "".join(questions))
documents = [line for line in text.split("\n") if line]
