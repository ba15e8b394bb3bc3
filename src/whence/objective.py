"""What a model is trained on: a document or a question becomes inputs and targets.

Every objective yields plain lists first (`draw`), which the batches pad as little as they need;
calling it pads to the block, as the course does. A target of PAD carries no loss.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from whence.corpus.base import Document, Question
from whence.errors import WhenceError
from whence.vocab import MASK, MASK_CHARACTER, PAD, PAD_CHARACTER, Vocab

Generator = torch.Generator | random.Random
Draw = tuple[list[int], list[int]]  # inputs and targets, of one length, not padded
Span = tuple[int, int]  # start and stop within a document's text


class Example(NamedTuple):
    """Padded inputs and targets of one length."""

    inputs: Tensor
    targets: Tensor


def integer(generator: Generator, low: int, high: int) -> int:
    """A whole number in [low, high], both ends possible."""
    if isinstance(generator, random.Random):
        return generator.randint(low, high)
    return int(torch.randint(low, high + 1, (1,), generator=generator))


def refuse_special(text: str) -> None:
    """A document that holds a special character itself could not be told from its example."""
    for character in (MASK_CHARACTER, PAD_CHARACTER):
        if character in text:
            raise WhenceError(f"{text[:60]!r} holds {character}, which is a special character")


class Objective(Protocol):
    """`draw` for the training loop, `__call__` for everybody else."""

    @property
    def block(self) -> int: ...

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw: ...

    def __call__(
        self, item: Document | Question | str, vocab: Vocab, generator: Generator
    ) -> Example: ...


@dataclass(frozen=True)
class _Padded:
    """The padding to `block - 1` positions that all objectives share."""

    block: int = 128

    def __post_init__(self) -> None:
        if self.block < 8:
            raise WhenceError(f"a block of {self.block} positions is too short; at least 8")

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        raise TypeError("an objective defines draw")

    def __call__(
        self, item: Document | Question | str, vocab: Vocab, generator: Generator
    ) -> Example:
        if isinstance(item, str):
            item = Document(item)
        refuse_special(item.text)  # before training `check_mixture` looks, once for all draws
        inputs, targets = self.draw(item, vocab, generator)
        # The course pads first and shifts then, so its inputs hold the last character too. It is
        # followed by padding only and teaches nothing: `draw`, for training, leaves it out.
        padded = targets + [PAD] * (self.block - 1 - len(targets))
        whole = [*inputs, targets[-1]] + [PAD] * (self.block - 1 - len(inputs))
        return Example(torch.tensor(whole[: self.block - 1]), torch.tensor(padded))


@dataclass(frozen=True)
class SpanCorruption(_Padded):
    """`prefix ⁇ suffix ⁇ masked`: the course's pretraining task.

    The document is truncated to a random length between 4 and 7/8 of the block, every length
    equally likely; the masked part has a random length, a quarter of that on average.
    """

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        text = item.text
        # Two masks have to fit as well, which matters for the shortest block only.
        drawn = integer(generator, 4, min(int(self.block * 7 / 8), self.block - 2))
        ids = vocab.encode(text[:drawn])
        length = len(ids)
        # Uniform on 1 .. 2q - 1 has the mean q, the quarter of the length.
        quarter = max(1, round(length / 4))
        masked = min(integer(generator, 1, 2 * quarter - 1), length)
        start = integer(generator, 0, length - masked)
        stop = start + masked
        whole = [*ids[:start], MASK, *ids[stop:], MASK, *ids[start:stop]]
        return whole[:-1], whole[1:]


@dataclass(frozen=True)
class NextCharacter(_Padded):
    """Plain language modelling of the document's beginning or, at random, a later part."""

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        text = item.text
        start = integer(generator, 0, max(0, len(text) - self.block + 1))
        # An empty document has one target as well: that nothing follows.
        ids = [MASK, *(vocab.encode(text[start : start + self.block - 1]) or [MASK])]
        return ids[:-1], ids[1:]


@dataclass(frozen=True)
class QuestionAnswer(_Padded):
    """`question ⁇ place ⁇`: only the place and its closing mask are targets."""

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        if not isinstance(item, Question) or item.answer is None:
            raise WhenceError(f"{item.text!r} has no answer to train on")
        return answered(item.text, item.answer, vocab, self.block)


