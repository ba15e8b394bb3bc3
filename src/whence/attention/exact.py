"""Exact attention of plain numbers: torch's kernel, or a quicker way where there is one.

    out_t = sum_j e^{q_t . k_j / sqrt d} v_j / sum_j e^{q_t . k_j / sqrt d},   j <= t if causal

torch's scaled_dot_product_attention gives its small products to MKL. Where oneDNN makes twice as
much of the processor (`linear.py`), long texts are taken a head and a tile of the weights at a time
by its products (`tiles.py`). Short ones without gradients are taken all heads together, which was
measured on that kind of processor only; others keep torch's kernel.

No reference is subtracted from a row's logarithms: its sum tells afterwards whether one was needed,
and torch's kernel, which has one, takes over. The gradient makes the weights again from the
logarithm of that sum.

Shape letters: B batch, H heads, T queries, S sources, d width of a head, c of its values.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.attention import tiles
from whence.attention.beside import beside
from whence.attention.gradients import asked_for, final
from whence.attention.linear import derived, onednn_pays, plain_numbers
from whence.attention.scratch import Room, lent
from whence.attention.tiles import Graph
from whence.attention.walk import LOG2E

# Logarithms to base two of row sums: beyond, digits of small weights or sums of values are lost.
LEAST, MOST = -66.0, 100.0
NARROW = 256  # sources; the gradient's tiles are no quicker for fewer
# Numbers of the weights, of one head and of a text, between which all heads are taken together: of
# longer texts they leave the cache, and of shorter ones the calls cost more than they save.
TOGETHER, FEW = 1 << 17, 1 << 17
HELD = 1 << 19  # numbers of the weights that are written out at a time
COPIED = 1 << 16  # numbers of the queries, and of the keys ..., that are copied at a time


def exact_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """(B,H,T,d), (B,H,S,d), (B,H,S,c) -> (B,H,T,c), as scaled_dot_product_attention."""
    found = None
    # In this order: where torch's kernel is right, every question before it counts in a short text.
    asked = mask is None and not torch.compiler.is_compiling() and onednn_pays()
    if asked and suits(queries, keys, values, causal):
        if tiles_pay(queries, keys, values, causal):
            found = by_tiles(queries, keys, values, Graph(causal))
        elif together_pays(queries, keys, values):
            found = together(queries, keys, values, causal)
    if found is not None:
        return found
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)


def exact_by_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, graph: Graph, edges: Callable[[], Tensor]
) -> Tensor | None:
    """The same of a graph, if tiles that include those without an edge are quick. `edges` are made
    only then."""
    if torch.compiler.is_compiling() or not onednn_pays():
        return None
    if not suits(queries, keys, values, graph.causal):
        return None
    fits = graph.fits(queries.shape[2], keys.shape[2])
    if not (fits and tiles_pay(queries, keys, values, graph.causal)):
        return None
    return by_tiles(queries, keys, values, graph._replace(edges=edges()))


def suits(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> bool:
    """Whether this is for any of these ways. What does not fit together is torch's to refuse."""
    B, H, T, d = queries.shape
    S = keys.shape[2]
    if keys.shape != (B, H, S, d) or values.shape[:3] != keys.shape[:3] or (causal and T != S):
        return False
    if derived():
        return False
    return bool(B * H * T * S) and plain_numbers(queries, keys, values)


