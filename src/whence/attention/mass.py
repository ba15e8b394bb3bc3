"""The running log-sum-exp: L_t = log sum_{j<=t} exp(k_j), the mass that a running average has seen.

Torch's own logcumsumexp takes as long as a whole scan, and its gradient three times that. Here the
exponentials share a reference within a segment, as in `walk.py`, and the gradient

    dk_j = sum_{t>=j} exp(k_j - L_t) dL_t

is one cumulative sum from the end.

Shape letters: N batch times heads, T positions, M features.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.attention.walk import CHUNK, FLOOR, SEGMENT, Segment, segments


def running_logsumexp(key_log: Tensor) -> Tensor:
    """(..., T, M) -> (..., T, M); where nothing but -inf was seen, FLOOR (about -1e30)."""
    full = torch.float64 if key_log.dtype == torch.float64 else torch.float32
    flat = key_log.to(full).reshape(-1, *key_log.shape[-2:])
    result: Tensor = _mass(flat).reshape(key_log.shape)
    return result


def _segments(key_log: Tensor) -> Iterator[Segment]:
    N, T, M = key_log.shape
    return segments(lambda start, stop: key_log[:, start:stop], T, SEGMENT // (N * M), CHUNK)


@torch.library.custom_op("whence::running_logsumexp", mutates_args=())
def _mass(key_log: Tensor) -> Tensor:
    out, finite = _sum_up(key_log)
    if not finite:
        # A NaN or infinity makes NaN of the results from its position on, and of none before.
        after = (~(key_log < torch.inf)).any(-1, keepdim=True).cumsum(1) > 0
        out = _sum_up(key_log.masked_fill(after, FLOOR))[0].masked_fill_(after, torch.nan)
    return out


def _sum_up(key_log: Tensor) -> tuple[Tensor, bool]:
    out = torch.empty_like(key_log)
    N, _, M = key_log.shape
    seen, before = key_log.new_zeros(N, 1, M), None
    for start, stop, _, top, _ in _segments(key_log):
        assert top is not None
        if before is not None and before is not top:
            seen = seen * (before - top).exp_()
        here = (key_log[:, start:stop] - top).exp_().cumsum_(1).add_(seen)
        seen, before = here[:, -1:], top
        out[:, start:stop] = here.log().add_(top).clamp_(min=FLOOR)
    return out, bool(seen.isfinite().all())


@torch.library.custom_op("whence::running_logsumexp_backward", mutates_args=())
def _mass_backward(gradient: Tensor, key_log: Tensor, out: Tensor) -> Tensor:
    result = torch.empty_like(key_log)
    N, _, M = key_log.shape
    asked, after = key_log.new_zeros(N, 1, M), None
    for start, stop, _, top, _ in reversed(list(_segments(key_log))):
        assert top is not None
        if after is not None and after is not top:
            asked = asked * (top - after).exp_()
        here = (top - out[:, start:stop]).exp_().mul_(gradient[:, start:stop])
        here = here.flip(1).cumsum_(1).flip(1).add_(asked)
        asked, after = here[:, :1], top
        result[:, start:stop] = here * (key_log[:, start:stop] - top).exp_()
    return result


@_mass.register_fake
def _(key_log: Tensor) -> Tensor:
    return key_log.new_empty(key_log.shape)


@_mass_backward.register_fake
def _(gradient: Tensor, key_log: Tensor, out: Tensor) -> Tensor:
    return key_log.new_empty(key_log.shape)


def _remember(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
    key_log, out = ctx.saved_tensors
    result: Tensor = _mass_backward(gradient, key_log, out)
    return result


_mass.register_autograd(_gradient, setup_context=_remember)
