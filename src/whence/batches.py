"""Examples of like length together, in a reproducible, resumable order.

Which example comes n-th is a pure function of seed, stage and n. Examples are drawn in windows of
some thousand, sorted by length and cut into batches of about equally many positions, and the
batches are shuffled. Next to nothing is spent on padding, and the place in the stream is two
numbers: the window and the batch within it.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whence.corpus.base import Corpus, Document, Question
from whence.errors import WhenceError
from whence.objective import (
    OBJECTIVES,
    Objective,
    PickedSpan,
    QuestionAnswer,
    SalientSpan,
    refuse_special,
)
from whence.picker import answers_stand, pick_spans
from whence.vocab import MASK_CHARACTER, PAD, PAD_CHARACTER, Vocab

WINDOW = 4096  # examples drawn and sorted together
PART = 2048  # positions that go forward and backward together
ABOUT_PEOPLE = {"salient", "picked"}  # objectives that ask for a span by a person's name


class Row(NamedTuple):
    """One example before it is padded."""

    inputs: list[int]
    targets: list[int]
    reading: list[bool]  # where it looks at a word memory and must not write it


@dataclass(frozen=True)
class Batch:
    """One step's examples, padded to the longest of them."""

    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    reading: Tensor  # (B, T) where a word memory is looked at and must not be written
    examples: int
    characters: int  # inputs that are not padding


@dataclass(frozen=True)
class Place:
    """How far a stream has been read."""

    window: int = 0
    batch: int = 0


