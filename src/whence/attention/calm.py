"""The causal scan of exponential features whose sizes are known to be moderate.

    out_t = sum_{j<=t} (phi(q_t) . phi(k_j)) s_j v_j  /  sum_{j<=t} (phi(q_t) . phi(k_j)) s_j

with phi(x) = exp(W x) and s_j = exp(-square |k_j|^2 / 2 - offset_j). It is what `walk.py` computes
with directions and without references, which is nearly always; here nothing but the products is
left. What depends on a key alone multiplies the channels, of which there are fewer than features.
Exponentials are powers of two, the quicker function.

Shape letters: N batch times heads, T positions, d head width, M features, C channels and W = C + 1
with the row sum; G, n and c as in `pieces.py`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from whence.attention import walk
from whence.attention.pieces import Piece, chunks, pieces, sum_up
from whence.attention.walk import by_position, length
from whence.attention.whole import before_division

CHUNK = 32  # shorter than where logarithms are walked: sums over chunks are cheaper here


class CalmScan:
    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        offset: Tensor | None,
        directions: Tensor,
        square: float,
        chunk: int,
    ) -> None:
        self.queries, self.keys, self.values = queries, keys, values
        self.directions, self.square = directions, square
        self.turn = (directions * walk.LOG2E).mT
        (self.N, self.T, _), self.C, self.M = queries.shape, values.shape[2], len(directions)
        self.chunk = chunk
        self.offset, self.lengths = offset, length(keys)
        scale = self.lengths.square().mul_(-square / 2)
        self.scale = (scale if offset is None else scale.sub_(offset)).exp_()  # (N,T,1)

    def is_calm(self) -> bool:
        """Whether lengths alone promise that no exponential overflows: |w.x| <= |w| |x|.

        And that the values are finite: a hidden one is multiplied by zero here.
        """
        lengths = (length(self.directions), length(self.queries), self.lengths)
        turn, query, key = (float(x.amax()) for x in lengths)
        reach = turn * (query + key) + self.square / 2 * key**2
        if self.offset is not None:
            reach += float(self.offset.masked_fill(self.offset == math.inf, 0.0).abs().amax())
        return reach <= walk.CALM and math.isfinite(float(self.values.sum()))

    def pieces(self, backwards: bool = False) -> Iterator[Piece]:
        return pieces(self.N, self.T, self.M, self.chunk, backwards)

    def features(self, x: Tensor, piece: Piece) -> Tensor:
        """(G n, c, M)."""
        rows = chunks(x, piece).reshape(-1, x.shape[2])
        return (rows @ self.turn).exp2_().view(-1, piece.chunk, self.M)

    def channels(self, piece: Piece) -> Tensor:
        """(G n, c, W): the values and a column of ones, times s."""
        values, scale = chunks(self.values, piece), chunks(self.scale, piece)
        wide = values.new_empty(*values.shape[:3], self.C + 1)
        torch.mul(values, scale, out=wide[..., : self.C])
        wide[..., self.C :] = scale
        return wide.flatten(0, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and row sums; `states` (segments, N, W M) gets the state before each but one."""
        out = by_position(self.values, self.N, self.T, self.C)
        mass = out.new_empty(self.N, self.T, 1)
        state: Tensor | None = None
        for piece in self.pieces():
            a, b = self.features(self.queries, piece), self.features(self.keys, piece)
            c, n = self.channels(piece), piece.n
            mixed = torch.bmm(torch.bmm(a, b.mT).tril_(), c)
            if piece.number == 0:
                state = None
            elif state is not None:
                states[piece.number, piece.heads] = state.flatten(1)
            if not piece.alone:
                before, state = sum_up(c, b, state, n)
                mixed.baddbmm_(a, before.mT)
            mixed = mixed.view(-1, n, piece.chunk, self.C + 1)
            total = mixed[..., self.C :]
            torch.div(mixed[..., : self.C], total, out=chunks(out, piece))
            chunks(mass, piece).copy_(total)
        if self.offset is not None and bool((mass == 0).any()):
            out.masked_fill_(mass == 0, 0.0)
        return out, mass

    def backward(
        self, gradient: Tensor, out: Tensor, mass: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values."""
        given = (self.queries, self.keys, self.values)
        to_queries, to_keys, to_values = (by_position(x, *x.shape) for x in given)
        ups = before_division(gradient, out, mass)
        later: Tensor | None = None
        for piece in self.pieces(backwards=True):
            a, b = self.features(self.queries, piece), self.features(self.keys, piece)
            c, n = self.channels(piece), piece.n
            up = chunks(ups, piece).reshape(-1, piece.chunk, self.C + 1)
            near, back = torch.bmm(a, b.mT).tril_(), torch.bmm(up, c.mT).tril_()
            to_a, to_b = torch.bmm(back, b), torch.bmm(back.mT, a)
            to_c = torch.bmm(near.mT, up)
            if piece.last:
                later = None
            if not piece.alone:
                state = None
                if piece.number:
                    state = states[piece.number, piece.heads].view(n, self.C + 1, self.M)
                before, _ = sum_up(c, b, state, n)
                after, later = sum_up(up, a, later, n, backwards=True)
                to_a.baddbmm_(up, before)
                to_b.baddbmm_(c, after)
                to_c.baddbmm_(b, after.mT)
            to_a, to_b = to_a.mul_(a).view(-1, self.M), to_b.mul_(b).view(-1, self.M)
            keys = chunks(self.keys, piece)
            shape, shrink = keys.shape, to_b.sum(-1, keepdim=True).mul_(self.square)
            chunks(to_queries, piece).copy_((to_a @ self.directions).view(shape))
            turned = (to_b @ self.directions).view(shape)
            shrink = shrink.view(*shape[:3], 1)
            torch.addcmul(turned, shrink, keys, value=-1.0, out=chunks(to_keys, piece))
            wide, scale = to_c.view(-1, n, piece.chunk, self.C + 1), chunks(self.scale, piece)
            torch.mul(wide[..., : self.C], scale, out=chunks(to_values, piece))
        return to_queries, to_keys, to_values
