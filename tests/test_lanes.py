"""Parts of a batch side by side: the same gradient, the same coins, nothing lost."""

from __future__ import annotations

import io
import itertools
import threading
from pathlib import Path

import pytest
import torch

from tiny import TinyCorpus, recipe
from tiny_runs import quiet, train_tiny
from whence.attention import MECHANISMS
from whence.batches import Batch, Batches, Place
from whence.gradient import Sum, backward
from whence.lanes import Lanes, worth
from whence.model import GPT
from whence.precision import try_bfloat16
from whence.progress import Progress
from whence.run import Run
from whence.train import build_model, train
from whence.vocab import Vocab


def model_and_batch(**model: object) -> tuple[GPT, Batch]:
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    built = build_model(recipe(**{f"model__{key}": value for key, value in model.items()}), vocab)
    mixture = {"spans": 1.0, "questions": 1.0}
    batches = Batches(corpus, vocab, mixture, block=64, positions=1024, seed=0, stage="a")
    return built, next(batches.read(Place()))[0]


def gradients(model: GPT, batch: Batch, count: int, **settings: object) -> list[torch.Tensor]:
    with Lanes(count) as lanes:
        backward(model.loss, model.parameters(), batch, lanes=lanes, **settings)  # type: ignore[arg-type]
    return [
        parameter.grad.to_dense() for parameter in model.parameters() if parameter.grad is not None
    ]


@pytest.mark.parametrize("memory", [0, 64])
@pytest.mark.parametrize("attention", list(MECHANISMS))
def test_lanes_have_the_gradient_of_the_whole(attention: str, memory: int) -> None:
    model, batch = model_and_batch(attention=attention, memory=memory, dropout=0.0)
    alone = gradients(model, batch, 1)
    for count in (2, 3, batch.examples + 1):
        for one, other in zip(alone, gradients(model, batch, count), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_lanes_in_bfloat16_round_as_one_lane_does(monkeypatch: pytest.MonkeyPatch) -> None:
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    model, batch = model_and_batch(dropout=0.0)
    monkeypatch.setattr("whence.batches.PART", batch.inputs.numel() // 4)
    alone, beside = (gradients(model, batch, count, precision="bfloat16") for count in (1, 2))
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


def test_coins_are_the_part_s_own_and_not_the_quicker_lane_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = model_and_batch(dropout=0.5)
    monkeypatch.setattr("whence.batches.PART", batch.inputs.numel() // 4)
    first = gradients(model, batch, 1, seed=5)
    for _ in range(5):
        again = gradients(model, batch, 2, seed=5)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    other = gradients(model, batch, 2, seed=6)
    assert not torch.equal(first[0], other[0])


def test_rows_of_the_memory_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_and_batch(memory=64, dropout=0.0)
    memory = model.memory
    assert memory is not None
    gradients(model, batch, 1)
    expected = memory.written.clone()
    monkeypatch.setattr("whence.batches.PART", 1)  # a row a part: many of them, at the same time
    for _ in range(10):
        memory.written.zero_()
        gradients(model, batch, 4)
        assert torch.equal(memory.written, expected)


def test_two_threads_train_the_same_twice_and_leave_none_behind(tmp_path: Path) -> None:
    config = recipe(train__threads=2, train__evaluations=0, model__dropout=0.1)
    threads = torch.get_num_threads()
    try:
        one, _ = train_tiny(tmp_path / "one", config)
        assert torch.get_num_threads() == 2  # the caller's own are untouched by the lanes' one
        other, _ = train_tiny(tmp_path / "other", config)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.head.weight, other.head.weight)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]


def test_what_goes_wrong_in_a_lane_is_heard() -> None:
    model, batch = model_and_batch()

    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError("in a lane")

    with Lanes(2) as lanes, pytest.raises(ValueError, match="in a lane"):
        backward(broken, model.parameters(), batch, lanes=lanes)


def test_every_lane_computes_with_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Lanes(3) as lanes:
            for worth, threads in ((3, 1), (1, 3)):
                seen: list[int] = []
                lanes.run([lambda: seen.append(torch.get_num_threads())] * 9, worth)  # noqa: B023
                assert seen == [threads] * 9
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_parts_are_summed_in_their_order_whichever_is_ready_first() -> None:
    # In float32 the large ones cancel only if they meet first.
    found = [torch.tensor([number]) for number in (1e8, -1e8, 1.0)]
    for order in itertools.permutations(range(3)):
        leaf = torch.nn.Parameter(torch.zeros(1))
        total = Sum([leaf])
        for number in order:
            total.add(number, float(found[number]), (found[number],))
        assert total.finish() == 1.0
        assert leaf.grad is not None and leaf.grad.item() == 1.0


def test_a_parameter_that_is_not_trained_has_no_gradient() -> None:
    model, batch = model_and_batch()
    model.embedding.weight.requires_grad_(False)
    gradients(model, batch, 2)
    assert model.embedding.weight.grad is None and model.head.weight.grad is not None


def test_a_small_model_is_not_worth_a_lane() -> None:
    """Its parts would wait for Python: they have the threads that share a product instead."""
    model, batch = model_and_batch()
    seen: list[str] = []

    def loss(*given: torch.Tensor) -> torch.Tensor:
        seen.append(threading.current_thread().name)
        return model.loss(*given)

    positions = batch.inputs.numel()
    for least, name in ((positions // 2, "lane"), (positions // 2 + 1, "MainThread")):
        seen.clear()
        with Lanes(2, least) as lanes:
            backward(loss, model.parameters(), batch, lanes=lanes)
        assert seen and all(one.startswith(name) for one in seen)
    wide = torch.nn.Parameter(torch.empty(1000, 1000))
    assert worth([wide]) == 1001 and worth([wide, wide]) == 501


def test_a_training_on_lanes_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whence.lanes.WORTH", 1)  # the smallest model is worth a lane
    train_ = {"threads": 2, "evaluations": 0, "save_seconds": 0.0}
    config = recipe(train=train_, model__dropout=0.1, model__memory=64)
    threads = torch.get_num_threads()
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())

    class Stopping(Progress):
        def update(self, **news: object) -> None:
            if news["step"] == 9:
                raise KeyboardInterrupt

    try:
        whole, _ = train_tiny(tmp_path / "whole", config)
        run = Run.create(tmp_path / "stopped", config)
        with pytest.raises(KeyboardInterrupt):
            train(run, corpus, vocab, build_model(config, vocab), Stopping("test", io.StringIO()))
        model = build_model(config, vocab)
        train(Run.open(run.path), corpus, vocab, model, quiet())
    finally:
        torch.set_num_threads(threads)
    for (name, one), other in zip(
        whole.state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
