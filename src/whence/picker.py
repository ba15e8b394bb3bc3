"""Which span of a document answers the questions? Learned from the training questions only.

For every training person whose documents hold the answer, the picker sees the candidates
(capitalised words and numbers; all words where most answers are neither) and which of them was the
answer. It scores a candidate by where it stands: the words around it, its place among the others,
whether other people's answers look like it. Nothing in here knows what the questions are about;
birth places and football teams are learned alike. The model is a logistic regression over the
candidates of one person (a softmax), fitted by L-BFGS: convex, deterministic, a second for
thousands of documents. A document that says nothing of what is asked competes with those of the
same person that do, and nothing is picked from it; nor is anything picked about a person whose best
candidate scores below all that was ever right. Without a single answer to learn from nothing is
picked at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
import torch.nn.functional as F

from whence.corpus.base import Document, Question
from whence.objective import Span, salient_words

FEW = 20  # right answers, from which on the least of them says something


@dataclass(frozen=True)
class Candidate:
    """A span of a document and the features that describe its surroundings."""

    span: Span
    text: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """What answers are made of: at most so many salient words, and what may stand between two."""

    words: int = 1
    joints: frozenset[str] = frozenset({" "})  # "University of Milan" adds " of "
    plain: bool = False  # most answers are neither capitalised nor numbers: any word may be one

    @classmethod
    def of(cls, answers: Collection[str]) -> Form:
        words, joints = 1, {" "}
        plain = 2 * sum(not salient_words(Document(answer)) for answer in answers) > len(answers)
        for answer in answers:
            parts = salient_words(Document(answer), plain=plain)
            words = max(words, len(parts))
            joints |= {answer[a[1] : b[0]] for a, b in pairwise(parts)}
        return cls(words, frozenset(joints - {""}), plain)  # parts of a hyphenated word overlap


class Picker:
    """Fitted on training questions of one attribute; `pick` finds the answer about anybody."""

    def __init__(self, answers: Mapping[str, str], form: Form) -> None:
        self.weights: dict[str, float] = {}
        self.least = math.inf  # a lower score is no answer
        self.answers = answers  # by name: those of the training questions, and guesses of others
        self.form = form
        self.counts = Counter(answers.values())

    @classmethod
    def fit(
        cls,
        documents: Sequence[Document],
        questions: Sequence[Question],
        penalty: float = 0.3,
    ) -> Picker:
        """`questions` are training questions; of other people only the documents are read.

        Fitted twice: what the first picker finds in everybody's document tells the second one what
        answers look like, far beyond those that the training questions happen to have.
        """
        expected = {q.name: q.answer for q in questions if q.name and q.answer is not None}
        form = Form.of(expected.values())
        people = by_person(documents)
        first = cls(expected, form)
        first._learn(people, expected, penalty)
        guesses = {
            document.name: document.text[slice(*span)]
            for about in people
            for document, span in first.pick(about).items()
            if document.name
        }
        second = cls({**guesses, **expected}, form)
        second._learn(people, expected, penalty)
        return second

    def _learn(
        self, people: Sequence[Sequence[Document]], expected: Mapping[str, str], penalty: float
    ) -> None:
        groups = []
        for about in people:
            answer = expected.get(about[0].name)
            if answer is None:
                continue
            described = [self.candidates(document) for document in about]
            firsts = [
                next((i for i, c in enumerate(candidates) if c.text == answer), None)
                for candidates in described
            ]
            silent = [
                candidate
                for candidates, first in zip(described, firsts, strict=True)
                if first is None
                for candidate in candidates
            ]
            groups += [
                ([*candidates, *silent], first)
                for candidates, first in zip(described, firsts, strict=True)
                if first is not None
            ]
        self.weights = _fit(groups, penalty)
        self.least = self._least(groups)

    def _least(self, groups: Sequence[tuple[list[Candidate], int]]) -> float:
        """A score below those of all right answers, by a quarter of how far they reach down."""
        if not groups:
            return math.inf
        right = []
        for candidates, first in groups:
            scores = [self.score(candidate) for candidate in candidates]
            if scores[first] == max(scores):
                right.append(scores[first])
        if len(right) < FEW:  # their own words were learned by heart: others will score lower
            return -math.inf
        return min(right) - (median(right) - min(right)) / 4

    def score(self, candidate: Candidate) -> float:
        return sum(self.weights.get(feature, 0.0) for feature in candidate.features)

    def candidates(self, document: Document) -> list[Candidate]:
        # Counted without this person's own, or the feature would give the answer away.
        own = self.answers.get(document.name)
        if own is None:
            return describe_candidates(document, self.counts, self.form)
        self.counts[own] -= 1
        try:
            return describe_candidates(document, self.counts, self.form)
        finally:
            self.counts[own] += 1

    def scores(self, document: Document) -> list[tuple[Candidate, float]]:
        return [(candidate, self.score(candidate)) for candidate in self.candidates(document)]

    def pick(self, about: Sequence[Document]) -> dict[Document, Span]:
        """Where the likeliest answer stands in a person's documents; empty if nothing stands out.

        It may stand in several of them, and the others say something else.
        """
        scored = {document: self.scores(document) for document in about}
        every = [pair for pairs in scored.values() for pair in pairs]
        best = max(every, key=_score, default=None)
        if best is None or best[1] < self.least:
            return {}
        answer = best[0].text
        found = {}
        for document, pairs in scored.items():
            here = [pair for pair in pairs if pair[0].text == answer]
            if here:
                found[document] = max(here, key=_score)[0].span
        return found


def _score(pair: tuple[Candidate, float]) -> float:
    return pair[1]


def by_person(documents: Sequence[Document]) -> list[list[Document]]:
    """Documents of one name together; one without a name is on its own."""
    about: dict[object, list[Document]] = {}
    for number, document in enumerate(documents):
        about.setdefault(document.name or number, []).append(document)
    return list(about.values())


def pick_spans(
    documents: Sequence[Document], questions: Sequence[Question]
) -> dict[Document, tuple[Span, ...]]:
    """Per document the spans that the training questions teach to ask for, one an attribute."""
    picked: dict[Document, list[Span]] = {}
    people = by_person(documents)
    for attribute in dict.fromkeys(question.attribute for question in questions):
        picker = Picker.fit(documents, [q for q in questions if q.attribute == attribute])
        for about in people:
            for document, span in picker.pick(about).items():
                picked.setdefault(document, []).append(span)
    return {document: tuple(dict.fromkeys(spans)) for document, spans in picked.items()}


def answers_stand(documents: Sequence[Document], questions: Sequence[Question]) -> bool:
    """Whether there is anything to learn from: an answer that is a candidate about its person."""
    people = {about[0].name: about for about in by_person(documents) if about[0].name}
    for attribute in dict.fromkeys(question.attribute for question in questions):
        asked = [q for q in questions if q.attribute == attribute and q.answer is not None]
        form = Form.of([str(question.answer) for question in asked])
        for question in asked:
            for document in people.get(question.name, ()):
                texts = [document.text[slice(*span)] for span in candidate_spans(document, form)]
                if question.answer in texts:
                    return True
    return False


def candidate_spans(document: Document, form: Form) -> list[Span]:
    """Salient words and, where answers have several of them, runs that are joined alike."""
    single = salient_words(document, plain=form.plain)
    spans = list(single)
    for length in range(2, form.words + 1):
        for first in range(len(single) - length + 1):
            run = single[first : first + length]
            if all(document.text[a[1] : b[0]] in form.joints for a, b in pairwise(run)):
                spans.append((run[0][0], run[-1][1]))
    return sorted(spans)


def describe_candidates(document: Document, answers: Counter[str], form: Form) -> list[Candidate]:
    """The candidates with their features; `answers` are those known of other people."""
    text, body = document.text, len(document.name) + 1 if document.name else 0
    found = []
    known_before = 0
    spans = candidate_spans(document, form)
    # "Lafayette, Louisiana": what a candidate is listed with, and whether that is known.
    starting = {start: text[start:stop] for start, stop in spans}
    ending = {stop: text[start:stop] for start, stop in spans}
    for number, (start, stop) in enumerate(spans):
        span = text[start:stop]
        left, right = text[body:start].lower().split(), text[stop:].split()
        before = ["^", "^", "^", *left][-3:]
        known = "known" if answers[span] else "unknown"
        known_before += known == "known"
        opened = text.rfind("(", body, start) > text.rfind(")", body, start)
        shape = "number" if span[0].isdigit() else "word"
        following = text[stop : stop + 2]
        listed = "".join(
            "known" if answers[other] else "unknown" if other else "nothing"
            for other in (ending.get(start - 2, ""), starting.get(stop + 2, ""))
            if text[start - 2 : start] == ", " or text[stop : stop + 2] == ", "
        )
        near = left[-8:]
        features = [
            known,
            f"{known} number {min(known_before, 4)}" if known == "known" else known,
            f"index {min(number, 6)}",
            f"shape {shape}",
            f"1 {before[2]}",
            f"2 {before[1]} {before[2]}",
            f"3 {before[0]} {before[1]} {before[2]}",
            f"skip {before[1]}",
            f"next {following}",
            f"word {right[0].lower() if right else '$'}",
            f"opened {opened} {shape}",
            f"after name-word {text[max(body, start - 2) : start].strip() in {',', '-'}}",
            f"{known} {before[2]}",
            f"{known} listed {listed}",
            f"is {span}",
            f"is {span} listed {listed}",
            *(f"near {word}" for word in dict.fromkeys(near)),
        ]
        found.append(Candidate((start, stop), span, tuple(features)))
    return found


def _fit(groups: Sequence[tuple[list[Candidate], int]], penalty: float) -> dict[str, float]:
    """Softmax regression over each group's candidates."""
    counts = Counter(f for candidates, _ in groups for c in candidates for f in c.features)
    numbers = {feature: i for i, feature in enumerate(f for f, n in counts.items() if n > 1)}
    if not groups or not numbers:
        return {}
    flat: list[int] = []
    offsets: list[int] = []
    rows: list[int] = []
    for row, (candidates, _) in enumerate(groups):
        for candidate in candidates:
            offsets.append(len(flat))
            rows.append(row)
            flat += [numbers[f] for f in candidate.features if f in numbers]
    index, starts, group = torch.tensor(flat), torch.tensor(offsets), torch.tensor(rows)
    firsts = torch.tensor([0, *[len(c) for c, _ in groups]]).cumsum(0)[:-1]
    right = firsts + torch.tensor([answer for _, answer in groups])
    weights = torch.zeros(len(numbers), 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-6
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        scores = F.embedding_bag(index, weights, starts, mode="sum")[:, 0]
        # log of the sum over each group's candidates, shifted by the largest score.
        peak = scores.detach().max()
        total = torch.zeros(len(groups), dtype=scores.dtype).index_add(
            0, group, (scores - peak).exp()
        )
        loss = (total.log() + peak - scores[right]).sum() + penalty * weights.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    values = weights.detach()[:, 0].tolist()
    return {feature: values[number] for feature, number in numbers.items()}