def answered(prompt: str, answer: str, vocab: Vocab, block: int) -> Draw:
    """Inputs `prompt ⁇ answer`, targets `answer ⁇` below them and PAD before."""
    refuse_special(prompt + answer)
    question, place = vocab.encode(prompt), vocab.encode(answer)
    inputs = [*question, MASK, *place]
    if len(inputs) > block - 1:
        raise WhenceError(f"{prompt!r} with its answer is longer than the block of {block}")
    return inputs, [*([PAD] * len(question)), *place, MASK]


_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
_PART = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def salient_words(document: Document, numbers: bool = True, plain: bool = False) -> list[Span]:
    """Where capitalised words (and numbers) stand, without those of the person's own name.

    `plain`: all other words as well.
    Of words like Toulouse-born and Toulouse's, the capitalised part is salient on its own as well.
    """
    own = set(_WORD.findall(document.name))
    found: list[Span] = []
    for match in _WORD.finditer(document.text, len(document.name) + 1 if document.name else 0):
        word, start = match.group(), match.start()
        if word in own or not (plain or word[0].isupper() or (numbers and word.isdigit())):
            continue
        parts = list(_PART.finditer(word))
        if any(part.group()[0].islower() for part in parts):
            found += [
                (start + part.start(), start + part.end())
                for part in parts
                if part.group()[0].isupper() and part.group() not in own
            ]
        if word.endswith(("'s", "’s")) and word[:-2] not in own:
            found.append((start, match.end() - 2))
        found.append(match.span())
    return found


@dataclass(frozen=True)
class SalientSpan(_Padded):
    """`Full Name. (a few words before it) ⁇ span ⁇`: asks for a name, place or number by person.

    Only the span is a target. How many words stand before it is drawn anew each time, down to
    none: then the name alone has to bring the span back, which is what a question will want.
    """

    words_before: int = 3
    numbers: bool = True  # dates and the like are asked for as well as names

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        if not isinstance(item, Document):
            raise WhenceError("salient spans are drawn from documents")
        spans = salient_words(item, self.numbers)
        if not spans:  # nothing stands out: the text as it is, at least
            return NextCharacter(self.block).draw(item, vocab, generator)
        start, stop = spans[integer(generator, 0, len(spans) - 1)]
        return self.ask(item, start, stop, vocab, generator)

    def ask(
        self, item: Document, start: int, stop: int, vocab: Vocab, generator: Generator
    ) -> Draw:
        """The example that asks for characters start..stop of the document."""
        body = len(item.name) + 1 if item.name else 0
        before = item.text[body:start].split()
        count = min(integer(generator, 0, self.words_before), len(before))
        context = " ".join(before[len(before) - count :])
        head = f"{item.name}. " if item.name else ""
        prompt = f"{head}{context} " if context else head
        span = item.text[start:stop][: self.block // 2]
        room = self.block - 1 - len(span) - 1
        # The name stays; context that does not fit goes, and so does a name of absurd length.
        if len(prompt) > room:
            prompt = head[:room]
        return answered(prompt, span, vocab, self.block)


@dataclass(frozen=True)
class PickedSpan(SalientSpan):
    """Salient spans, mostly the one that answers questions: learned masking.

    `picks` holds per document the spans that pickers chose (whence.picker), one for each thing that
    is asked; they were fitted on the training questions only. The rest of the time any salient span
    is asked for.
    """

    picks: Mapping[Document, Sequence[Span]] = field(default_factory=dict)
    share: float = 0.95  # how often a picked span is asked for

    def draw(self, item: Document | Question, vocab: Vocab, generator: Generator) -> Draw:
        if isinstance(item, Document) and item in self.picks and self._chosen(generator):
            spans = self.picks[item]
            start, stop = spans[integer(generator, 0, len(spans) - 1)]
            return self.ask(item, start, stop, vocab, generator)
        return super().draw(item, vocab, generator)

    def _chosen(self, generator: Generator) -> bool:
        return integer(generator, 1, 1000) <= 1000 * self.share


OBJECTIVES: dict[str, type[SpanCorruption | NextCharacter | SalientSpan | QuestionAnswer]] = {
    "spans": SpanCorruption,
    "next": NextCharacter,
    "salient": SalientSpan,
    "picked": PickedSpan,
    "questions": QuestionAnswer,
}
