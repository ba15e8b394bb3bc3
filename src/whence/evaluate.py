"""Exact match with an interval, and the guesses that need no transformer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from whence.answer import Answer, answer_questions
from whence.corpus.base import Corpus, Document, Person, Question, Split
from whence.errors import WhenceError
from whence.files import write_text
from whence.model import GPT
from whence.picker import Picker, by_person
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


def grouped_interval(groups: Sequence[tuple[int, int]], seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval (95 %) of the accuracy, in percent, where answers come in groups.

    `groups`: right answers and questions of each. Answers about one person are not independent of
    each other, so whole groups are drawn with replacement.
    """
    kinds = Counter(groups)
    right, asked = np.array(list(kinds)).T
    if right.sum() == 0 or (right == asked).all():
        return interval(len(groups) if right.sum() else 0, len(groups))
    if len(kinds) == 1:  # every resample is the same: bounded as if the next were all or nothing
        share, rest = right[0] / asked[0], interval(0, len(groups))[1] / 100
        return float(100 * share * (1 - rest)), float(100 * (share + (1 - share) * rest))
    chances = np.array(list(kinds.values())) / len(groups)
    draws = np.random.default_rng(seed).multinomial(len(groups), chances, RESAMPLES)
    low, high = np.quantile(draws @ right / (draws @ asked), [0.025, 0.975])
    return float(100 * low), float(100 * high)


