"""The word memory: a name has its row wherever it stands, questions read and never write."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whence.batches import only_read
from whence.config import ModelConfig, StageConfig
from whence.corpus.base import Question
from whence.errors import WhenceError
from whence.memory import WordMemory
from whence.model import GPT
from whence.optim import make_optimizers
from whence.vocab import PAD

CHARACTERS = "□⁇ .,?AaBbé1"
ORDERS = 3
texts = st.text(CHARACTERS[1:], min_size=1, max_size=30)


def memory(rows: int = 1 << 20) -> WordMemory:
    torch.manual_seed(0)
    made = WordMemory(len(CHARACTERS), 4, rows, ORDERS)
    made.mark_letters(CHARACTERS)
    return made


def encode(*written: str) -> torch.Tensor:
    longest = max(len(text) for text in written)
    return torch.tensor(
        [[CHARACTERS.index(c) for c in text.ljust(longest, "□")] for text in written]
    )


def words_at(text: str, place: int) -> list[tuple[str, ...] | None]:
    """What the definition says: the words from the last ⁇ up to here, perhaps one unfinished.

    Several words have a row only where the first and the last are capitalised, as in a name.
    """
    read = text[: place + 1]
    unfinished = read[-1].isalnum()
    read = read.rpartition("⁇")[2]
    words = re.findall(r"[^\W_]+", read)
    ends = [tuple(words[len(words) - order :]) for order in range(1, ORDERS + 1)]
    return [
        (str(unfinished), *end)
        if len(words) >= order and (order == 1 or (end[0][0].isupper() and end[-1][0].isupper()))
        else None
        for order, end in enumerate(ends, 1)
    ]


@given(texts, texts)
def test_a_row_is_a_row_of_words_and_nothing_else(one: str, other: str) -> None:
    """Two positions share a row exactly if they end the same words; no word, no row of its own."""
    table = memory()
    rows: dict[tuple[int, tuple[str, ...] | None], int] = {}
    words: dict[int, tuple[int, tuple[str, ...] | None]] = {}
    for text in (one, other):
        keys = table.keys(encode(text))[0].tolist()
        for place in range(len(text)):
            for order, named in enumerate(words_at(text, place)):
                row = keys[place][order]
                assert rows.setdefault((order, named), row) == row
                assert words.setdefault(row, (order, named)) == (order, named)
                assert (row % table.rows == 0) == (named is None)


@given(texts)
def test_no_row_depends_on_what_follows(text: str) -> None:
    table = memory(64)
    whole = table.keys(encode(text))
    assert int(whole.min()) >= 0 and int(whole.max()) < ORDERS * 64
    for length in range(1, len(text) + 1):
        assert torch.equal(table.keys(encode(text[:length])), whole[:, :length])


def test_a_name_has_the_same_rows_in_a_document_and_in_a_question() -> None:
    table = memory()
    name, document, question = "Ab Ba", "Ab Ba. a", "aA b Ab Ba 1?"
    in_document = table.keys(encode(document))[0, : len(name) + 1, :2]
    start = question.index(name)
    in_question = table.keys(encode(question))[0, start : start + len(name) + 1, :2]
    assert torch.equal(in_document[-2:], in_question[-2:])


def test_of_a_question_only_its_own_words_are_written() -> None:
    """Not the name, not the answer, and no row of several words, which might hold the name."""
    table = memory().train()
    question, answer = Question("aA Bb Ba 1 bA?", "Ab", name="Bb Ba"), "⁇Ab"
    own = [0, 1, 2, 9, 10, 11, 12, 13]  # "aA ", "1 " and "bA?"
    tokens = encode("Ab Ba. a", question.text + answer)
    reading = torch.tensor([[False] * tokens.shape[1], only_read(question, tokens.shape[1])])
    found = table(tokens, reading)
    real = tokens != PAD
    assert torch.equal(found[real], table.eval()(tokens)[real]), "both see the same rows"
    found[tokens != PAD].square().sum().backward()
    assert table.table.grad is not None
    gradient = table.table.grad.to_dense()
    moved = gradient.any(1).nonzero()[:, 0]
    document, asked = table.keys(tokens)
    expected = torch.zeros(len(table.written), dtype=torch.int64)
    for rows in (document[tokens[0] != PAD].flatten(), asked[own, 0]):
        expected.index_add_(0, rows, torch.ones_like(rows))
    assert torch.equal(table.written, expected)
    assert torch.equal(moved, expected.nonzero()[:, 0])


def test_of_a_question_without_a_known_name_nothing_is_written() -> None:
    assert all(only_read(Question("Ab Ba?", "B"), 8))
    assert all(only_read(Question("Ab Ba?", "B", name="Ab  Ba"), 8)), "spelled otherwise"
    assert only_read(Question("B, ba or B?", None, name="B"), 12) == [
        place in (0, 9, 11) for place in range(12)
    ]


def test_nothing_is_written_while_answering() -> None:
    table = memory(64).eval()
    table(encode("Ab Ba. "))
    with torch.no_grad():
        table.train()(encode("Ab Ba. "))
    assert int(table.written.sum()) == 0


def test_only_touched_rows_move() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(layers=1, heads=2, width=8, memory=32, dropout=0.0), len(CHARACTERS))
    assert model.memory is not None
    model.memory.mark_letters(CHARACTERS)
    before = model.memory.table.detach().clone()
    tokens = encode("Ab Ba. a", "1? Bb Bb")
    reading = torch.tensor([[False], [True]]).expand_as(tokens)
    optimizers = make_optimizers(model, StageConfig(steps=1, optimizer="muon", schedule="constant"))
    for _ in range(2):  # in the first step nothing but the head can move: the blocks start at zero
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        model.loss(tokens, tokens, reading).backward()
        for optimizer in optimizers:
            optimizer.step()
    moved = (model.memory.table != before).any(1).nonzero()[:, 0]
    assert set(moved.tolist()) == set(model.memory.keys(tokens)[0].flatten().tolist())


@pytest.mark.parametrize("changes", [{"memory": 1}, {"memory": -5}, {"memory_words": 0}])
def test_a_memory_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(WhenceError, match=r"model\.memory"):
        ModelConfig(**changes)  # type: ignore[arg-type]


def test_padding_moves_no_row() -> None:
    """A row that is looked up with a gradient of zero is still moved by its momentum."""
    torch.manual_seed(0)
    table = memory(64)
    optimizer = torch.optim.SparseAdam([table.table], lr=0.1)

    def step(tokens: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        table(tokens)[tokens != PAD].square().sum().backward()
        optimizer.step()

    step(encode("Ab Ba. "))  # every row that follows a finished word has momentum now
    rows = set(table.keys(encode("Ab Ba. ")).flatten().tolist())
    short = encode("Bb. Ab Ba", "Ab Ba")  # the second one is padded, and what it ends in stands on
    real = set(table.keys(short)[short != PAD].flatten().tolist())
    padded = set(table.keys(short)[short == PAD].flatten().tolist())
    idle = sorted((padded & rows) - real)
    assert idle, "a row that only padding looks up"
    before = table.table.detach()[idle].clone()
    step(short)
    assert torch.equal(table.table[idle], before)
