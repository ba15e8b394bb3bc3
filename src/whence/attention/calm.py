"""The causal scan of exponential features without running maxima.

    out_t = sum_{j<=t} (phi(q_t) . phi(k_j)) s_j v_j  /  sum_{j<=t} (phi(q_t) . phi(k_j)) s_j

with phi(x) = exp(W x) and s_j = exp(-square |k_j|^2 / 2 - offset_j). It is what `walk.py` computes
with directions, but no reference moves along the text. There are two ways:

- lengths promise moderate exponentials: no reference is needed, and only the products are left;
- otherwise every phi is divided by its largest feature. A query's divisor cancels in the division
  by the row sum, a key's is multiplied to s, and s of a head is relative to one constant, which
  cancels as well, the future's part in it included. That the row sums came out far from what
  float32 loses is seen afterwards (`held`); only if one did not, the walk with running references
  has to be taken.

What depends on a key alone multiplies the channels, of which there are fewer than features.
Exponentials are powers of two, the quicker function.

Shape letters: N batch times heads, T positions, d head width, M features, C channels and W = C + 1
with the row sum; G, n and c as in `pieces.py`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from whence.attention import walk
from whence.attention.linear import linear
from whence.attention.pieces import Piece, aside, chunks, pieces, sum_up
from whence.attention.scratch import Room, lent
from whence.attention.walk import by_position, length
from whence.attention.whole import before_division

CHUNK = 32  # shorter than where logarithms are walked: sums over chunks are cheaper here
# The least row sum, where s is at most about one. Products below 1e-38 are lost; a million of them
# are less than a millionth of this.
LEAST = 1e-24


class CalmScan:
    room: Room  # for what a piece is made of

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
        self.turn = directions * walk.LOG2E
        (self.N, self.T, _), self.C, self.M = queries.shape, values.shape[2], len(directions)
        self.chunk = chunk
        self.offset, self.lengths = offset, length(keys)
        self.scale_log = self.lengths.square().mul_(-square / 2 * walk.LOG2E)  # (N,T,1), base two
        if offset is not None:
            self.scale_log.sub_(offset, alpha=walk.LOG2E)
        self.divided = False

    def divide(self) -> None:
        """Divide every phi by its largest feature, and s of a head by about its largest."""
        self.divided = True
        # Half the longest direction: where the largest of some hundred features of a key lies,
        # roughly. Whatever it is, it cancels.
        usual = self.lengths * (0.5 * walk.LOG2E * length(self.directions).amax())
        largest = (self.scale_log + usual).amax(1, keepdim=True).clamp_(min=walk.FLOOR)
        self.scale_log -= largest

    def held(self, mass: Tensor, largest: float) -> bool:
        """Whether no row sum (N,T,1) was lost below what float32 can tell from nothing.

        `largest` is the largest s: what it multiplies was lost at that size, too.
        """
        least = mass
        if self.offset is not None:
            hidden = (self.offset < math.inf).cumsum(1) == 0
            least = mass.masked_fill(hidden, math.inf)
        low, high = (float(x) for x in (least.amin(), mass.amax()))
        return low >= LEAST * max(largest, 1.0) and high <= 1 / LEAST  # NaN is not

    def finite(self) -> bool:
        """A hidden value is multiplied by zero here: it has to be a number."""
        return math.isfinite(float(self.values.sum()))

    def is_calm(self) -> bool:
        """Whether lengths alone promise that no exponential overflows: |w.x| <= |w| |x|."""
        lengths = (length(self.directions), length(self.queries), self.lengths)
        turn, query, key = (float(x.amax()) for x in lengths)
        reach = turn * (query + key) + self.square / 2 * key**2
        if self.offset is not None:
            reach += float(self.offset.masked_fill(self.offset == math.inf, 0.0).abs().amax())
        return reach <= walk.CALM

    def pieces(self, backwards: bool = False) -> Iterator[Piece]:
        return pieces(self.N, self.T, self.M, self.chunk, backwards)

    def features(self, x: Tensor, piece: Piece) -> tuple[Tensor, Tensor | None]:
        """(G n, c, M), and the logarithm of what they were divided by."""
        rows = chunks(x, piece).reshape(-1, x.shape[2])
        logs, top = linear(rows, self.turn), None
        if self.divided:
            top = logs.amax(-1, keepdim=True)
            logs -= top
        return logs.exp2_().view(-1, piece.chunk, self.M), top

    def scales(self, piece: Piece, top: Tensor | None) -> Tensor:
        """s, (G, n, c, 1)."""
        logs = chunks(self.scale_log, piece)
        return logs.exp2() if top is None else (logs + top.view(logs.shape)).exp2_()

    def channels(self, piece: Piece, scale: Tensor) -> Tensor:
        """(G n, c, W): the values and a column of ones, times s."""
        values = chunks(self.values, piece)
        wide = self.room.take(*values.shape[:3], self.C + 1)
        torch.mul(values, scale, out=wide[..., : self.C])
        wide[..., self.C :] = scale
        return wide.flatten(0, 1)

    def read(self, piece: Piece) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features of queries and keys, channels, and s."""
        a, _ = self.features(self.queries, piece)
        b, top = self.features(self.keys, piece)
        scale = self.scales(piece, top)
        return a, b, self.channels(piece, scale), scale

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, float]:
        """Outputs, row sums and, if s was divided, its largest.

        `states` (windows, N, W, M) gets the state before each window but the first, if it has any.
        """
        with lent(self.values) as self.room:
            return self.walk(states)

    def walk(self, states: Tensor) -> tuple[Tensor, Tensor, float]:
        out = by_position(self.values, self.N, self.T, self.C)
        mass = out.new_empty(self.N, self.T, 1)
        room, state, largest = self.room, None, 0.0
        for piece in self.pieces():
            room.clear()
            (a, b, c, scale), n = self.read(piece), piece.n
            if self.divided:
                largest = max(largest, float(scale.amax()))
            mixed = room.bmm(room.bmm(a, b.mT).tril_(), c)
            if not piece.alone:
                before, after = sum_up(room, c, b, state, n)
                state = aside(after, piece, states)
                mixed.baddbmm_(a, before.mT)
            mixed = mixed.view(-1, n, piece.chunk, self.C + 1)
            total = mixed[..., self.C :]
            torch.div(mixed[..., : self.C], total, out=chunks(out, piece))
            chunks(mass, piece).copy_(total)
        if self.offset is not None and bool((mass == 0).any()):
            out.masked_fill_(mass == 0, 0.0)
        return out, mass, largest

    def backward(
        self, gradient: Tensor, out: Tensor, mass: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values."""
        with lent(self.values) as self.room:
            return self.walk_back(before_division(gradient, out, mass), states)

    def walk_back(self, ups: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given = (self.queries, self.keys, self.values)
        to_queries, to_keys, to_values = (by_position(x, *x.shape) for x in given)
        later: Tensor | None = None
        room = self.room
        for piece in self.pieces(backwards=True):
            room.clear()
            (a, b, c, scale), n = self.read(piece), piece.n
            up = room.copy(chunks(ups, piece)).view(-1, piece.chunk, self.C + 1)
            near, back = room.bmm(a, b.mT).tril_(), room.bmm(up, c.mT).tril_()
            to_a, to_b = room.bmm(back, b), room.bmm(back.mT, a)
            to_c = room.bmm(near.mT, up)
            if not piece.alone:
                state = states[piece.number, piece.heads] if piece.number else None
                before, _ = sum_up(room, c, b, state, n)
                after, end = sum_up(room, up, a, later, n, backwards=True)
                later = end.clone() if piece.number else None
                to_a.baddbmm_(up, before)
                to_b.baddbmm_(c, after)
                to_c.baddbmm_(b, after.mT)
            to_a, to_b = to_a.mul_(a).view(-1, self.M), to_b.mul_(b).view(-1, self.M)
            keys = chunks(self.keys, piece)
            shape, shrink = keys.shape, to_b.sum(-1, keepdim=True).mul_(self.square)
            chunks(to_queries, piece).copy_(linear(to_a, self.directions.mT).view(shape))
            turned = linear(to_b, self.directions.mT).view(shape)
            shrink = shrink.view(*shape[:3], 1)
            torch.addcmul(turned, shrink, keys, value=-1.0, out=chunks(to_keys, piece))
            wide = to_c.view(-1, n, piece.chunk, self.C + 1)
            torch.mul(wide[..., : self.C], scale, out=chunks(to_values, piece))
        return to_queries, to_keys, to_values
