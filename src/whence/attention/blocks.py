"""Softmax attention over chosen blocks of keys, for graphs such as BigBird's.

Shape letters: B batch, H heads, d head width, P positions of a block, Q blocks of queries,
K chosen blocks of keys per block of queries.

Blocks of queries are taken a few at a time: their keys are gathered, and scores, softmax and
mixture are made while they are in the processor's cache. The gradient repeats this instead of
keeping the T x K P weights, so memory is that of the inputs. An opaque operator, as in `scan.py`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Numbers of the scores that are held at a time.
HELD = 1 << 20


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
    result: Tensor = _attend(queries, keys, values, neighbours, padding, block, diagonal)
    return result


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
        B, H, length, d = queries.shape
        self.B, self.H, self.P, self.d, self.c = B, H, block, d, values.shape[-1]
        self.Q, self.K = length // block, neighbours.shape[-1]
        self.blocks = keys.shape[2] // block
        self.diagonal, self.neighbours = diagonal, neighbours
        self.scale = d**-0.5
        self.queries = queries.reshape(B, H, self.Q, block, d)
        self.keys = keys.reshape(-1, block * d)
        self.values = values.reshape(-1, block * self.c)
        # Rows of `keys` and `values`, one for each block of each head of each batch element.
        first = torch.arange(B * H, device=keys.device).view(B, H, 1, 1) * self.blocks
        self.rows = neighbours.clamp(min=0) + first
        self.hidden_later = torch.ones(block, block, dtype=torch.bool, device=keys.device).triu(1)
        self.padding = None if padding is None else padding.view(B, self.blocks, block)

    def groups(self) -> Iterator[slice]:
        size = max(1, HELD // (self.B * self.H * self.P * self.K * self.P))
        for start in range(0, self.Q, size):
            yield slice(start, min(start + size, self.Q))

    def gather(self, group: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries (N,P,d), keys (N,K P,d), values (N,K P,c) and their rows, N = B H Q'."""
        rows = self.rows[:, :, group].reshape(-1)
        q = self.queries[:, :, group].reshape(-1, self.P, self.d) * self.scale
        k = self.keys.index_select(0, rows).view(-1, self.K * self.P, self.d)
        v = self.values.index_select(0, rows).view(-1, self.K * self.P, self.c)
        return q, k, v, rows

    def weigh(self, q: Tensor, k: Tensor, group: slice) -> Tensor:
        """Softmax of the scores (N,P,K P); a query that sees nothing has weights of zero."""
        scores = torch.bmm(q, k.mT)
        if self.diagonal:
            scores[..., : self.P].masked_fill_(self.hidden_later, -math.inf)
        chosen = self.neighbours[:, group]
        shape = (self.B, self.H, -1, self.P, self.K, self.P)
        blind = False
        if bool((chosen < 0).any()):
            scores.view(shape).masked_fill_((chosen < 0)[None, :, :, None, :, None], -math.inf)
            blind = not self.diagonal
        if self.padding is not None:
            batch = torch.arange(self.B, device=q.device).view(-1, 1, 1, 1)
            real = self.padding[batch, chosen.clamp(min=0)]  # (B,H,Q',K,P)
            scores.view(shape).masked_fill_(~real[:, :, :, None], -math.inf)
            blind = True
        if not blind:
            return scores.softmax(-1)
        nothing = scores.amax(-1, keepdim=True) == -math.inf
        return scores.softmax(-1).masked_fill_(nothing, 0.0)

    def forward(self) -> Tensor:
        out = self.queries.new_empty(self.B, self.H, self.Q, self.P, self.c)
        for group in self.groups():
            q, k, v, _ = self.gather(group)
            mixed = torch.bmm(self.weigh(q, k, group), v)
            out[:, :, group] = mixed.view(self.B, self.H, -1, self.P, self.c)
        return out.flatten(2, 3)

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient = gradient.view(self.B, self.H, self.Q, self.P, self.c)
        dq = torch.empty_like(self.queries)
        dk, dv = torch.zeros_like(self.keys), torch.zeros_like(self.values)
        for group in self.groups():
            q, k, v, rows = self.gather(group)
            p = self.weigh(q, k, group)
            up = gradient[:, :, group].reshape(-1, self.P, self.c)
            dv.index_add_(0, rows, torch.bmm(p.mT, up).view(-1, self.P * self.c))
            raw = torch._softmax_backward_data(torch.bmm(up, v.mT), p, -1, p.dtype)
            dk.index_add_(0, rows, torch.bmm(raw.mT, q).view(-1, self.P * self.d))
            to_q = torch.bmm(raw, k).mul_(self.scale)
            dq[:, :, group] = to_q.view(self.B, self.H, -1, self.P, self.d)
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
) -> Tensor:
    return _Tiles(queries, keys, values, neighbours, padding, block, diagonal).forward()


@torch.library.custom_op("whence::block_attention_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    tiles = _Tiles(queries, keys, values, neighbours, padding, block, diagonal)
    return tiles.backward(gradient.contiguous())


@_attend.register_fake
def _(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    padding: Tensor | None,
    block: int,
    diagonal: bool,
) -> Tensor:
    return queries.new_empty(*queries.shape[:3], values.shape[-1])


@_attend_backward.register_fake
def _(
    gradient: Tensor,
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


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    results = _attend_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return (*results, None, None, None, None)


_attend.register_autograd(_gradients, setup_context=_remember)
