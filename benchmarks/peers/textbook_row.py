"""The textbook's row; see ../textbook.py for what it runs."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from contest import serve
from errand import Errand
from textbook import (
    Shape,
    TextbookGPT,
    Vocabulary,
    answer,
    batch_of,
    optimizer_of,
    span_example,
    train_step,
)

errand = Errand.read()
task, folder, amount = errand.task, errand.folder, errand.amount
documents, questions = errand.documents, errand.questions
vocabulary = Vocabulary(errand.characters)
torch.manual_seed(0)
model = TextbookGPT(Shape(vocabulary=len(vocabulary)))

if task == "training":
    optimizer = optimizer_of(model, 6e-4)
    model.train()
    generator = random.Random(0)
    place = 0

    def work() -> float:
        """`amount` steps of 128 examples, in the file's order as in the course."""
        global place
        characters = 0
        for _ in range(amount):
            chosen = [documents[(place + i) % len(documents)] for i in range(128)]
            place += 128
            examples = [span_example(document, 128, generator) for document in chosen]
            inputs, targets = batch_of(examples, vocabulary)
            characters += int((targets != 0).sum())
            train_step(model, optimizer, inputs, targets)
        return characters
else:
    if (folder / "weights.params").exists():
        model.load_state_dict(torch.load(folder / "weights.params", weights_only=True))
    else:
        model.head.weight.data[:2] = 0  # ⁇ and □ never win, so every row decodes 32 characters
    expected = (folder / "answers.txt").read_text(encoding="utf-8").splitlines()
    asked = 0

    def work() -> float:
        """The next `amount` questions, one at a time."""
        global asked
        for _ in range(amount):
            said = answer(model, vocabulary, questions[asked % len(questions)], 32)
            # With the same weights, both programs have to say the same.
            assert not expected or said == expected[asked % len(questions)]
            asked += 1
        return amount


serve(work)
