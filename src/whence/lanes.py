"""The gradient of a batch, part by part: one lane a processor core, each computing with one thread.

Two threads that share every matrix product wait for each other after each of them, and what is no
product (drawing coins, copies, Python itself) is done by one while the other waits. Two lanes with
half of the rows each wait once, at the end of a step: a seventh more characters a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Lock
from types import TracebackType

import torch
from torch import Tensor

from whence.attention.dropout import drawing_from
from whence.batches import Batch, parts_of
from whence.precision import products
from whence.vocab import PAD

# Multiplications by the blocks' matrices that are worth a lane, forward. With fewer, lanes mostly
# wait for Python, which runs one of them at a time (measured at 0.2 and 3 thousand millions).
WORTH = 10**9

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Parts = tuple[Tensor | None, ...]


class Lanes:
    """Runs tasks on `count` threads of its own; with one lane, on the caller's.

    `least`: positions that are worth a lane (see `worth`).
    """

    def __init__(self, count: int, least: int = 1) -> None:
        self.count, self.least = count, least
        self.pool: ThreadPoolExecutor | None = None
        if count == 1:
            return
        self.pool = ThreadPoolExecutor(count, "lane")
        threads = torch.get_num_threads()
        # Nobody leaves before all have come, so that each is a thread of its own.
        ready = Barrier(count)

        def enter() -> None:
            torch.get_num_threads()  # a thread that has not asked is given the last number set
            torch.set_num_threads(1)
            ready.wait()

        try:
            for lane in [self.pool.submit(enter) for _ in range(count)]:
                lane.result()
        except BaseException:  # those that wait for a thread that cannot be had
            ready.abort()
            self.pool.shutdown(cancel_futures=True)
            raise
        torch.set_num_threads(threads)

    def run(self, tasks: Sequence[Callable[[], None]], at_once: int) -> None:
        """All of the tasks, begun in their order.

        `at_once`: how many of them are worth a lane. One alone has all of the caller's threads.
        """
        if self.pool is None or at_once < 2:
            for task in tasks:
                task()
            return
        waiting = deque(self.pool.submit(task) for task in tasks)
        while waiting:
            waiting.popleft().result()

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


def worth(matrices: Iterable[torch.nn.Parameter]) -> int:
    """How many positions of a model with these parameters in its blocks are worth a lane."""
    return WORTH // max(1, sum(parameter.numel() for parameter in matrices)) + 1


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
    leaves = [parameter for parameter in parameters if parameter.requires_grad]
    targets = (batch.targets != PAD).sum()

    sum_ = Sum(leaves)

    def part(number: int, inputs: Tensor, wanted: Tensor, reading: Tensor) -> None:
        with products(precision), drawing_from(torch.Generator().manual_seed(seed + number)):
            mean = loss_of(inputs, wanted, reading)
        loss = mean * ((wanted != PAD).sum() / targets)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        sum_.add(number, loss.item(), gradients)

    positions = batch.inputs.numel()
    at_once = min(lanes.count, batch.examples, max(1, positions // lanes.least))
    parts = min(batch.examples, math.ceil(parts_of(positions) / at_once) * at_once)
    rows = zip(
        *(tensor.tensor_split(parts) for tensor in (batch.inputs, batch.targets, batch.reading)),
        strict=True,
    )
    for leaf in leaves:
        leaf.grad = None
    lanes.run([partial(part, number, *each) for number, each in enumerate(rows)], at_once)
    return sum_.finish()


class Sum:
    """Loss and gradients of the parts, summed in the parts' order, whichever is ready first.

    By the lane that has the next one, with its one thread, while the others go on. The caller's
    threads would have to share the cores with the lanes, and wait for each other at every matrix.
    """

    def __init__(self, leaves: Sequence[torch.nn.Parameter]) -> None:
        self.leaves, self.loss = leaves, 0.0
        self.total: list[Tensor | None] = [None] * len(leaves)
        self.early: dict[int, tuple[float, Parts]] = {}
        self.following, self.lock = 0, Lock()

    def add(self, number: int, loss: float, gradients: Parts) -> None:
        with self.lock:
            self.early[number] = loss, gradients
            while self.following in self.early:
                loss, gradients = self.early.pop(self.following)
                self.following += 1
                self.loss += loss
                self.total = [plus(a, b) for a, b in zip(self.total, gradients, strict=True)]

    def finish(self) -> float:
        """Set the gradients; returns the loss."""
        for leaf, gradient in zip(self.leaves, self.total, strict=True):
            leaf.grad = gradient
        return self.loss


def plus(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return total
    if total is not None:
        return total + gradient
    # One number that stands for many (of a plain sum) is written out.
    return gradient if gradient.is_sparse else gradient.contiguous()
