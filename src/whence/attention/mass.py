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

    def logs(start: int, stop: int) -> tuple[Tensor, Tensor]:
        return key_log[:, start:stop], key_log[:, start:stop]

    return segments(logs, T, SEGMENT // (N * M), CHUNK)


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
        here = key_log[:, start:stop]
        if top is not None and before is not top:
            seen = seen * (top.neg().clamp_(max=0.0) if before is None else before - top).exp_()
        here = (here.exp() if top is None else (here - top).exp_()).cumsum_(1).add_(seen)
        seen, before = here[:, -1:].clone(), top
        here.log_()
        out[:, start:stop] = (here if top is None else here.add_(top)).clamp_(min=FLOOR)
    return out, bool(seen.isfinite().all())


@torch.library.custom_op("whence::running_logsumexp_backward", mutates_args=())
def pull_logsumexp(gradient: Tensor, key_log: Tensor, out: Tensor) -> Tensor:
    result = torch.empty_like(key_log)
    N, _, M = key_log.shape
    asked, after = key_log.new_zeros(N, 1, M), None
    for start, stop, _, top, _ in reversed(list(_segments(key_log))):
        window = slice(start, stop)
        if after is not None and after is not top:
            asked = asked * (after.neg().clamp_(max=0.0) if top is None else top - after).exp_()
        here = (out[:, window].neg() if top is None else top - out[:, window]).exp_()
        asked_here = gradient[:, window]
        # A slot that nothing has entered is hidden, so nobody asks; its sum is nothing, too.
        here.mul_(asked_here).masked_fill_(asked_here == 0, 0.0)
        # The sum from the end is the sum of all less the sum from the start, up to rounding that
        # would be large where the terms are not alike: so it is really taken from the end.
        here = here.flip(1).cumsum_(1).flip(1).add_(asked)
        asked, after = here[:, :1], top
        lowered = key_log[:, window] if top is None else key_log[:, window] - top
        result[:, window] = here * lowered.exp()
    return result


@_mass.register_fake
def _(key_log: Tensor) -> Tensor:
    return key_log.new_empty(key_log.shape)


@pull_logsumexp.register_fake
def _(gradient: Tensor, key_log: Tensor, out: Tensor) -> Tensor:
    return key_log.new_empty(key_log.shape)


def _remember(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
    key_log, out = ctx.saved_tensors
    result: Tensor = pull_logsumexp(gradient, key_log, out)
    return result


_mass.register_autograd(_gradient, setup_context=_remember)
