"""Attention by exponential features without a mask: phi(Q) (phi(K)^T V), a segment at a time.

    phi(q)_m = exp(w_m . q),   phi(k)_m = exp(w_m . k - offset),   out = phi(q) S / phi(q) s

with S = sum_j phi(k_j) v_j and s = sum_j phi(k_j). The features of all positions are never held:
one walk over the keys makes the (M, C) state, relative to a running maximum of each feature's
logarithm, one over the queries reads it, and the gradient repeats both. Compare `scan.py`, which is
causal. An opaque operator of torch, as there.

Shape letters: N batch times heads, T queries, S keys, d head width, M features, C channels.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.attention.linear import linear
from whence.attention.walk import (
    CALM,
    FLOOR,
    LOG2E,
    SEGMENT,
    by_position,
    calm,
    length,
    seen,
    with_ones,
)


def whole_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    directions: Tensor,
    square: float,
    offset: Tensor | None,
) -> Tensor:
    """(...,T,d), (...,S,d), (...,S,C), (M,d) -> (...,T,C), with |k|^2/2 times `square`.

    A key whose `offset` (...,S,1) is infinite is not there; where none is, the result is zero.
    Directions and offset are constants.
    """
    given = (queries, keys, values)
    full = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    q, k, v = (x.to(full).reshape(-1, *x.shape[-2:]) for x in given)
    if offset is not None:
        offset = offset.to(full).reshape(-1, *offset.shape[-2:])
    out, *_ = _attend(q, k, v, directions.to(full), square, offset)
    result: Tensor = out.reshape(*queries.shape[:-1], values.shape[-1])
    return result


def hide(padding: Tensor | None, keys: Tensor) -> Tensor | None:
    """What is subtracted from the logarithms of keys (B,H,S,d): infinite for padded ones."""
    if padding is None:
        return None
    zero = torch.zeros((), dtype=keys.dtype, device=keys.device)
    return torch.where(padding, zero, math.inf)[:, None, :, None].expand(*keys.shape[:3], 1)


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """x (N,L,a), matrix (a,b) or (N,a,b) -> (N,L,b)."""
    return linear(x, matrix.mT) if matrix.dim() == 2 else x @ matrix


class Exponentials:
    """The features of one call, a window of positions at a time.

    As in the causal scan, references are subtracted only from the first logarithms on that need
    them: `top` (N,1,M) is the maximum of each feature's key logarithms, or None for zero.
    Directions are (M,d), or (N,M,d) where every head has its own. Logarithms are those to base two,
    whose exponential is the quicker function.
    """

    def __init__(
        self, keys: Tensor, directions: Tensor, square: float, offset: Tensor | None
    ) -> None:
        self.keys, self.offset = keys, offset
        self.turn, self.half = (directions * LOG2E).mT, square / 2 * LOG2E
        self.N, self.M = keys.shape[0], directions.shape[-2]
        self.top: Tensor | None = None

    def windows(self, length: int) -> Iterator[slice]:
        size = max(1, SEGMENT // (self.N * self.M))
        for start in range(0, length, size):
            yield slice(start, min(start + size, length))

    def key_logs(self, window: slice) -> Tensor:
        keys = self.keys[:, window]
        logs = times(keys, self.turn)
        if self.half:
            logs -= length(keys).square_().mul_(self.half)
        return logs if self.offset is None else logs.sub_(self.offset[:, window], alpha=LOG2E)

    def read_keys(self, window: slice, state: Tensor) -> Tensor:
        """The features of further keys; `state` is made relative to the new reference."""
        logs = self.key_logs(window)
        if self.top is None:
            if calm(logs, limit=CALM / 2 * LOG2E):
                return logs.exp2_()
            self.top = logs.new_full((self.N, 1, self.M), FLOOR)
            for past in self.windows(window.start):
                self.top.masked_fill_(seen(self.key_logs(past)), 0.0)
        before, self.top = self.top, torch.maximum(self.top, logs.amax(1, keepdim=True))
        state *= (before - self.top).exp2_().mT
        return logs.sub_(self.top).exp2_()

    def keys_again(self, window: slice) -> Tensor:
        logs = self.key_logs(window)
        return (logs if self.top is None else logs.sub_(self.top)).exp2_()

    def read_queries(self, queries: Tensor, window: slice) -> Tensor:
        logs = times(queries[:, window], self.turn)
        if self.top is None and calm(logs, limit=CALM / 2 * LOG2E):
            return logs.exp2_()
        if self.top is not None:
            logs += self.top
        # A factor of a query cancels in the division.
        return logs.sub_(logs.amax(-1, keepdim=True)).exp2_()


@torch.library.custom_op("whence::whole_attention", mutates_args=())
def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    directions: Tensor,
    square: float,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, row sums, state (N,M,C+1) and the reference of its features, -inf if it has none."""
    N, M, C = queries.shape[0], directions.shape[0], values.shape[2]
    out = by_position(values, N, queries.shape[1], C)
    mass = values.new_empty(N, queries.shape[1], 1)
    features = Exponentials(keys, directions, square, offset)
    with torch.autocast(values.device.type, enabled=False):
        state = values.new_zeros(N, M, C + 1)
        for window in features.windows(keys.shape[1]):
            b = features.read_keys(window, state)
            state.baddbmm_(b.mT, with_ones(values[:, window]))
        for window in features.windows(queries.shape[1]):
            mixed = features.read_queries(queries, window) @ state
            mass[:, window] = mixed[..., C:]
            torch.div(mixed[..., :C], mixed[..., C:], out=out[:, window])
        if bool((mass == 0).any()):
            out.masked_fill_(mass == 0, 0.0)
    # A reference may be zero everywhere and still have been used, so none is written as -inf.
    top = values.new_full((N, 1, M), -math.inf) if features.top is None else features.top
    return out, mass, state, top


