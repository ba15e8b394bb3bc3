"""The same question in other words: is the fact known, or only the sentence it was asked in?

Every question of a split is asked in all forms that its attribute has (corpus/questions.py). Forms
that no training question had are unheard: how often they are answered right, and how often with the
same words as the form that dev and test use, is what a score on one form cannot say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from whence.answer import answer_questions
from whence.corpus.base import Corpus, Question, Split
from whence.corpus.questions import QUESTIONS
from whence.errors import WhenceError
from whence.evaluate import interval
from whence.model import GPT
from whence.vocab import Vocab


def ask_in_all_forms(model: GPT, vocab: Vocab, corpus: Corpus, split: Split) -> dict[str, Any]:
    """Per form right answers and agreement with the first form; over all forms consistency."""
    people = {(q.attribute, q.name): q for q in corpus.questions(split) if q.answer is not None}
    if not people:
        raise WhenceError(f"{corpus.name}, {split}, has no answers to compare with")
    trained = {question.text for question in corpus.questions("train")}
    names = [question.name for question in corpus.questions("train")]
    rows = []
    given: dict[tuple[str, str], list[str]] = {key: [] for key in people}
    for attribute in dict.fromkeys(attribute for attribute, _ in people):
        asked = [question for question in people.values() if question.attribute == attribute]
        for form in QUESTIONS[attribute]:
            if vocab.unknown(form.format(name="")):
                rows.append({"attribute": attribute, "form": form, "total": 0})
                continue
            texts = answers_to(model, vocab, form, asked)
            for question, text in zip(asked, texts, strict=True):
                given[attribute, question.name].append(text)
            same = sum(given[attribute, q.name][0] == t for q, t in zip(asked, texts, strict=True))
            right = sum(q.answer == t for q, t in zip(asked, texts, strict=True))
            heard = any(form.format(name=name) in trained for name in names)
            rows.append(
                {
                    "attribute": attribute,
                    "form": form,
                    "trained": heard,
                    "same": 100 * same / len(asked),
                    **share(right, len(asked)),
                }
            )
    return {
        "split": split,
        "forms": rows,
        "trained": together(rows, trained=True),
        "unheard": together(rows, trained=False),
        **consistency(list(given.values())),
    }


def answers_to(model: GPT, vocab: Vocab, form: str, asked: Sequence[Question]) -> list[str]:
    prompts = [form.format(name=question.name) for question in asked]
    return [answer.text for answer in answer_questions(model, vocab, prompts)]


def share(right: int, total: int) -> dict[str, Any]:
    low, high = interval(right, total)
    accuracy = 100 * right / total
    return {"correct": right, "total": total, "accuracy": accuracy, "interval": [low, high]}


def together(rows: Sequence[dict[str, Any]], trained: bool) -> dict[str, Any] | None:
    """The forms that training had, or those that it had not; None where there are none."""
    kept = [row for row in rows if row["total"] and row["trained"] == trained]
    if not kept:
        return None
    return share(sum(row["correct"] for row in kept), sum(row["total"] for row in kept))


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
    lines.append(
        f"all forms agree for {asked['consistent']:.1f} % of the facts, "
        f"{asked['agreeing pairs']:.1f} % of the pairs of forms"
    )
    return "\n".join(lines)
