"""Exact match with an interval, and the guesses that need no transformer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence.answer import Answer, answer_questions
from whence.corpus.base import Corpus, Person, Question, Split
from whence.errors import WhenceError
from whence.files import write_text
from whence.model import GPT
from whence.vocab import Vocab

RESAMPLES = 10_000


def interval(correct: int, total: int, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval of the accuracy over the questions, in percent.

    Drawing n answers with replacement and counting the right ones is a binomial draw, so that is
    what is drawn. Where all are wrong or all are right every resample is the same and says
    nothing about the unknown; there the exact (Clopper-Pearson) bound is given.
    """
    if total == 0:
        raise WhenceError("there are no questions to score")
    tail = (1 - level) / 2
    if correct == 0:
        return 0.0, 100 * (1 - tail ** (1 / total))
    if correct == total:
        return 100 * tail ** (1 / total), 100.0
    draws = np.random.default_rng(seed).binomial(total, correct / total, RESAMPLES)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(100 * low / total), float(100 * high / total)


def score(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summary of per-question records, as `whence evaluate --json` prints it."""
    correct, total = sum(bool(r["correct"]) for r in records), len(records)
    low, high = interval(correct, total)
    return {
        "correct": correct,
        "total": total,
        "accuracy": 100 * correct / total,
        "interval": [low, high],
    }


def check_answers(questions: Sequence[Question], what: str) -> None:
    """Refuse to score where there is nothing to compare with."""
    missing = sum(question.answer is None for question in questions)
    if missing:
        raise WhenceError(
            f"{what} has no answers for {missing} of {len(questions)} questions: "
            "predictions can be written (--predictions FILE), a score cannot be claimed"
        )
    if not questions:
        raise WhenceError(f"{what} has no questions")


def records(
    questions: Sequence[Question], answers: Sequence[Answer], corpus: Corpus
) -> list[dict[str, Any]]:
    """One record a question, with what the ledger knows about the person."""
    ledger = ledger_of(corpus)
    return [
        record(question, answer.text, answer.probability, ledger.get(question.name))
        for question, answer in zip(questions, answers, strict=True)
    ]


def ledger_of(corpus: Corpus) -> dict[str, Person]:
    return {person.name: person for person in corpus.people()}


def record(
    question: Question, answer: str, probability: float | None, person: Person | None
) -> dict[str, Any]:
    known = question.answer is not None
    return {
        "question": question.text,
        "name": question.name,
        "expected": question.answer,
        "answer": answer,
        "correct": answer == question.answer if known else None,
        "probability": probability,
        "stated": person.stated if person else None,
        "seen": person.seen if person else None,
    }


def accuracy(model: GPT, vocab: Vocab, questions: Sequence[Question]) -> tuple[int, int]:
    """Right answers and questions."""
    answers = answer_questions(model, vocab, [question.text for question in questions])
    right = sum(a.text == q.answer for a, q in zip(answers, questions, strict=True))
    return right, len(questions)


def evaluate(model: GPT, vocab: Vocab, corpus: Corpus, split: Split) -> list[dict[str, Any]]:
    """Ask all questions of a split. Without answers in it, `correct` is None throughout."""
    questions = corpus.questions(split)
    answers = answer_questions(model, vocab, [question.text for question in questions])
    return records(questions, answers, corpus)


def write_predictions(path: Path, answers: Sequence[str]) -> None:
    """One prediction a line, line for line with the questions, as the course writes them."""
    write_text(path, "".join(f"{one_line(answer)}\n" for answer in answers))


def one_line(answer: str) -> str:
    """A line end inside an answer would shift every line after it."""
    return answer.replace("\r", " ").replace("\n", " ")


# Guesses without a transformer

Guess = Callable[[Sequence[Question]], list[str]]


def london(train: Sequence[Question]) -> Guess:
    return lambda questions: ["London"] * len(questions)


def most_common_place(train: Sequence[Question]) -> Guess:
    """The place that most of the training questions have; ties go to the first in the alphabet."""
    counts = Counter(question.answer for question in train if question.answer is not None)
    best = min(counts, key=lambda place: (-counts[place], place))
    return lambda questions: [best] * len(questions)


def similar_name(train: Sequence[Question]) -> Guess:
    """The place of the training person whose name shares most: what the name alone gives away.

    Names are vectors of character n-grams (1 to 4, with word boundaries), weighted by rarity and
    compared by their cosine.
    """
    known = [question for question in train if question.answer is not None]
    grams = [_grams(question.name) for question in known]
    counts = Counter(gram for counted in grams for gram in counted)
    numbers = {gram: number for number, gram in enumerate(counts)}
    rarity = np.log((1 + len(known)) / (1 + np.array(list(counts.values())))) + 1

    def vectors(names: Sequence[Counter[str]]) -> Any:
        matrix = np.zeros((len(names), len(numbers)), dtype=np.float32)
        for row, counted in enumerate(names):
            for gram, count in counted.items():
                if gram in numbers:
                    matrix[row, numbers[gram]] = count * rarity[numbers[gram]]
        norms = np.linalg.norm(matrix, axis=1, keepdims=True)
        return matrix / np.maximum(norms, 1e-12)

    table = vectors(grams)

    def guess(questions: Sequence[Question]) -> list[str]:
        answers: list[str] = []
        for first in range(0, len(questions), 256):
            asked = vectors([_grams(q.name) for q in questions[first : first + 256]])
            nearest = (asked @ table.T).argmax(1)
            answers += [str(known[number].answer) for number in nearest]
        return answers

    return guess


def _grams(name: str) -> Counter[str]:
    text = f" {name} "
    return Counter(text[i : i + n] for n in range(1, 5) for i in range(len(text) - n + 1))


BASELINES: dict[str, Callable[[Sequence[Question]], Guess]] = {
    "London": london,
    "most common place": most_common_place,
    "similar name": similar_name,
}


def baseline(name: str, corpus: Corpus, split: Split) -> list[dict[str, Any]]:
    """A baseline's answers to a split, as records."""
    if name not in BASELINES:
        raise WhenceError(f"unknown baseline {name!r}; known: {', '.join(BASELINES)}")
    questions = corpus.questions(split)
    guesses = BASELINES[name](corpus.questions("train"))(questions)
    ledger = ledger_of(corpus)
    return [
        record(question, answer, None, ledger.get(question.name))
        for question, answer in zip(questions, guesses, strict=True)
    ]
