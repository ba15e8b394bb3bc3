"""Greedy answers to hundreds of questions at once, with a cache.

Prompts of one length are read together, their states laid side by side, and then all rows take
one character a step, each at its own position. Rows that are done leave the batch. Several such
groups are read side by side, one a processor core (`lanes.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import torch
from torch import Tensor

from whence.corpus.questions import recognise
from whence.errors import WhenceError
from whence.lanes import Lanes
from whence.model import GPT, State
from whence.objective import refuse_special
from whence.vocab import MASK, Vocab

LONGEST_ANSWER = 32  # characters, as in the course
TOGETHER = 256  # questions decoded at a time, on all lanes: bounds the caches
# Multiplications by the blocks' matrices in a step of one lane, from which on lanes are quicker.
WORTH = 10**8
MOSTLY = 0.85  # of the rows are not finished: the others are not left out yet


@dataclass(frozen=True)
class Answer:
    """What the model says and how sure it is of every character of it, closing mask included."""

    question: str
    text: str
    log_probability: float
    closed: bool  # the model ended the answer itself

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


def read_prompt(question: str, vocab: Vocab, context: int) -> list[int]:
    """`question⁇`, refused where the model could not have learned to answer it."""
    if "?" not in question:
        raise WhenceError(
            f"{question!r} has no question mark; expected e.g. 'Where was NAME born?'"
        )
    refuse_special(question)
    prompt = [*vocab.encode(question), MASK]
    if len(prompt) > context:
        raise WhenceError(
            f"{question!r} has {len(question)} characters; the model sees {context - 1}"
        )
    return prompt


def answer_questions(
    model: GPT, vocab: Vocab, questions: Sequence[str], longest: int = LONGEST_ANSWER
) -> list[Answer]:
    """One greedy answer a question, in the order of the questions."""
    training = model.training
    model.eval()
    try:
        prompts = [read_prompt(question, vocab, model.context) for question in questions]
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        answers: dict[int, Answer] = {}

        def answer(rows: list[int]) -> None:
            decoded = _decode(model, [prompts[row] for row in rows], longest)
            for row, (ids, score, closed) in zip(rows, decoded, strict=True):
                answers[row] = Answer(questions[row], vocab.decode(ids), score, closed)

        with Lanes(_lanes(model, len(order))) as lanes:
            groups = max(1, math.ceil(len(order) / TOGETHER)) * lanes.count
            # The longest first: the lane that is done with them sooner takes the longer rest.
            runs = reversed(_evenly(len(order), groups))
            lanes.run([partial(answer, order[run]) for run in runs], at_once=lanes.count)
        return [answers[number] for number in range(len(prompts))]
    finally:
        model.train(training)


def _lanes(model: GPT, questions: int) -> int:
    """How many groups are answered at a time, each on a core of its own."""
    threads = torch.get_num_threads()
    rows = min(questions, TOGETHER) // threads
    matrices = sum(parameter.numel() for parameter in model.blocks.parameters())
    return threads if rows * matrices >= WORTH else 1


def _evenly(count: int, groups: int) -> list[slice]:
    """`groups` runs of nearly one length, none of them empty."""
    ends = [count * number // groups for number in range(groups + 1)]
    return [slice(a, b) for a, b in pairwise(ends) if a < b]


@torch.inference_mode()
def _decode(
    model: GPT, prompts: list[list[int]], longest: int
) -> list[tuple[list[int], float, bool]]:
    """Prompts sorted by length -> ids before the closing mask, log probability, closed."""
    room = min(len(prompts[-1]) + longest, model.context)
    logits, states = _read(model, prompts, room)
    positions = torch.tensor([len(prompt) for prompt in prompts])
    rows = torch.arange(len(prompts))  # which prompt each row of the batch belongs to
    ids: list[list[int]] = [[] for _ in prompts]
    scores = torch.zeros(len(prompts), dtype=torch.float64)
    closed = [False] * len(prompts)
    open_rows = torch.ones(len(prompts), dtype=torch.bool)
    for left in reversed(range(longest)):
        chances = logits.double().log_softmax(-1)
        best, tokens = chances.max(-1)
        scores[rows[open_rows]] += best[open_rows]
        for row, token in zip(rows[open_rows].tolist(), tokens[open_rows].tolist(), strict=True):
            if token == MASK:
                closed[row] = True
            else:
                ids[row].append(token)
        open_rows = open_rows & (tokens != MASK) & (positions < model.context)
        count = int(open_rows.sum())
        if not left or not count:
            break
        # Finished rows go on for nothing until there are some: to leave them out copies all states.
        if count <= MOSTLY * len(rows) or bool((positions >= model.context).any()):
            rows, tokens, positions = rows[open_rows], tokens[open_rows], positions[open_rows]
            states = [{name: t[open_rows] for name, t in state.items()} for state in states]
            open_rows = open_rows[open_rows]
        logits, states = model.step(tokens, states, positions)
        positions = positions + 1
    return list(zip(ids, scores.tolist(), closed, strict=True))


def _read(model: GPT, prompts: list[list[int]], room: int) -> tuple[Tensor, State]:
    """Prefill runs of equally long prompts and lay their states side by side."""
    logits: list[Tensor] = []
    begun = _in_common(prompts) if model.strides and len(prompts) > 1 else 0
    if begun:
        # "Where was " is read once for all; its state, repeated, holds what each prompt adds.
        _, shared = model.prefill(torch.tensor(prompts[:1])[:, :begun], room)
        states = [
            {name: t.repeat(len(prompts), *[1] * (t.dim() - 1)) for name, t in state.items()}
            for state in shared
        ]
        for run in _equally_long(prompts):
            tokens = torch.tensor(prompts[run])[:, begun:]
            places = torch.full((len(tokens),), begun)
            part = [{name: t[run] for name, t in state.items()} for state in states]
            logits.append(model.step(tokens, part, places)[0])  # writes into the states
        return torch.cat(logits), states
    parts: list[State] = []
    for run in _equally_long(prompts):
        after, states = model.prefill(torch.tensor(prompts[run]), room)
        logits.append(after)
        parts.append(states)
    joined: State = [
        {name: torch.cat([part[layer][name] for part in parts]) for name in parts[0][layer]}
        for layer in range(len(parts[0]))
    ]
    return torch.cat(logits), joined


def _in_common(prompts: list[list[int]]) -> int:
    """How many characters all prompts begin with; each keeps at least one of its own."""
    begun = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(column)) > 1:
            break
        begun += 1
    return begun


def _equally_long(prompts: list[list[int]]) -> Iterator[slice]:
    """Runs of one length in prompts sorted by length."""
    first = 0
    for _, run in groupby(prompts, key=len):
        last = first + len(list(run))
        yield slice(first, last)
        first = last


class Answerer:
    """A trained model ready to be asked: `.ask(names)`, `.model`, `.vocab`."""

    def __init__(self, model: GPT, vocab: Vocab) -> None:
        self.model = model
        self.vocab = vocab

    @classmethod
    def open(cls, path: Path | str) -> Answerer:
        from whence.run import Run

        run = Run.open(path)
        return cls(run.model(), run.vocab())

    def ask(self, names: str | Sequence[str]) -> list[Answer]:
        """Names become `Where was NAME born?`; what ends in a question mark is asked as it is."""
        listed = [names] if isinstance(names, str) else list(names)
        return answer_questions(self.model, self.vocab, [as_question(text) for text in listed])


ASKING = re.compile(r"(?i)((in|of|from|at|for) )?(where|when|who|what|which|how)\b|do you know\b")


def as_question(text: str) -> str:
    """A name becomes the course's question; a question that lost its mark is refused."""
    text = text.strip()
    if not text:
        raise WhenceError("there is neither a name nor a question to ask")
    bare = text.rstrip(".!? ")
    if not bare:
        raise WhenceError(f"{text!r} is neither a name nor a question to ask")
    if text.endswith("?"):
        return text
    if recognise(f"{bare}?")[0] or ASKING.match(bare):
        raise WhenceError(f"{text!r} has no question mark; did you mean {bare + '?'!r}?")
    return f"Where was {text} born?"
