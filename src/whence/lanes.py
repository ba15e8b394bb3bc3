"""The gradient of a batch, part by part: one lane a processor core, each computing with one thread.

Two threads that share every matrix product wait for each other after each of them, and what is no
product (drawing coins, copies, Python itself) is done by one while the other waits. Two lanes with
half of the rows each wait once, at the end of a step: a sixth more characters a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor

from whence.attention.dropout import drawing_from
from whence.batches import Batch, parts_of
from whence.precision import products
from whence.vocab import PAD

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Parts = tuple[Tensor | None, ...]
Result = TypeVar("Result")


class Lanes:
    """Runs tasks on `count` threads of its own; with one lane, on the caller's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: ThreadPoolExecutor | None = None
        if count == 1:
            return
        self.pool = ThreadPoolExecutor(count, "lane")
        threads = torch.get_num_threads()
        # All of them have to be there at once: torch takes the number of threads that was set last
        # for those that it has not seen yet.
        ready = Barrier(count)

        def enter() -> None:
            torch.set_num_threads(1)
            ready.wait()

        for lane in [self.pool.submit(enter) for _ in range(count)]:
            lane.result()
        torch.set_num_threads(threads)

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results in the order of the tasks, whichever was ready first."""
        if self.pool is None:
            return [task() for task in tasks]
        return [lane.result() for lane in [self.pool.submit(task) for task in tasks]]

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def backward(
    loss_of: Loss,
    parameters: Iterable[torch.nn.Parameter],
    batch: Batch,
    *,
    precision: str = "float32",
    seed: int = 0,
    lanes: Lanes | None = None,
) -> float:
    """Set the gradients of the batch's mean loss, made of some rows at a time; returns the loss.

    The parts weigh as many targets as they hold, so the sum is the gradient of the whole batch;
    but only one part's activations a lane are in memory, and they stay closer to the cache. Parts
    draw their dropout from generators of their own and are summed in their order, so that it does
    not matter which lane is quicker.
    """
    lanes = lanes or Lanes(1)
    leaves = list(parameters)
    targets = (batch.targets != PAD).sum()

    def part(number: int, inputs: Tensor, wanted: Tensor, reading: Tensor) -> tuple[float, Parts]:
        with products(precision), drawing_from(torch.Generator().manual_seed(seed + number)):
            mean = loss_of(inputs, wanted, reading)
        loss = mean * ((wanted != PAD).sum() / targets)
        return loss.item(), torch.autograd.grad(loss, leaves, allow_unused=True)

    parts = math.ceil(parts_of(batch.inputs.numel()) / lanes.count) * lanes.count
    parts = min(parts, batch.examples)
    rows = zip(
        *(tensor.tensor_split(parts) for tensor in (batch.inputs, batch.targets, batch.reading)),
        strict=True,
    )
    done = lanes.run([partial(part, number, *each) for number, each in enumerate(rows)])
    for leaf, gradients in zip(
        leaves, zip(*(found for _, found in done), strict=True), strict=True
    ):
        known = [gradient for gradient in gradients if gradient is not None]
        total = sum(known[1:], start=known[0]) if known else None
        # One that stands for many (of a plain sum) is written out: clipping works in place.
        leaf.grad = total if total is None or total.is_sparse else total.contiguous()
    return sum(value for value, _ in done)
