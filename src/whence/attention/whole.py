"""Attention by exponential features without a mask: phi(Q) (phi(K)^T V), a segment at a time.

    phi(q)_m = exp(w_m . q),   phi(k)_m = exp(w_m . k - offset),   out = phi(q) S / phi(q) s

with S = sum_j phi(k_j) v_j and s = sum_j phi(k_j). The features of all positions are never held:
one walk over the keys makes the (M, C) state, relative to a running maximum of each feature's
logarithm, one over the queries reads it, and the gradient repeats both. Compare `scan.py`, which is
causal. An opaque operator of torch, as there.

Shape letters: N batch times heads, T queries, S keys, d head width, M features, C channels.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.attention.walk import FLOOR, SEGMENT


def whole_attention(
    queries: Tensor, keys: Tensor, values: Tensor, offset: Tensor, directions: Tensor
) -> Tensor:
    """(...,T,d), (...,S,d), (...,S,C), (...,S,1), (M,d) -> (...,T,C).

    A key whose offset is infinite is not there; where none is, the result is zero.
    """
    given = (queries, keys, values, offset)
    full = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    flat = [x.to(full).reshape(-1, *x.shape[-2:]) for x in given]
    out, _, _ = _attend(*flat, directions.to(full))
    result: Tensor = out.reshape(*queries.shape[:-1], values.shape[-1])
    return result


def _windows(length: int, N: int, M: int) -> Iterator[slice]:
    size = max(1, SEGMENT // (N * M))
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _with_ones(values: Tensor) -> Tensor:
    return torch.cat([values, values.new_ones(*values.shape[:2], 1)], -1)


def _key_logs(keys: Tensor, offset: Tensor, directions: Tensor, window: slice) -> Tensor:
    return (keys[:, window] @ directions.mT).sub_(offset[:, window])


def _query_features(queries: Tensor, directions: Tensor, top: Tensor, window: slice) -> Tensor:
    raised = (queries[:, window] @ directions.mT).add_(top)
    # A factor of a query cancels in the division.
    return raised.sub_(raised.amax(-1, keepdim=True)).exp_()


@torch.library.custom_op("whence::whole_attention", mutates_args=())
def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, offset: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    N, M, C = queries.shape[0], directions.shape[0], values.shape[2]
    out = values.new_empty(N, queries.shape[1], C)
    with torch.autocast(values.device.type, enabled=False):
        top = values.new_full((N, 1, M), FLOOR)
        state = values.new_zeros(N, M, C + 1)
        for window in _windows(keys.shape[1], N, M):
            logs = _key_logs(keys, offset, directions, window)
            before, top = top, torch.maximum(top, logs.amax(1, keepdim=True))
            state *= (before - top).exp_().mT
            state.baddbmm_(logs.sub_(top).exp_().mT, _with_ones(values[:, window]))
        for window in _windows(queries.shape[1], N, M):
            mixed = _query_features(queries, directions, top, window) @ state
            total = mixed[..., C:]
            part = torch.div(mixed[..., :C], total, out=out[:, window])
            part.masked_fill_(total == 0, 0.0)
    return out, state, top


@torch.library.custom_op("whence::whole_attention_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    out: Tensor,
    state: Tensor,
    top: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offset: Tensor,
    directions: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, M, C = queries.shape[0], directions.shape[0], values.shape[2]
    to_queries, to_keys, to_values, to_offset = (
        x.new_empty(x.shape) for x in (queries, keys, values, offset)
    )
    to_state = torch.zeros_like(state)
    with torch.autocast(values.device.type, enabled=False):
        for window in _windows(queries.shape[1], N, M):
            a = _query_features(queries, directions, top, window)
            total = a @ state[..., C:]
            up, given = gradient[:, window], out[:, window]
            # The row sum is one more channel, whose gradient is -(gradient . out).
            up = torch.cat([up, -(up * given).sum(-1, keepdim=True)], -1)
            up = up.div_(total).masked_fill_(total == 0, 0.0)
            to_state.baddbmm_(a.mT, up)
            to_queries[:, window] = (up @ state.mT).mul_(a) @ directions
        for window in _windows(keys.shape[1], N, M):
            b = _key_logs(keys, offset, directions, window).sub_(top).exp_()
            to_values[:, window] = b @ to_state[..., :C]
            to_log = (_with_ones(values[:, window]) @ to_state.mT).mul_(b)
            to_offset[:, window] = -to_log.sum(-1, keepdim=True)
            to_keys[:, window] = to_log @ directions
    return to_queries, to_keys, to_values, to_offset


@_attend.register_fake
def _(
    queries: Tensor, keys: Tensor, values: Tensor, offset: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    N, M, C = queries.shape[0], directions.shape[0], values.shape[2]
    out = values.new_empty(N, queries.shape[1], C)
    return out, values.new_empty(N, M, C + 1), values.new_empty(N, 1, M)


@_attend_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    state: Tensor,
    top: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offset: Tensor,
    directions: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        queries.new_empty(queries.shape),
        keys.new_empty(keys.shape),
        values.new_empty(values.shape),
        offset.new_empty(offset.shape),
    )


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
    return (*_attend_backward(gradient, *ctx.saved_tensors), None)


_attend.register_autograd(_gradients, setup_context=_remember)
