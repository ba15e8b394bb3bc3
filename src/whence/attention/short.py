"""Short texts: all pairs of positions written out, which is quicker there than any walk.

Plain products, with gradients written by hand: in place, since on a processor new memory for the
features of every position costs more than making them does.

Shape letters: B batch, H heads, T positions, d head width, M features, m slots.
"""

from typing import Any

import torch
from torch import Tensor

from whence.attention.base import lifted
from whence.attention.gradients import final
from whence.attention.linear import linear
from whence.attention.walk import LOG2E, length

SHORT = 128  # positions; the longest text that is written out
# Logarithm of a feature that gets no divisor. It is a bound by lengths, and features come to half
# of it; where the product of two is too large all the same, LARGEST sees it.
ROOM = 50.0
SMALLEST, LARGEST = 1e-20, 1e30  # row sums outside may have lost digits, or weights of values


def feature_pairs(
    queries: Tensor, keys: Tensor, values: Tensor, turn: Tensor, square: float
) -> Tensor | None:
    """Causal attention by exponential features, (B,H,T,d) and directions (M,d) -> (B,H,T,d).

        phi(q_t) . phi(k_j) s_j            phi(x) = exp(W x), s_j = exp(-square |k_j|^2 / 2)

    in the precision of the values. None where a row sum is too small or too large for that, or
    anything is no number: it would reach the positions before it.
    """
    queries, keys = queries.to(values.dtype), keys.to(values.dtype)
    with torch.autocast(values.device.type, enabled=False):
        found, total = _Features.apply(queries, keys, values, turn, square)  # type: ignore[no-untyped-call]
    # The last position has multiplied every value by some weight: see `Softmax.forward`.
    last = found.detach()[:, :, -1].sum(dtype=torch.float32)
    least, most = (float(x) for x in total.aminmax())
    if not (least >= SMALLEST and most <= LARGEST and bool(last.isfinite())):
        return None
    out: Tensor = found
    return out


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, turn: Tensor, square: float
    ) -> tuple[Tensor, Tensor]:
        kind, far = values.dtype, length(turn).amax()
        turned, key_length = turn.to(kind).mT, length(keys)
        by_query, _ = features(queries, turned, length(queries) * far)
        by_key, divisor = features(keys, turned, key_length * far)
        # What depends on a key alone is relative to the largest of the head, by a power of two: a
        # later key does not change how an earlier one is rounded.
        log = (divisor - key_length.square() * (square / 2)) * LOG2E
        whole = log.floor()
        scale = (log - whole).exp2_().to(kind)
        scale *= (whole - whole.amax(-2, keepdim=True)).exp2_().to(kind)
        kernel = (by_query @ by_key.mul_(scale).mT).tril_()
        total = kernel.sum(-1, keepdim=True)
        out = (kernel @ values).div_(total)
        ctx.square = square
        ctx.save_for_backward(keys, values, turned, by_query, by_key, kernel, out, total)
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        found = final(_Features.gradients, gradient, ctx.square, *ctx.saved_tensors)
        return *found, None, None

    @staticmethod
    def gradients(
        gradient: Tensor,
        square: float,
        keys: Tensor,
        values: Tensor,
        turned: Tensor,
        by_query: Tensor,
        by_key: Tensor,
        kernel: Tensor,
        out: Tensor,
        total: Tensor,
    ) -> tuple[Tensor, ...]:
        """Of queries, keys and values."""
        to_mixed = gradient / total
        to_total = (to_mixed * out).sum(-1, keepdim=True)
        to_kernel = (to_mixed @ values.mT).sub_(to_total).tril_()
        of_queries = through((to_kernel @ by_key).mul_(by_query), turned.mT)
        to_key = (to_kernel.mT @ by_query).mul_(by_key)
        # A divisor is a constant: it cancels.
        of_keys = through(to_key, turned.mT)
        of_keys.addcmul_(keys, to_key.sum(-1, keepdim=True), value=-square)
        return of_queries, of_keys, kernel.mT @ to_mixed