def tiles_pay(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> bool:
    T, S, width = queries.shape[2], keys.shape[2], min(queries.shape[3], values.shape[3])
    if asked_for(queries, keys, values) and S < NARROW:
        return False
    return tiles.pay(T, S, width, causal)


def together_pays(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    each = queries.shape[2] * keys.shape[2]
    fits = each < TOGETHER and each * queries.shape[1] >= FEW
    return fits and not asked_for(queries, keys, values)


def held(level: Tensor) -> bool:
    """Whether no row needed a reference, by the logarithms to base two of the row sums."""
    least, most = (float(x) for x in level.aminmax())
    return least >= LEAST and most <= MOST  # NaN is neither


def scaled(queries: Tensor, room: Room) -> Tensor:
    """Without gaps; logarithms are to base two, whose exponential is the quicker function."""
    out = room.take(*queries.shape)
    return torch.mul(queries, queries.shape[-1] ** -0.5 * LOG2E, out=out)


def together(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor | None:
    """All weights of some heads written out."""
    (B, H, T, _), S = queries.shape, keys.shape[2]
    queries, keys, values = (x.detach() for x in (queries, keys, values))
    out = values.new_empty(B, T, H, values.shape[3]).transpose(1, 2)
    level = values.new_empty(B, H, T, 1)
    size = max(1, HELD // (T * S))
    with lent(values) as room:
        for b, first in product(range(B), range(0, H, size)):
            room.clear()
            some = b, slice(first, first + size)
            weights = room.bmm(scaled(queries[some], room), keys[some].mT).exp2_()
            if causal:
                weights.tril_()
            level[some] = total = weights.sum(-1, keepdim=True)
            torch.div(room.bmm(weights, values[some]), total, out=out[some])
    return out if held(level.log2_()) else None


def by_tiles(queries: Tensor, keys: Tensor, values: Tensor, graph: Graph) -> Tensor | None:
    found: Tensor
    found, level = _Tiled.apply(queries, keys, values, graph)  # type: ignore[no-untyped-call]
    return found if held(level) else None


def side_by_side(B: int, H: int, each: int) -> Iterator[tuple[int, slice]]:
    """Heads that are copied without gaps at once: of short texts several, of long ones one."""
    size = max(1, COPIED // each)
    for b in range(B):
        for first in range(0, H, size):
            yield b, slice(first, min(first + size, H))


class _Tiled(torch.autograd.Function):
    """Head by head."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, graph: Graph
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, d), S, c = queries.shape, keys.shape[2], values.shape[3]
        out = values.new_empty(B, T, H, c).transpose(1, 2)
        level = values.new_empty(B, H, T)
        with lent(values) as room:
            for some in side_by_side(B, H, max(T, S) * d):
                room.clear()
                q, k, v = (scaled(queries[some], room), *map(room.copy, (keys[some], values[some])))
                for number, one in enumerate(zip(q, k, v, out[some], level[some], strict=True)):
                    tiles.attend(*one[:3], graph.of(some[1].start + number), *one[3:])
        level.log2_()
        ctx.graph = graph
        ctx.save_for_backward(queries, keys, values, out, level)
        ctx.mark_non_differentiable(level)
        return out, level

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *final(_Tiled.gradients, gradient, ctx.graph, *ctx.saved_tensors), None

    @staticmethod
    def gradients(
        gradient: Tensor,
        graph: Graph,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        level: Tensor,
    ) -> tuple[Tensor, ...]:
        """Of queries, keys and values."""
        (B, H, T, d), S = queries.shape, keys.shape[2]
        graph = graph.turned(queries, T, S)
        found = to_q, to_k, to_v = beside(queries, keys, values)
        with lent(values) as room:
            for some in side_by_side(B, H, max(T, S) * d):
                room.clear()
                q = scaled(queries[some], room)
                k, v, up = map(room.copy, (keys[some], values[some], gradient[some]))
                # What the softmax takes out of every row's gradient.
                less = torch.mul(up, out[some], out=room.take(*up.shape)).sum(-1).neg_()
                given = zip(q, k, v, up, level[some].neg(), less, strict=True)
                turned = room.take(len(q), d, T)
                results = zip(turned, to_k[some], to_v[some], room.copy(k.mT), strict=True)
                for number, (one, to_one) in enumerate(zip(given, results, strict=True)):
                    tiles.gradients(one, graph.of(some[1].start + number), to_one)
                torch.mul(turned.mT, d**-0.5, out=to_q[some])
        to_k.div_(LOG2E)  # the queries had that factor, and the root
        return found
