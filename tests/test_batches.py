"""The stream of batches: a pure function of seed, stage and place, and nothing gets lost in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import NAMES, TinyCorpus, sentence
from whence.batches import Batch, Batches, Place, seeded
from whence.corpus.base import Document, Question
from whence.errors import WhenceError
from whence.vocab import MASK, PAD, Vocab

MIXED = {"spans": 2.0, "salient": 1.0, "questions": 1.0}


def stream(
    corpus: TinyCorpus, mixture: Mapping[str, float] = MIXED, window: int = 200, **changes: Any
) -> Batches:
    settings: dict[str, Any] = {"block": 64, "positions": 512, "seed": 1, "stage": "pretrain"}
    vocab = Vocab.from_text(corpus.vocabulary_text())
    batches = Batches(corpus, vocab, mixture, **{**settings, **changes})
    batches.window_size = window
    return batches


def first(batches: Batches, count: int, place: Place | None = None) -> list[tuple[Batch, Place]]:
    return list(islice(batches.read(place or Place()), count))


def same(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.inputs, other.inputs)
        and torch.equal(one.targets, other.targets)
        and (one.examples, one.characters) == (other.examples, other.characters)
    )


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The examples of a batch without their padding."""
    rows = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        while inputs and inputs[-1] == PAD:
            assert targets[len(inputs) - 1] == PAD
            inputs.pop()
        rows.append((inputs, targets[: len(inputs)]))
    return [row for row in rows if row[0]]


def test_reading_on_at_any_place_gives_the_same_stream(corpus: TinyCorpus) -> None:
    whole = first(stream(corpus), 60)
    assert whole[-1][1].window >= 2
    for number in range(0, 60, 7):
        place = whole[number][1]
        for (batch, after), (expected, expected_after) in zip(
            first(stream(corpus), 59 - number, place),
            whole[number + 1 :],
            strict=True,
        ):
            assert same(batch, expected) and after == expected_after


@pytest.mark.parametrize("change", [{"seed": 2}, {"stage": "finetune"}])
def test_seed_and_stage_change_the_stream(corpus: TinyCorpus, change: dict[str, Any]) -> None:
    before, after = first(stream(corpus), 5), first(stream(corpus, **change), 5)
    assert not all(same(a, b) for (a, _), (b, _) in zip(before, after, strict=True))


def test_no_global_generator_decides_and_none_is_touched(corpus: TinyCorpus) -> None:
    torch.manual_seed(1)
    before = first(stream(corpus), 3)
    state = torch.random.get_rng_state()
    after = first(stream(corpus), 3)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(2)
    assert all(same(a, b) for (a, _), (b, _) in zip(before, after, strict=True))


PROGRAM = """
import hashlib
from itertools import islice
from tiny import TinyCorpus
from whence.batches import Batches, Place
from whence.vocab import Vocab
corpus = TinyCorpus()
batches = Batches(corpus, Vocab.from_text(corpus.vocabulary_text()),
    {"picked": 1.0, "spans": 1.0}, block=64, positions=512, seed=1, stage="a")
digest = hashlib.sha256()
for batch, _ in islice(batches.read(Place()), 8):
    digest.update(batch.inputs.numpy().tobytes() + batch.targets.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_the_stream_is_the_same_in_every_process() -> None:
    """Python's hashes of text differ from process to process; the batches must not."""
    found = set()
    for seed in "0", "77":
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.path.dirname(__file__),
        }
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def drawn_items(batches: Batches, name: str, windows: int) -> list[int]:
    """Which items the windows draw, in the order of drawing."""
    drawn: list[int] = []
    items = batches.items[name]
    numbers = {id(item): number for number, item in enumerate(items)}

    class Spy:
        block = 64

        def draw(self, item: Any, vocab: Any, generator: Any) -> Any:
            drawn.append(numbers[id(item)])
            return [MASK], [MASK]

    for window in range(windows):
        batches._draw(name, Spy(), window)  # type: ignore[arg-type]
    return drawn


def test_every_document_comes_once_an_epoch(corpus: TinyCorpus) -> None:
    batches = stream(corpus, {"spans": 1.0}, window=100)
    drawn = drawn_items(batches, "spans", 12)
    count = len(corpus.documents())
    assert len(drawn) == 1200
    epochs = [drawn[i : i + count] for i in range(0, len(drawn) - count, count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)  # in another order each time
    assert batches.epochs(1200) == 1200 / count


@given(
    st.dictionaries(
        st.sampled_from(["spans", "next", "salient", "questions"]),
        st.floats(0.01, 100),
        min_size=1,
    )
)
@settings(max_examples=25)
def test_shares_of_a_mixture_are_kept(mixture: dict[str, float]) -> None:
    batches = stream(TinyCorpus(), mixture, window=200)
    counts = {name: len(drawn_items(batches, name, 10)) for name in mixture}
    total = sum(mixture.values())
    for name, share in mixture.items():
        assert abs(counts[name] - 2000 * share / total) <= 1
    main = max(mixture, key=lambda name: mixture[name])
    assert mixture[batches.main] == mixture[main]


def test_nothing_is_dropped_shifted_or_cut(corpus: TinyCorpus) -> None:
    """All draws of a window come back out of its batches, whole, and nothing else does."""
    batches = stream(corpus, window=300)
    expected = Counter(
        (tuple(inputs), tuple(targets))
        for name, objective in batches.objectives.items()
        for inputs, targets, _ in batches._draw(name, objective, 0)
    )
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for batch, place in batches.read(Place()):
        if place.window > 0:
            break
        rows = rows_of(batch)
        assert len(rows) == batch.examples
        assert sum(len(inputs) for inputs, _ in rows) == batch.characters
        assert batch.inputs.shape == batch.targets.shape
        assert batch.inputs.numel() <= batches.positions
        found.update((tuple(inputs), tuple(targets)) for inputs, targets in rows)
    assert found == expected


def test_little_is_spent_on_padding() -> None:
    people = [f"{first} {'x' * n}" for n in range(60) for first in ("Ada", "Bo")]
    corpus = TinyCorpus([Document(f"{name}. was in Rome .", name) for name in people])
    batches = stream(corpus, {"spans": 1.0}, window=4096, block=128, positions=4096)
    window = [batch for batch, place in first(batches, 60) if place.window == 0]
    used = sum(batch.characters for batch in window)
    assert used / sum(batch.inputs.numel() for batch in window) > 0.95
    lengths = [batch.inputs.shape[1] for batch in window]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)  # shuffled