def features(x: Tensor, turned: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x W) of (B,H,T,d) and (d,M), divided by its largest in a row where it might leave the
    numbers; and the logarithm of the divisor (B,H,T,1). `bound`: of the logarithms of each row."""
    log = through(x, turned)
    divisor = torch.zeros_like(bound)
    wild = ~(bound <= ROOM)
    if bool(wild.any()):
        # Row by row, so that a later position has no say in it.
        top = log.amax(-1, keepdim=True).masked_fill_(~wild, 0.0)
        log.sub_(top)
        divisor.copy_(top)
    return log.exp_(), divisor


def slot_pairs(
    queries: Tensor, keys: Tensor, values: Tensor, key_log: Tensor, value_log: Tensor
) -> Tensor:
    """`attend_means` of `means.py`, in the precision of the values:

    q_t . K~_i = sum_{j<=t} (q_t . k_j) e^{E_ij} / sum_{j<=t} e^{E_ij}, and the values likewise.
    """
    queries, keys = queries.to(values.dtype), keys.to(values.dtype)
    with torch.autocast(values.device.type, enabled=False):
        logs = (key_log,) if value_log is key_log else (key_log, value_log)
        weights = [log.exp() for log in lifted(*logs)]
        parts = [x.cumsum(2).reciprocal() for x in weights]
        slots = (weights[0], weights[-1], parts[0], parts[-1])
        out: Tensor = _Slots.apply(queries, keys, values, *slots)  # type: ignore[no-untyped-call]
    return out


class _Slots(torch.autograd.Function):
    """enter, leave: e^E and e^F; key_part, value_part: one divided by their running sums."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, *slots: Tensor) -> Tensor:
        enter, leave, key_part, value_part = (x.to(values.dtype) for x in slots)
        near = (queries @ keys.mT).tril_()
        scores = times(near, enter).mul_(key_part)
        chosen = scores.softmax(-1)
        weights = times(chosen * value_part, leave.mT).tril_()
        ctx.save_for_backward(queries, keys, values, near, scores, chosen, weights, *slots)
        return weights @ values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return final(_Slots.gradients, gradient, *ctx.saved_tensors)

    @staticmethod
    def gradients(
        gradient: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        near: Tensor,
        scores: Tensor,
        chosen: Tensor,
        weights: Tensor,
        *slots: Tensor,
    ) -> tuple[Tensor, ...]:
        """Of everything that `forward` was given."""
        enter, leave, key_part, value_part = (x.to(values.dtype) for x in slots)
        to_weights = (gradient @ values.mT).tril_()
        to_part = times(to_weights, leave)
        of_leave = gathered(to_weights, chosen * value_part, slots[1])
        of_value_part = summed(to_part * chosen, slots[3])
        to_scores = torch.ops.aten._softmax_backward_data(
            to_part.mul_(value_part), chosen, -1, chosen.dtype
        )
        of_key_part = summed(to_scores * scores, slots[2]).div_(slots[2])
        to_near_slots = to_scores.mul_(key_part)
        of_enter = gathered(near, to_near_slots, slots[0])
        to_near = times(to_near_slots, enter.mT).tril_()
        of_pairs = to_near @ keys, to_near.mT @ queries, weights.mT @ gradient
        return *of_pairs, of_enter, of_leave, of_key_part, of_value_part


def through(x: Tensor, matrix: Tensor) -> Tensor:
    """(B,H,T,n) @ (n,k), as one product for all heads."""
    return linear(x, matrix.mT)


def times(x: Tensor, shared: Tensor) -> Tensor:
    """(B,H,T,n) @ (1 or B, 1 or H, n, k), as one product where all heads share the second."""
    return through(x, shared[0, 0]) if shared.shape[:2] == (1, 1) else x @ shared


def gathered(x: Tensor, gradient: Tensor, shared: Tensor) -> Tensor:
    """(B,H,T,n), (B,H,T,k) -> what `times` gives the second, (1 or B, 1 or H, n, k)."""
    if shared.shape[:2] != (1, 1):
        return summed(x.mT @ gradient, shared)
    flat = linear(x.reshape(-1, x.shape[-1]).mT, gradient.reshape(-1, gradient.shape[-1]).mT)
    return flat.view(shared.shape).to(shared.dtype)


def summed(gradient: Tensor, shared: Tensor) -> Tensor:
    """(B,H,T,m) -> over what one (1 or B, 1 or H, T, m) serves."""
    return gradient.sum_to_size(shared.shape[0], shared.shape[1], *gradient.shape[2:]).to(
        shared.dtype
    )
