"""Predictions as the course's program makes, writes and counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from whence.answer import LONGEST_ANSWER, answer_questions
from whence.corpus.base import Question
from whence.corpus.course import read_questions
from whence.course.loading import Say, load_model
from whence.course.material import CourseText
from whence.errors import WhenceError
from whence.evaluate import write_predictions
from whence.files import write_text
from whence.model import GPT
from whence.vocab import MASK, Vocab


def evaluate(
    corpus: Path,
    variant: str,
    reading: Path,
    questions: Path,
    outputs: Path,
    bottleneck: int | None,
    say: Say,
) -> list[str]:
    """Answer a file of questions into a prediction file; returns what the program prints."""
    text = CourseText(corpus)
    asked = text.questions(questions)
    model = load_model(reading, variant, bottleneck, text, questions, say)
    answers = predict(model, text.vocab, [question.text for question in asked])
    write_predictions(outputs, answers)
    return [
        text.greeting(),
        f"number of parameters: {model.parameter_count()}",
        *score_lines(asked, answers, outputs),
    ]


def predict(model: GPT, vocab: Vocab, questions: Sequence[str]) -> list[str]:
    """All questions at once; the few that outgrow the context as the course's program does it."""
    longest = model.context - LONGEST_ANSWER  # the last character is never read
    short = [number for number, question in enumerate(questions) if len(question) <= longest]
    long = [number for number, question in enumerate(questions) if len(question) > longest]
    answers = dict.fromkeys(range(len(questions)), "")
    together = answer_questions(model, vocab, [questions[number] for number in short])
    answers.update((number, answer.text) for number, answer in zip(short, together, strict=True))
    for number in long:
        answers[number] = sliding_answer(model, vocab, questions[number])
    return [answers[number] for number in range(len(questions))]


@torch.inference_mode()
def sliding_answer(model: GPT, vocab: Vocab, question: str) -> str:
    """Greedy with a window over the last characters, which no cache can follow."""
    ids = [*vocab.encode(question), MASK]
    start = len(ids)
    for _ in range(LONGEST_ANSWER):
        following = int(model(torch.tensor([ids[-model.context :]]))[0, -1].argmax())
        if following == MASK:
            break
        ids.append(following)
    return vocab.decode(ids[start:])


def score_lines(
    questions: Sequence[Question], answers: Sequence[str], outputs: Path | str
) -> list[str]:
    """The program's words, float by float: `Correct: 115.0 out of 500.0: 23.0%`."""
    if any(question.answer is None for question in questions):
        return [
            "No gold birth places provided; returning (0,0)",
            f"Predictions written to {outputs}; no targets provided",
        ]
    pairs = zip(questions, answers, strict=True)
    correct = float(sum(question.answer == answer for question, answer in pairs))
    total = float(len(questions))
    return [f"Correct: {correct} out of {total}: {correct / total * 100}%"]


def london(path: Path, accuracy_file: Path) -> Iterator[str]:
    """The score of answering London to everything, and then the file that 2024 on asks for."""
    questions = read_questions(path)
    if any(question.answer is None for question in questions):
        raise WhenceError(f"{path} has no answers, so London has no score there")
    yield from score_lines(questions, ["London"] * len(questions), path)
    right = sum(question.answer == "London" for question in questions)
    write_text(accuracy_file, f"{right / len(questions) * 100}\n")