def test_lengths_are_rounded_up_and_nothing_else_changes(corpus: TinyCorpus) -> None:
    """Never beyond the block, which a model may not see further than."""
    plain, rounded = (
        [batch for batch, place in first(stream(corpus, multiple=n), 40) if place.window == 0]
        for n in (1, 8)
    )
    lengths = {batch.inputs.shape[1] for batch in rounded}
    assert all(length % 8 == 0 or length == 63 for length in lengths)
    assert not all(batch.inputs.shape[1] % 8 == 0 for batch in plain)
    drawn = [
        Counter(str(row) for batch in some for row in rows_of(batch)) for some in (plain, rounded)
    ]
    assert drawn[0] == drawn[1]


def test_empty_documents_and_documents_of_one_character_are_trained_on() -> None:
    corpus = TinyCorpus([Document(""), Document("a"), Document(""), *TinyCorpus().documents()])
    for name in "spans", "next", "salient", "picked":
        for batch, _ in first(stream(corpus, {name: 1.0}, window=30), 4):
            assert (batch.targets != PAD).any(1).all()


@pytest.mark.parametrize(
    ("mixture", "corpus", "reason"),
    [
        ({"span": 1.0}, TinyCorpus(), "unknown objective 'span' in a mixture; known: spans, next"),
        ({"spans": 1.0}, TinyCorpus([]), "tiny has nothing to train 'spans' on"),
        (
            {"questions": 1.0},
            TinyCorpus(questions={"train": [], "dev": [], "test": []}),
            "nothing to train 'questions' on",
        ),
        ({"spans": 1.0}, TinyCorpus([Document("a⁇b")]), "'a⁇b' holds ⁇"),
        (
            {"questions": 1.0},
            TinyCorpus(
                questions={"train": [Question("Where?", None)], "dev": [], "test": []},
            ),
            "has no answer to train on",
        ),
        (
            {"questions": 1.0},
            TinyCorpus(questions={"train": [Question("a?" * 40, "b")], "dev": [], "test": []}),
            "longer than the block of 64",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_the_first_step(
    mixture: dict[str, float], corpus: TinyCorpus, reason: str
) -> None:
    with pytest.raises(WhenceError) as error:
        stream(corpus, mixture)
    assert reason in str(error.value)


def test_characters_outside_the_vocabulary_are_refused_before_the_first_step() -> None:
    corpus = TinyCorpus([Document("abc"), Document("aβγ")])
    with pytest.raises(WhenceError) as error:
        Batches(
            corpus, Vocab.from_text("abc"), {"spans": 1}, block=64, positions=64, seed=0, stage="a"
        )
    assert str(error.value) == (
        "spans: 2 characters are not in the vocabulary, the first is 'β' in 'aβγ'"
    )


def test_seeded_depends_on_all_parts() -> None:
    numbers = {seeded(*p).random() for p in [(1,), (2,), (1, "a"), ("1",), ("1", "a"), (1, 0)]}
    assert len(numbers) == 6
    assert seeded(1, "a").random() == seeded(1, "a").random() == 0.3196711964801966


def test_a_batch_smaller_than_a_text_is_one_example(corpus: TinyCorpus) -> None:
    found = first(stream(corpus, {"spans": 1.0}, positions=1), 20)
    assert all(batch.examples == 1 for batch, _ in found)
    sizes = [batch.inputs.numel() for batch, _ in first(stream(corpus, positions=32), 20)]
    assert max(sizes) < 64


def test_what_a_picker_finds_is_said(corpus: TinyCorpus) -> None:
    assert stream(corpus).remarks() == [] and stream(corpus).picked == {}
    batches = stream(corpus, {"picked": 1.0})
    assert batches.picked == {"documents": 24, "chosen": 24, "asked": 12, "found": 12}
    [said] = batches.remarks()
    assert "in 24 of 24 documents" in said and "12 of the 12 training answers" in said


def test_documents_about_nobody_are_counted_or_refused() -> None:
    texts = [Document(sentence(name), name if number else "") for number, name in enumerate(NAMES)]
    [said] = stream(TinyCorpus(texts), {"salient": 1.0}).remarks()
    assert said.startswith("1 of 24 documents are about nobody")
    nobody = TinyCorpus([Document(text.text) for text in texts])
    with pytest.raises(WhenceError, match="'salient' asks for spans by a name"):
        stream(nobody, {"salient": 1.0})
