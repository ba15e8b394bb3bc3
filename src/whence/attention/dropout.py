"""Dropout that does not spend a seventh of a training step on drawing coins.

torch's own draws one double per element, which on a CPU costs more than the matrix product beside
it is worth. Here one 64-bit draw serves four elements, 16 bits each: the probability is exact to
2^-16, and the drawing some ten times cheaper. The draws come from torch's current generator, or
from the one that `drawing_from` names: threads that train side by side must not share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

LEVELS = 1 << 16
_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside it, and in this thread only, coins are drawn from this generator."""
    before = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(before)


def draw_mask(x: Tensor, probability: float) -> Tensor:
    """Zero where an element goes, the scale that keeps the mean where it stays.

    The probability is rounded to a multiple of 2^-16.
    """
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None, generator=_generator.get())
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    # Compared into numbers: truth values that are converted take as long again.
    stays = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    coins = draws.view(torch.int16)[: x.numel()].view(x.shape)
    torch.ge(coins, dropped - LEVELS // 2, out=stays)
    return stays.mul_(LEVELS / (LEVELS - dropped))


def drop(x: Tensor, probability: float, training: bool) -> Tensor:
    """x, or in training x with elements dropped by the probability and the others scaled up."""
    if not training or round(probability * LEVELS) == 0:
        return x
    if torch.compiler.is_compiling():
        return nn.functional.dropout(x, probability)  # fused into its neighbours there
    return x * draw_mask(x, probability)


class Dropout(nn.Module):
    """`nn.Dropout` with the quicker draw."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.probability, self.training)

    def extra_repr(self) -> str:
        return f"{self.probability}"
