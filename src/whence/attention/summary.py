"""Latents that attend to all positions: softmax(L K^T) [K, V], a window of positions at a time.

Keys and values are mixed by the same weights, which are made once and never all held; the gradient
makes them again. Compare `whole.py`, whose features these exponentials are. An opaque operator, as
in `scan.py`.

Shape letters: N batch times heads, S positions, d head width, m latents, C channels.
"""

from typing import Any

import torch
from torch import Tensor

from whence.attention.walk import by_position
from whence.attention.whole import Exponentials, before_division


def summarise(
    latents: Tensor, keys: Tensor, values: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(...,m,d), (...,S,d), (...,S,C) -> the latents' keys (...,m,d) and values (...,m,C).

    A position whose `offset` (...,S,1), a constant, is infinite is not there; where none is, the
    result is zero.
    """
    full = torch.float64 if keys.dtype == torch.float64 else torch.float32
    given = [x.to(full).reshape(-1, *x.shape[-2:]) for x in (latents, keys, values)]
    if offset is not None:
        offset = offset.to(full).reshape(-1, *offset.shape[-2:])
    out, *_ = _summarise(*given, offset)
    d, C = keys.shape[-1], values.shape[-1]
    both = out.reshape(*latents.shape[:-1], d + C)
    return both[..., :d].to(values.dtype), both[..., d:].to(values.dtype)


def _joined(keys: Tensor, values: Tensor, window: slice) -> Tensor:
    """Keys, values and ones side by side: (N,L,d+C+1)."""
    ones = keys.new_ones(1, 1, 1).expand(keys.shape[0], window.stop - window.start, 1)
    return torch.cat([keys[:, window], values[:, window], ones], -1)


@torch.library.custom_op("whence::summarise", mutates_args=())
def _summarise(
    latents: Tensor, keys: Tensor, values: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (N,m,d+C), row sums (N,m,1) and the reference of the exponentials (N,1,m)."""
    N, m, d = latents.shape
    exponentials = Exponentials(keys, latents, 0.0, offset)
    with torch.autocast(keys.device.type, enabled=False):
        state = keys.new_zeros(N, m, d + values.shape[2] + 1)
        for window in exponentials.windows(keys.shape[1]):
            weights = exponentials.read_keys(window, state)
            state.baddbmm_(weights.mT, _joined(keys, values, window))
        mass = state[..., -1:].clone()
        out = state[..., :-1] / mass
        if bool((mass == 0).any()):
            out.masked_fill_(mass == 0, 0.0)
    top = keys.new_zeros(N, 1, m) if exponentials.top is None else exponentials.top
    return out, mass, top


@torch.library.custom_op("whence::summarise_backward", mutates_args=())
def _summarise_backward(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    top: Tensor,
    latents: Tensor,
    keys: Tensor,
    values: Tensor,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    d = keys.shape[2]
    to_latents = torch.zeros_like(latents)
    to_keys, to_values = by_position(keys, *keys.shape), by_position(values, *values.shape)
    exponentials = Exponentials(keys, latents, 0.0, offset)
    exponentials.top = top if bool(top.any()) else None
    with torch.autocast(keys.device.type, enabled=False):
        up = before_division(gradient, out, mass)
        for window in exponentials.windows(keys.shape[1]):
            weights = exponentials.keys_again(window)
            mixed = weights @ up[..., :-1]
            to_log = (_joined(keys, values, window) @ up.mT).mul_(weights)
            to_values[:, window] = mixed[..., d:]
            to_keys[:, window] = torch.baddbmm(mixed[..., :d], to_log, latents)
            to_latents.baddbmm_(to_log.mT, keys[:, window])
    return to_latents, to_keys, to_values


@_summarise.register_fake
def _(
    latents: Tensor, keys: Tensor, values: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    N, m, d = latents.shape
    out = keys.new_empty(N, m, d + values.shape[2])
    return out, keys.new_empty(N, m, 1), keys.new_empty(N, 1, m)


@_summarise_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    top: Tensor,
    latents: Tensor,
    keys: Tensor,
    values: Tensor,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    to_keys, to_values = by_position(keys, *keys.shape), by_position(values, *values.shape)
    return latents.new_empty(latents.shape), to_keys, to_values


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
    return (*_summarise_backward(gradient, *ctx.saved_tensors), None)


_summarise.register_autograd(_gradients, setup_context=_remember)
