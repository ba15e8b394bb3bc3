"""The same question in other words: is the fact known, or only the sentence it was asked in?

Every question of a split is asked in all forms that its attribute has (corpus/questions.py). Forms
that no training question had are unheard: how often they are answered right, and how often with the
same words as the form that dev and test use, is what a score on one form cannot say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from whence.answer import answer_questions
from whence.corpus.base import Corpus, Question, Split
from whence.corpus.questions import QUESTIONS
from whence.errors import WhenceError
from whence.evaluate import grouped_interval, interval
from whence.model import GPT
from whence.vocab import Vocab


def ask_in_all_forms(model: GPT, vocab: Vocab, corpus: Corpus, split: Split) -> dict[str, Any]:
    """Per form right answers and agreement with the first that can be asked; over all forms
    consistency. `unrecognised`: questions whose own form is none of ours, which are left out."""
    answered = [question for question in corpus.questions(split) if question.answer is not None]
    if not answered:
        raise WhenceError(f"{corpus.name}, {split}, has no answers to compare with")
    known = [question for question in answered if question.attribute in QUESTIONS]
    if not known:
        raise WhenceError(f"{corpus.name}, {split}, has no question that has other forms")
    unrecognised = len(answered) - len(known)
    train = corpus.questions("train")
    trained, names = {question.text for question in train}, [question.name for question in train]
    # A training question may itself be asked in several forms; its fact is asked for once.
    known = list({(q.name, q.attribute, q.answer): q for q in known}.values())
    rows, facts = [], []
    for attribute in dict.fromkeys(question.attribute for question in known):
        asked = [question for question in known if question.attribute == attribute]
        begun = [Fact(question.name, str(question.answer)) for question in asked]
        facts += begun
        for form in QUESTIONS[attribute]:
            if vocab.unknown(form.format(name="")):
                rows.append({"attribute": attribute, "form": form, "total": 0})
                continue
            heard = any(form.format(name=name) in trained for name in names)
            for fact, text in zip(begun, answers_to(model, vocab, form, asked), strict=True):
                fact.given.append((heard, text))
            same = sum(fact.given[0][1] == fact.given[-1][1] for fact in begun)
            right = sum(fact.given[-1][1] == fact.answer for fact in begun)
            rows.append(
                {
                    "attribute": attribute,
                    "form": form,
                    "trained": heard,
                    "same": 100 * same / len(asked),
                    **share(right, len(asked), interval(right, len(asked))),
                }
            )
    return {
        "split": split,
        "unrecognised": unrecognised,
        "forms": rows,
        "trained": together(facts, heard=True),
        "unheard": together(facts, heard=False),
        **consistency([[text for _, text in fact.given] for fact in facts]),
    }


@dataclass
class Fact:
    """What was asked for, and per form whether training had it and what was said."""

    name: str  # of the person
    answer: str
    given: list[tuple[bool, str]] = field(default_factory=list)


def answers_to(model: GPT, vocab: Vocab, form: str, asked: Sequence[Question]) -> list[str]:
    prompts = [form.format(name=question.name) for question in asked]
    return [answer.text for answer in answer_questions(model, vocab, prompts)]


def share(right: int, total: int, bounds: tuple[float, float]) -> dict[str, Any]:
    accuracy = 100 * right / total
    return {"correct": right, "total": total, "accuracy": accuracy, "interval": list(bounds)}


def together(facts: Sequence[Fact], heard: bool) -> dict[str, Any] | None:
    """The forms that training had, or those that it had not; None where there are none.

    Facts about one person, and forms of one fact, are not independent of each other: the interval
    is over people.
    """
    people: dict[str, list[bool]] = {}
    for fact in facts:
        said = [text == fact.answer for trained, text in fact.given if trained == heard]
        if said:
            people.setdefault(fact.name, []).extend(said)
    if not people:
        return None
    groups = [(sum(right), len(right)) for right in people.values()]
    right, total = (sum(column) for column in zip(*groups, strict=True))
    return share(right, total, grouped_interval(groups))


def consistency(answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """In percent: facts whose forms all agree, and pairs of forms of one fact that agree."""
    pairs = [one == other for texts in answers for one, other in combinations(texts, 2)]
    return {
        "consistent": 100 * sum(len(set(texts)) == 1 for texts in answers) / len(answers),
        "agreeing pairs": 100 * sum(pairs) / len(pairs) if pairs else 100.0,
    }


def table(asked: dict[str, Any]) -> str:
    """For people: one line a form, then the two kinds of forms and the agreement between them."""
    lines = [f"{'right':>7} {'as the first':>13}  form"]
    for row in asked["forms"]:
        if not row["total"]:
            lines.append(f"{'-':>7} {'-':>13}  {row['form']} (characters not in the vocabulary)")
            continue
        heard = "" if row["trained"] else " (unheard)"
        lines.append(f"{row['accuracy']:6.1f}% {row['same']:12.1f}%  {row['form']}{heard}")
    for kind in ("trained", "unheard"):
        if asked[kind] is not None:
            low, high = asked[kind]["interval"]
            lines.append(
                f"{kind} forms: {asked[kind]['accuracy']:.1f} % right "
                f"(95 % interval {low:.1f} - {high:.1f})"
            )
    if asked["unrecognised"]:
        lines.append(f"left out: {asked['unrecognised']} questions of a form of their own")
    lines.append(
        f"all forms agree for {asked['consistent']:.1f} % of the facts, "
        f"{asked['agreeing pairs']:.1f} % of the pairs of forms"
    )
    return "\n".join(lines)
