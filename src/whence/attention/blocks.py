"""Softmax attention over chosen blocks of keys, for graphs such as BigBird's.

Shape letters: B batch, H heads, d head width, P positions of a block, Q blocks of queries,
K chosen blocks of keys per block of queries.

Blocks of queries are taken a few at a time: their keys are gathered, and scores, softmax and
mixture are made while they are in the processor's cache. The gradient repeats this instead of
keeping the T x K P weights, from the logarithm of each row's sum, so memory is that of the inputs.
An opaque operator, as in `scan.py`.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whence.attention.walk import CALM, FLOOR, LOG2E, length

# Numbers of the scores that are held at a time: two megabytes of float32, a few times over.
HELD = 1 << 19
NOTHING = 1e-32  # exp(-CALM) = 2e-28 is the least that a row of moderate scores sums to


def block_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    *,
    block: int,
    diagonal: bool,
) -> Tensor:
    """(B,H,Q P,d), (B,H,.,d), (B,H,.,c), (H,Q,K) -> (B,H,Q P,c); lengths are multiples of `block`.

    neighbours: the blocks of keys that a block of queries sees, -1 for none. With `diagonal` the
    first of them is the queries' own, of which position i sees j <= i. padding (B,.): True is real.
    """
    kind = values.dtype
    if kind in (torch.float16, torch.bfloat16):  # sums of exponentials want more than half
        queries, keys, values = queries.float(), keys.float(), values.float()
    out: Tensor = _attend(queries, keys, values, neighbours, padding, block, diagonal)[0]
    return out.to(kind)


class _Tiles:
    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        neighbours: Tensor,
        padding: Tensor | None,
        block: int,
        diagonal: bool,
    ) -> None:
        B, H, T, d = queries.shape
        self.B, self.H, self.P, self.d, self.c = B, H, block, d, values.shape[-1]
        self.Q, self.K = T // block, neighbours.shape[-1]
        self.blocks = keys.shape[2] // block
        self.diagonal, self.neighbours = diagonal, neighbours
        self.scale = d**-0.5
        longest = float(length(queries).amax()) * float(length(keys).amax())
        self.calm = longest * self.scale <= CALM  # NaN is not
        self.queries = queries.reshape(B, H, self.Q, block, d)
        self.keys = keys.reshape(-1, block * d)
        self.values = values.reshape(-1, block * self.c)
        # Rows of `keys` and `values`, one for each block of each head of each batch element.
        first = torch.arange(B * H, device=keys.device).view(B, H, 1, 1) * self.blocks
        self.rows = neighbours.clamp(min=0) + first
        self.hidden_later = torch.ones(block, block, dtype=torch.bool, device=keys.device).triu(1)
        self.padding = None if padding is None else padding.view(B, self.blocks, block)

    def groups(self) -> Iterator[tuple[slice, int]]:
        """Blocks of queries that see the same number of blocks, as many as may be held at a time.

        Where the first neighbours are real and the others missing, as in a causal beginning, the
        missing are left out; only one between real ones has to be hidden.
        """
        places = torch.arange(1, self.K + 1, device=self.neighbours.device)
        seen = ((self.neighbours >= 0) * places).amax((0, 2)).clamp(min=1).tolist()
        start = 0
        for count, alike in groupby(seen):
            stop = start + len(list(alike))
            size = max(1, HELD // (self.B * self.H * self.P * count * self.P))
            for first in range(start, stop, size):
                yield slice(first, min(first + size, stop)), count
            start = stop

    def gather(self, group: slice, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries (N,P,d), keys (N,K P,d), values (N,K P,c) and their rows, N = B H Q'."""
        rows = self.rows[:, :, group, :count].reshape(-1)
        # Logarithms to base two: their exponential is the quicker function.
        q = self.queries[:, :, group].reshape(-1, self.P, self.d) * (self.scale * LOG2E)
        k = self.keys.index_select(0, rows).view(-1, count * self.P, self.d)
        v = self.values.index_select(0, rows).view(-1, count * self.P, self.c)
        return q, k, v, rows

    def scores(self, q: Tensor, k: Tensor, group: slice, count: int) -> Tensor:
        """(N,P,K P), -inf where a query does not see a key."""
        scores = torch.bmm(q, k.mT)
        if self.diagonal:
            scores[..., : self.P].masked_fill_(self.hidden_later, -math.inf)
        chosen = self.neighbours[:, group, :count]
        shape = (self.B, self.H, -1, self.P, count, self.P)
        if bool((chosen < 0).any()):
            scores.view(shape).masked_fill_((chosen < 0)[None, :, :, None, :, None], -math.inf)
        if self.padding is not None:
            batch = torch.arange(self.B, device=q.device).view(-1, 1, 1, 1)
            real = self.padding[batch, chosen.clamp(min=0)]  # (B,H,Q',K,P)
            scores.view(shape).masked_fill_(~real[:, :, :, None], -math.inf)
        return scores

    def forward(self) -> tuple[Tensor, Tensor]:
        """The outputs, and the logarithm (to base two) of each row's sum of exponentials."""
        out = self.queries.new_empty(self.B, self.H, self.Q, self.P, self.c)
        mass = self.queries.new_empty(self.B, self.H, self.Q, self.P, 1)
        for group, count in self.groups():
            q, k, v, _ = self.gather(group, count)
            scores = self.scores(q, k, group, count)
            top = None
            if not self.calm:
                top = scores.amax(-1, keepdim=True).clamp_(min=FLOOR)
                scores.sub_(top)
            weights = scores.exp2_()
            # More than this, by far, unless the row sees nothing: then 0 / NOTHING.
            total = weights.sum(-1, keepdim=True).clamp_(min=NOTHING)
            mixed = torch.bmm(weights, v).div_(total)
            out[:, :, group] = mixed.view(self.B, self.H, -1, self.P, self.c)
            level = total.log2_() if top is None else total.log2_().add_(top)
            mass[:, :, group] = level.view(self.B, self.H, -1, self.P, 1)
        return out.flatten(2, 3), mass.flatten(2, 3)

    def backward(
        self, gradient: Tensor, out: Tensor, mass: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.B, self.H, self.Q, self.P, -1)
        # What the softmax takes out of every row's gradient: gradient . out.
        common = (gradient * out).sum(-1, keepdim=True).view(shape)
        gradient, mass = gradient.view(shape), mass.view(shape)
        # Laid out as a compiler was told, whatever the queries' own layout.
        dq = self.queries.new_empty(self.queries.shape)
        dk, dv = torch.zeros_like(self.keys), torch.zeros_like(self.values)
        for group, count in self.groups():
            q, k, v, rows = self.gather(group, count)
            up, less, level = (
                x[:, :, group].reshape(-1, self.P, x.shape[-1]) for x in (gradient, common, mass)
            )
            weights = self.scores(q, k, group, count).sub_(level).exp2_()
            dv.index_add_(0, rows, torch.bmm(weights.mT, up).view(-1, self.P * self.c))
            raw = torch.bmm(up, v.mT).sub_(less).mul_(weights)
            dk.index_add_(0, rows, torch.bmm(raw.mT, q).view(-1, self.P * self.d))
            to_q = torch.bmm(raw, k).mul_(self.scale)
            dq[:, :, group] = to_q.view(self.B, self.H, -1, self.P, self.d)
        dk.div_(LOG2E)  # q had that factor
        lead = (self.B, self.H, -1)
        return dq.flatten(2, 3), dk.view(*lead, self.d), dv.view(*lead, self.c)


@torch.library.custom_op("whence::block_attention", mutates_args=())
def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> tuple[Tensor, Tensor]:
    with torch.autocast(values.device.type, enabled=False):
        return _Tiles(queries, keys, values, neighbours, padding, block, diagonal).forward()


@torch.library.custom_op("whence::block_attention_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast(values.device.type, enabled=False):
        tiles = _Tiles(queries, keys, values, neighbours, padding, block, diagonal)
        return tiles.backward(gradient.contiguous(), out, mass)


@_attend.register_fake
def _(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> tuple[Tensor, Tensor]:
    rows = queries.shape[:3]
    return queries.new_empty(*rows, values.shape[-1]), queries.new_empty(*rows, 1)


@_attend_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        queries.new_empty(queries.shape),
        keys.new_empty(keys.shape),
        values.new_empty(values.shape),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.settings = inputs[5:]
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    results = _attend_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return (*results, None, None, None, None)


_attend.register_autograd(_gradients, setup_context=_remember)