def seeded(*parts: object) -> random.Random:
    """A generator that depends on all the parts and on nothing else, on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))


class Batches:
    """An endless stream of batches for one stage."""

    def __init__(
        self,
        corpus: Corpus,
        vocab: Vocab,
        mixture: Mapping[str, float],
        *,
        block: int,
        positions: int,
        seed: int,
        stage: str,
        words_before: int = 3,
        numbers: bool = True,
        picked_share: float = 0.95,
        multiple: int = 1,
    ) -> None:
        """`multiple`: what lengths are rounded up to, if the block has the room."""
        self.vocab = vocab
        self.positions = positions
        self.longest, self.multiple = block - 1, multiple
        self.seed = seed
        self.stage = stage
        check_mixture(corpus, vocab, mixture, block)
        self.objectives = {
            name: make_objective(name, corpus, block, words_before, numbers, picked_share)
            for name in mixture
        }
        self.documents = corpus.documents() if set(mixture) & ABOUT_PEOPLE else []
        self.picked: dict[str, int] = {}
        for objective in self.objectives.values():
            if isinstance(objective, PickedSpan):
                self.picked = count_picked(self.documents, corpus.questions("train"), objective)
        total = sum(mixture.values())
        self.shares = {name: share / total for name, share in mixture.items()}
        self.items: dict[str, Sequence[Document | Question]] = {
            name: _items(corpus, name) for name in mixture
        }
        self.window_size = WINDOW

    def remarks(self) -> list[str]:
        """What whoever starts this training should know."""
        found = []
        if self.picked:
            found.append(
                "the picker chose a span in {chosen:,} of {documents:,} documents; it finds "
                "{found:,} of the {asked:,} training answers that it was fitted on".format(
                    **self.picked
                )
            )
        nameless = sum(not document.name for document in self.documents)
        if nameless:
            found.append(
                f"{nameless:,} of {len(self.documents):,} documents are about nobody that is asked "
                "about: their spans are asked for without a name"
            )
        return found

    @property
    def main(self) -> str:
        """The largest part of the mixture, by which epochs are counted."""
        return max(self.shares, key=lambda name: self.shares[name])

    def epochs(self, examples: float) -> float:
        """How many passes over the main part so many examples make."""
        return examples * self.shares[self.main] / len(self.items[self.main])

    def read(self, place: Place) -> Iterator[tuple[Batch, Place]]:
        """Batches from `place` on, each with the place that follows it."""
        window, skip = place.window, place.batch
        while True:
            batches = self.window(window)
            for number in range(skip, len(batches)):
                following = Place(window, number + 1)
                yield self.collate(batches[number]), following
            window, skip = window + 1, 0

    def window(self, number: int) -> list[list[Row]]:
        """The batches of one window, in their shuffled order."""
        draws: list[Row] = []
        for name, objective in self.objectives.items():
            draws += self._draw(name, objective, number)
        draws.sort(key=lambda row: len(row.inputs), reverse=True)
        batches = []
        while draws:
            rows = self.rows(self.padded(len(draws[0].inputs)))
            batches.append(draws[:rows])
            draws = draws[rows:]
        seeded(self.seed, self.stage, "order", number).shuffle(batches)
        return batches

    def _draw(self, name: str, objective: Objective, window: int) -> list[Row]:
        # By cumulative shares, so that the n-th example of a part is known without the others.
        share = self.shares[name] * self.window_size
        first, last = int(share * window), int(share * (window + 1))
        items = self.items[name]
        generator = seeded(self.seed, self.stage, name, window)
        orders: dict[int, list[int]] = {}
        draws = []
        for count in range(first, last):
            epoch, offset = divmod(count, len(items))
            if epoch not in orders:
                orders[epoch] = list(range(len(items)))
                seeded(self.seed, self.stage, name, "epoch", epoch).shuffle(orders[epoch])
            item = items[orders[epoch][offset]]
            inputs, targets = objective.draw(item, self.vocab, generator)
            draws.append(Row(inputs, targets, only_read(item, len(inputs))))
        return draws

    def rows(self, length: int) -> int:
        """How many examples of a length are a step: as many in each part, if it has as many as
        `parts_of` says."""
        rows = max(1, self.positions // length)
        parts = parts_of(rows * length)
        return max(1, rows // parts * parts)

    def padded(self, length: int) -> int:
        return max(length, min(-(-length // self.multiple) * self.multiple, self.longest))

    def collate(self, draws: list[Row]) -> Batch:
        """Pad the rows to the longest of them, or a little more."""
        length = self.padded(max(len(row.inputs) for row in draws))
        blank = [PAD] * length
        return Batch(
            torch.tensor([row.inputs + blank[len(row.inputs) :] for row in draws]),
            torch.tensor([row.targets + blank[len(row.inputs) :] for row in draws]),
            torch.tensor(
                [row.reading + row.reading[-1:] * (length - len(row.reading)) for row in draws]
            ),
            len(draws),
            sum(len(row.inputs) for row in draws),
        )


def parts_of(positions: int) -> int:
    """In how many parts so many positions go forward and backward: about equal ones.

    A few rows that are left over would cost a pass of their own, so the last tenth does not count.
    """
    return max(1, math.ceil(positions / PART - 0.1))


def only_read(item: Document | Question, length: int) -> list[bool]:
    """Where an example must not write a word memory: in a question, all but the question's words.

    Name and answer are not among them; where the name does not stand in the text, nothing is.
    """
    if isinstance(item, Document):
        return [False] * length
    if not item.name or item.name not in item.text:
        return [True] * length
    reading = [False] * len(item.text) + [True] * (length - len(item.text))
    for name in re.finditer(re.escape(item.name), item.text):
        reading[name.start() : name.end()] = [True] * len(item.name)
    return reading


def check_mixture(corpus: Corpus, vocab: Vocab, mixture: Iterable[str], block: int) -> None:
    """Refuse what would stop a training later: before the first step, not in the night."""
    for name in mixture:
        if name not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise WhenceError(f"unknown objective {name!r} in a mixture; known: {known}")
        items = _items(corpus, name)
        if name in ABOUT_PEOPLE:
            _refuse_nameless(corpus, name)
        if name != "questions":
            _refuse_unknown_characters(name, items, vocab)
            continue
        for number, item in enumerate(items):
            try:
                QuestionAnswer(block).draw(item, vocab, random.Random(0))
            except WhenceError as error:
                raise WhenceError(f"{corpus.place_of('train', number)}: {error}") from None


def make_objective(
    name: str, corpus: Corpus, block: int, words_before: int, numbers: bool, picked_share: float
) -> Objective:
    """The objective that a mixture names; a picked span first needs its picker."""
    if name == "picked":
        picks = pick_spans(corpus.documents(), corpus.questions("train"))
        return PickedSpan(block, words_before, numbers, picks, picked_share)
    if name == "salient":
        return SalientSpan(block, words_before, numbers)
    return OBJECTIVES[name](block)


def count_picked(
    documents: Sequence[Document], questions: Sequence[Question], objective: PickedSpan
) -> dict[str, int]:
    """In how many documents something was picked, and how many training answers are among it."""
    said: dict[str, set[str]] = {}
    for document, spans in objective.picks.items():
        said.setdefault(document.name, set()).update(document.text[slice(*span)] for span in spans)
    return {
        "documents": len(documents),
        "chosen": len(objective.picks),
        "asked": len(questions),
        "found": sum(question.answer in said.get(question.name, ()) for question in questions),
    }


def _refuse_nameless(corpus: Corpus, objective: str) -> None:
    """Spans that are asked for by name need names, and a picker something to learn from."""
    documents, questions = corpus.documents(), corpus.questions("train")
    known = answers_stand(documents, questions) if objective == "picked" else True
    if known and any(document.name for document in documents):
        return
    nameless = sum(not question.name for question in questions)
    lacking = (
        "there is nothing to learn picking from, no training answer stands in a document about its "
        "person"
        if objective == "picked"
        else f"{objective!r} asks for spans by a name, and no document is about anybody asked about"
    )
    own = f" ({nameless} questions have a form of their own)" if nameless else ""
    raise WhenceError(f"{corpus.name}: {lacking}{own}")


def _items(corpus: Corpus, objective: str) -> Sequence[Document | Question]:
    items: Sequence[Document | Question]
    items = corpus.questions("train") if objective == "questions" else corpus.documents()
    if not items:
        raise WhenceError(f"{corpus.name} has nothing to train {objective!r} on")
    return items


def _text(item: Document | Question) -> str:
    return item.text + (item.answer or "") if isinstance(item, Question) else item.text


def _refuse_unknown_characters(
    name: str, items: Sequence[Document | Question], vocab: Vocab
) -> None:
    joined = "".join(_text(item) for item in items)
    if MASK_CHARACTER in joined or PAD_CHARACTER in joined:
        for item in items:
            refuse_special(_text(item))
    unknown = vocab.unknown(joined)
    if unknown:
        guilty = next(item for item in items if set(unknown) & set(_text(item)))
        raise WhenceError(
            f"{name}: {len(unknown)} characters are not in the vocabulary, "
            f"the first is {unknown[0]!r} in {_text(guilty)[:60]!r}"
        )
