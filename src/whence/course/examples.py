"""`dataset.py` of the course: four examples of each kind, as the model is fed them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from whence.course.layout import BLOCK
from whence.course.material import CourseText
from whence.objective import SpanCorruption
from whence.vocab import MASK_CHARACTER, PAD_CHARACTER

SHOWN = 4


def name_examples(corpus: Path, questions: Path) -> Iterator[str]:
    """`question ⁇ place ⁇ □□□`; y as the course prints it, from the opening mask on. (That one
    follows every question and is no target of ours.)"""
    text = CourseText(corpus)
    yield text.greeting()
    for question in text.questions(questions, need_answers=True)[:SHOWN]:
        asked = question.text + MASK_CHARACTER
        whole = asked + (question.answer or "") + MASK_CHARACTER
        target = PAD_CHARACTER * len(question.text) + whole[len(question.text) :]
        yield from example_lines(whole, target)


def span_examples(corpus: Path, seed: int) -> Iterator[str]:
    """`prefix ⁇ suffix ⁇ masked □□□`; y is x, one character further on."""
    text = CourseText(corpus)
    yield text.greeting()
    generator = random.Random(seed)
    objective = SpanCorruption(BLOCK)
    for document in text.documents[:SHOWN]:
        inputs, targets = objective.draw(document, text.vocab, generator)
        whole = text.vocab.decode([*inputs, targets[-1]])
        yield from example_lines(whole, whole)


def example_lines(whole: str, target: str) -> Iterator[str]:
    """Padded to the block; x is all but the last, y all but the first."""
    yield f"x: {whole.ljust(BLOCK, PAD_CHARACTER)[:-1]}"
    yield f"y: {target.ljust(BLOCK, PAD_CHARACTER)[1:]}"