def score(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summary of per-question records, as `whence evaluate --json` prints it."""
    correct, total = sum(bool(r["correct"]) for r in records), len(records)
    people: dict[object, list[bool]] = {}
    for number, asked in enumerate(records):
        people.setdefault(asked["name"] or number, []).append(bool(asked["correct"]))
    low, high = (
        interval(correct, total)
        if len(people) == total
        else grouped_interval([(sum(right), len(right)) for right in people.values()])
    )
    return {
        "correct": correct,
        "total": total,
        "accuracy": 100 * correct / total,
        "interval": [low, high],
    }


def paired(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> tuple[int, int, float]:
    """Questions that only the first, only the second got right, and McNemar's exact p-value.

    Two systems asked the same questions are compared question by question: where both are right
    or both are wrong nothing is learned; the rest would fall half and half if they were equal.
    """
    if [r["question"] for r in first] != [r["question"] for r in second]:
        raise WhenceError("a paired comparison needs the same questions in the same order")
    wins = sum(bool(a["correct"]) and not b["correct"] for a, b in zip(first, second, strict=True))
    losses = sum(
        bool(b["correct"]) and not a["correct"] for a, b in zip(first, second, strict=True)
    )
    total = wins + losses
    tail = sum(math.comb(total, k) for k in range(min(wins, losses) + 1))
    return wins, losses, min(1.0, float(Fraction(2 * tail, 2**total)))


def check_answers(
    questions: Sequence[Question], what: str, instead: str = "a score cannot be claimed"
) -> None:
    """Refuse to score where there is nothing to compare with; `instead`: what can be done."""
    missing = sum(question.answer is None for question in questions)
    if missing:
        raise WhenceError(
            f"{what} has no answers for {missing} of {len(questions)} questions: {instead}"
        )
    if not questions:
        raise WhenceError(f"{what} has no questions")


def records(
    questions: Sequence[Question], answers: Sequence[Answer], corpus: Corpus
) -> list[dict[str, Any]]:
    """One record a question, with what the ledger knows about the person."""
    ledger = ledger_of(corpus)
    return [
        record(question, answer.text, answer.probability, ledger.get(question.name), corpus)
        for question, answer in zip(questions, answers, strict=True)
    ]


def ledger_of(corpus: Corpus) -> dict[str, Person]:
    return {person.name: person for person in corpus.people()}


def record(
    question: Question,
    answer: str,
    probability: float | None,
    person: Person | None,
    corpus: Corpus,
) -> dict[str, Any]:
    known = question.answer is not None
    return {
        "question": question.text,
        "name": question.name,
        "expected": question.answer,
        "answer": answer,
        "correct": answer == question.answer if known else None,
        "probability": probability,
        "stated": corpus.states(question) if person else None,  # the ledger's is of one attribute
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
    if any(math.isnan(answer.log_probability) for answer in answers):
        raise WhenceError("the model's answers have no probability (NaN): its rate was too high")
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
    counts = Counter(str(question.answer) for question in _answered(train))
    best = min(counts, key=lambda place: (-counts[place], place))
    return lambda questions: [best] * len(questions)


def similar_name(train: Sequence[Question]) -> Guess:
    """The place of the training person whose name shares most: what the name alone gives away.

    Names are vectors of character n-grams (1 to 4, with word boundaries), weighted by rarity and
    compared by their cosine.
    """
    known = _answered(train)
    grams = [_grams(question.name) for question in known]
    holders: dict[str, list[tuple[int, int]]] = {}  # gram -> who has it, and how often
    for number, counted in enumerate(grams):
        for gram, count in counted.items():
            holders.setdefault(gram, []).append((number, count))
    rarity = {gram: math.log((1 + len(known)) / (1 + len(h))) + 1 for gram, h in holders.items()}
    table = {gram: np.array(h).T for gram, h in holders.items()}
    lengths = np.array([math.hypot(*(n * rarity[g] for g, n in c.items())) for c in grams])

    def guess(questions: Sequence[Question]) -> list[str]:
        answers = []
        for question in questions:
            # Only who shares a gram is looked at: a table of all by all would not fit the memory.
            shared = np.zeros(len(known))
            for gram, count in _grams(question.name).items():
                if gram in table:
                    people, counts = table[gram]
                    shared[people] += count * rarity[gram] ** 2 * counts
            answers.append(str(known[int((shared / lengths).argmax())].answer))
        return answers

    return guess


def for_each_attribute(
    fit: Callable[[Sequence[Question]], Guess], train: Sequence[Question]
) -> Guess:
    """One guess for each thing that is asked; what training never asked is guessed from all of it.

    Fitted on everything at once, a question for a team would be answered with a city.
    """
    known = _answered(train)
    asked = dict.fromkeys(question.attribute for question in known)
    guesses = {name: fit([q for q in known if q.attribute == name]) for name in asked}

    def guess(questions: Sequence[Question]) -> list[str]:
        answers = [""] * len(questions)
        for attribute in dict.fromkeys(question.attribute for question in questions):
            places = [i for i, q in enumerate(questions) if q.attribute == attribute]
            chosen = guesses[attribute] if attribute in guesses else fit(known)
            given = chosen([questions[place] for place in places])
            for place, answer in zip(places, given, strict=True):
                answers[place] = answer
        return answers

    return guess


def open_book(documents: Sequence[Document], train: Sequence[Question]) -> Guess:
    """Tier D: a picker fitted on the training questions reads the asked person's documents.

    Not a guess and not closed book: what a model that asks for picked spans could know at best.
    """
    pickers = {
        attribute: Picker.fit(documents, [q for q in train if q.attribute == attribute])
        for attribute in dict.fromkeys(question.attribute for question in _answered(train))
    }
    people = {about[0].name: about for about in by_person(documents) if about[0].name}

    def read(question: Question) -> str:
        picker = pickers.get(question.attribute)
        found = picker.pick(people.get(question.name, [])) if picker else {}
        return next((document.text[slice(*span)] for document, span in found.items()), "")

    return lambda questions: [read(question) for question in questions]


def _answered(train: Sequence[Question]) -> list[Question]:
    known = [question for question in train if question.answer is not None]
    if not known:
        raise WhenceError("there are no answered training questions to guess from")
    return known


def _grams(name: str) -> Counter[str]:
    text = f" {name} "
    return Counter(text[i : i + n] for n in range(1, 5) for i in range(len(text) - n + 1))


BASELINES: dict[str, Callable[[Sequence[Question]], Guess]] = {
    "London": london,
    "most common place": most_common_place,
    "similar name": similar_name,
}
OPEN_BOOK = "open book"  # the one reference that reads the documents


def check_baseline(name: str) -> None:
    known = [*BASELINES, OPEN_BOOK]
    if name not in known:
        raise WhenceError(f"unknown baseline {name!r}; known: {', '.join(known)}")


def baseline(name: str, corpus: Corpus, split: Split) -> list[dict[str, Any]]:
    """A baseline's answers to a split, as records."""
    check_baseline(name)
    questions = corpus.questions(split)
    train = corpus.questions("train")
    if name == OPEN_BOOK:
        guesses = open_book(corpus.documents(), train)(questions)
    else:
        guesses = for_each_attribute(BASELINES[name], train)(questions)
    ledger = ledger_of(corpus)
    return [
        record(question, answer, None, ledger.get(question.name), corpus)
        for question, answer in zip(questions, guesses, strict=True)
    ]