def before_division(gradient: Tensor, out: Tensor, mass: Tensor) -> Tensor:
    """Gradient of the sums (N,T,C+1), row sum last, of which `out` = sums / row sum was made.

    The row sum is one more channel, whose gradient is -(gradient . out); a row that saw nothing
    has none.
    """
    up = torch.cat([gradient, -(gradient * out).sum(-1, keepdim=True)], -1).div_(mass)
    if bool((mass == 0).any()):
        up.masked_fill_(mass == 0, 0.0)
    return up


@torch.library.custom_op("whence::whole_attention_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    state: Tensor,
    top: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    directions: Tensor,
    square: float,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    C = values.shape[2]
    to_queries, to_keys, to_values = (by_position(x, *x.shape) for x in (queries, keys, values))
    to_state = torch.zeros_like(state)
    features = Exponentials(keys, directions, square, offset)
    features.top = None if bool((top == -math.inf).all()) else top
    with torch.autocast(values.device.type, enabled=False):
        up = before_division(gradient, out, mass)
        for window in features.windows(queries.shape[1]):
            a, here = features.read_queries(queries, window), up[:, window]
            to_state.baddbmm_(a.mT, here)
            to_queries[:, window] = times((here @ state.mT).mul_(a), directions)
        for window in features.windows(keys.shape[1]):
            b = features.keys_again(window)
            to_values[:, window] = b @ to_state[..., :C]
            to_log = (with_ones(values[:, window]) @ to_state.mT).mul_(b)
            shrink = to_log.sum(-1, keepdim=True).mul_(square) * keys[:, window]
            to_keys[:, window] = times(to_log, directions).sub_(shrink)
    return to_queries, to_keys, to_values


@_attend.register_fake
def _(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    directions: Tensor,
    square: float,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (N, T, _), M, C = queries.shape, directions.shape[0], values.shape[2]
    state, top = values.new_empty(N, M, C + 1), values.new_empty(N, 1, M)
    return by_position(values, N, T, C), values.new_empty(N, T, 1), state, top


@_attend_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    state: Tensor,
    top: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    directions: Tensor,
    square: float,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    to_queries, to_keys, to_values = (by_position(x, *x.shape) for x in (queries, keys, values))
    return to_queries, to_keys, to_values


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, square, offset = inputs
    ctx.save_for_backward(*output, *tensors, offset)
    ctx.square = square
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
    *saved, offset = ctx.saved_tensors
    return (*_attend_backward(gradient, *saved, ctx.square, offset), None, None, None)


_attend.register_autograd(_gradients, setup_context=_remember)
