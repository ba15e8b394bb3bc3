"""Queries, and keys and values of pooled positions, as one function with gradients of its own.

    q = x W_q^T,   k = (E^T s) W_k^T,   v = (F^T s) W_v^T        (and biases, pooled as well)

E^T s and F^T s are one product, and so are the gradients of E and F and what both leave for s: of a
short text, where every call counts, that is a third of a layer's time.

Shape letters: B batch, T queries, S sources, D width, m slots, M slots of E and F together (2 m, or
m where both are the same).
"""

from typing import Any

import torch
from torch import Tensor

from whence.attention.linear import linear, outer, product


def pooled_heads(
    x: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor, shared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(B,T,D), (B,S,D), (3 D,D), (3 D) or None, (S,M) -> (B,T,D), (B,m,D), (B,m,D)."""
    make = _Pooled.apply if torch.is_grad_enabled() else pooled_parts
    queries, keys, values, _ = make(x, source, weight, bias, slots, shared)
    return queries, keys, values


def pooled_parts(
    x: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor, shared: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values, and the pooled positions (B,M,D) of which the last two are made."""
    by_query, by_key, by_value = weight.chunk(3)
    pooled = product(slots.mT[None], source)
    of_keys, of_values = halves(pooled, shared)
    keys, values = linear(of_keys, by_key), linear(of_values, by_value)
    if bias is None:
        return linear(x, by_query), keys, values, pooled
    to_query, to_key, to_value = bias.chunk(3)
    masses = halves(slots.sum(0)[None, :, None], shared)
    keys.addcmul_(masses[0], to_key)
    values.addcmul_(masses[1], to_value)
    return linear(x, by_query, to_query), keys, values, pooled


def halves(pooled: Tensor, shared: bool) -> tuple[Tensor, ...]:
    """Of keys and of values, along the slots."""
    return (pooled, pooled) if shared else pooled.chunk(2, 1)


def all_rows(x: Tensor) -> Tensor:
    """(B,n,D) -> (n, B D)."""
    return x.transpose(0, 1).flatten(1)


class _Pooled(torch.autograd.Function):
    """What was pooled is a result too: second derivatives go through it."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *tensors, ctx.shared = given
        found = pooled_parts(*given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, found[3])
        return found

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_autocast_enabled("cpu"):  # what was made in float32 has gradients in float32
            with torch.autocast("cpu", enabled=False):
                return _Pooled.backward(ctx, *given)
        x, source, weight, bias, slots, pooled = ctx.saved_tensors
        by_query, by_key, by_value = weight.chunk(3)
        of_keys, of_values = halves(pooled, ctx.shared)
        to_queries, to_keys, to_values = (
            torch.zeros_like(like) if up is None else up
            for up, like in zip(given[:3], (x, of_keys, of_values), strict=True)
        )
        through = [linear(to_keys, by_key.mT), linear(to_values, by_value.mT)]
        joined = through[0] + through[1] if ctx.shared else torch.cat(through, 1)
        if given[3] is not None:
            joined = joined + given[3]
        of_x = of_source = of_weight = of_bias = to_masses = None
        if ctx.needs_input_grad[0]:
            of_x = linear(to_queries, by_query.mT)
        if ctx.needs_input_grad[1]:
            of_source = product(slots[None], joined)
        if ctx.needs_input_grad[2]:
            pairs = ((to_queries, x), (to_keys, of_keys), (to_values, of_values))
            of_weight = torch.cat([outer(up.flatten(0, 1), of.flatten(0, 1)) for up, of in pairs])
        if bias is not None:
            _, key_bias, value_bias = bias.chunk(3)
            masses = halves(slots.sum(0)[None], ctx.shared)
            asked, key, value = (up.sum(0) for up in (to_queries, to_keys, to_values))
            of_bias = torch.cat([asked.sum(0), (masses[0] @ key)[0], (masses[1] @ value)[0]])
            each = [key @ key_bias, value @ value_bias]
            to_masses = each[0] + each[1] if ctx.shared else torch.cat(each)
        of_slots = linear(all_rows(source), all_rows(joined), to_masses)
        return of_x, of_source, of_weight, of_bias, of_slots, None
