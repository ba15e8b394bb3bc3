"""The gradient of a batch, part by part, as many parts at a time as there are lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from whence.attention.dropout import drawing_from
from whence.batches import Batch, parts_of
from whence.lanes import Lanes
from whence.precision import products
from whence.vocab import PAD

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Parts = tuple[Tensor | None, ...]


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
