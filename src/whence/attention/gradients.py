"""Gradients that are written by hand and have none themselves, and whether any are wanted."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def asked_for(*given: Tensor | None) -> bool:
    """Whether there will be a gradient of any of these: what it needs has to be kept."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)


def refuse_tangents(*given: Tensor | None) -> None:
    """For operators that have no forward derivative: torch would drop it without a word."""
    if forward_ad._current_level < 0:
        return
    tangents = (forward_ad.unpack_dual(x).tangent for x in given if x is not None)  # type: ignore[no-untyped-call]
    if any(tangent is not None for tangent in tangents):
        raise RuntimeError("this attention has no forward derivative")


def final(compute: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[Any, ...]:
    """`compute(*given)`, of which a derivative is refused: written in place, it would be wrong.

    To be called in the `backward` of a torch function. It is a function itself, so that a second
    derivative always comes by here. (torch's `once_differentiable` is passed over where the input
    is reached on another way as well.)
    """
    found: tuple[Any, ...] = _Final.apply(compute, *given)  # type: ignore[no-untyped-call]
    return found


class _Final(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[Any, ...]:
        like = next(x for x in given if isinstance(x, Tensor))
        with torch.autocast(like.device.type, enabled=False):
            return compute(*given)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError("this attention has no second derivative")
