"""Causal attention to m slots that are running means of the past, a piece at a time.

    A_t = sum_{j<=t} e_j                 e_j = exp(E_j), the mass of the slots at time t
    s_t = sum_{j<=t} (q_t . k_j) e_j / A_t            p_t = softmax(s_t)
    y_t = sum_{j<=t} (p_t / B_t . f_j) v_j            f_j = exp(F_j), B_t their running sum

As two scans, a running logarithm of sums and a softmax this writes a dozen arrays of T x m numbers
to memory and reads them again. Here they exist a piece at a time, forwards and backwards, and what
goes from piece to piece are sums of k e, v f and e. Where all heads share E and F, A and B are made
once for all of them. It is for logarithms that are moderate and all finite, which is nearly always;
`means.py` sees to that.

Shape letters: N batch times heads, T positions, d head width, C channels, m slots; see `pieces.py`.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention.pieces import Piece, aside, chunks, pieces, sum_up
from whence.attention.scratch import Room, lent
from whence.attention.walk import by_position, room_for_states

CHUNK = 32


class Read(NamedTuple):
    """What a piece is made of, (G n, c, .), and the sums before each of its chunks."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    f: Tensor
    near: Tensor  # q . k inside a chunk
    held_keys: Tensor  # (G n, d, m): sums of k e
    held_values: Tensor  # (G n, C, m): sums of v f
    key_mass: Tensor  # A, (G, n or 1, c, m)
    value_mass: Tensor  # B
    scores: Tensor
    chosen: Tensor  # p
    shares: Tensor  # p / B


class Scan:
    scratch: Room  # for what a piece is made of

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor | None) -> None:
        self.q, self.k, self.v, self.e, self.f = q, k, v, e, f
        (self.N, self.T, self.d), self.C, self.m = k.shape, v.shape[2], e.shape[2]
        self.shared = e.shape[0] != self.N
        # Of the sums that go from piece to piece: where they lie beside each other.
        one = int(not self.shared)  # their own mass
        ends = [self.d + self.C + one] if f is None else [self.d + one, self.d + self.C + 2 * one]
        self.parts_of_state = [slice(0, ends[0]), *(slice(*pair) for pair in pairwise(ends))]

    @cached_property
    def masses(self) -> list[Tensor]:
        """A and B of all positions (1,T,m), where they are the same for all heads."""
        logs = (self.e,) if self.f is None else (self.e, self.f)
        return [log.exp().cumsum_(1) for log in logs] if self.shared else []

    def room(self, keep: bool) -> Tensor:
        """For the states before the windows, if they are to be kept for a gradient."""
        count = room_for_states(self.N, self.T, self.m, CHUNK) if keep else 0
        return self.v.new_empty(count, self.N, self.parts_of_state[-1].stop, self.m)

    def pieces(self, backwards: bool = False) -> Iterator[Piece]:
        return pieces(self.N, self.T, self.m, CHUNK, backwards)

    def rows(self, x: Tensor, piece: Piece) -> Tensor:
        return self.scratch.copy(chunks(x, piece)).view(-1, piece.chunk, x.shape[2])

    def exponentials(self, log: Tensor, piece: Piece) -> Tensor:
        if not self.shared:
            return self.rows(log, piece).exp_()
        weights = self.scratch.copy(log[:, piece.window]).exp_().view(-1, 1, piece.chunk, self.m)
        wide = weights.expand(-1, piece.n, -1, -1)
        return self.scratch.copy(wide).view(-1, piece.chunk, self.m)

    def joined(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Channels beside each other; without others, a one."""
        L, W = left.shape[2], 1 if right is None else right.shape[2]
        wide = self.scratch.take(*left.shape[:2], L + W)
        wide[..., :L] = left
        wide[..., L:] = 1.0 if right is None else right
        return wide

    def sums(
        self, left: Tensor, weights: Tensor, state: Tensor | None, piece: Piece, which: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of left^T weights before each chunk, the masses, and the state after the piece."""
        if self.shared:
            held, end = sum_up(self.scratch, left, weights, state, piece.n)
            mass = self.masses[which][:, piece.window]
            return held, mass.view(-1, 1, piece.chunk, self.m), end
        held, end = sum_up(self.scratch, self.joined(left), weights, state, piece.n)
        mass = self.scratch.bmm(self.triangle(left), weights).add_(held[:, -1:])
        return held[:, :-1], mass.view(-1, piece.n, piece.chunk, self.m), end

    def read(self, piece: Piece, states: Sequence[Tensor | None]) -> tuple[Read, list[Tensor]]:
        """A piece, and the states after it (views: see `aside`)."""
        q, k, v = (self.rows(x, piece) for x in (self.q, self.k, self.v))
        e = self.exponentials(self.e, piece)
        if self.f is None:
            f, both = e, self.joined(k, v)
            held, key_mass, end = self.sums(both, e, states[0], piece, 0)
            held_keys, held_values = held[:, : self.d], held[:, self.d :]
            value_mass, ends = key_mass, [end]
        else:
            f = self.exponentials(self.f, piece)
            held_keys, key_mass, end = self.sums(k, e, states[0], piece, 0)
            held_values, value_mass, other = self.sums(v, f, states[1], piece, 1)
            ends = [end, other]
        room = self.scratch
        near = room.bmm(q, k.mT).tril_()
        scores = over(room.bmm(near, e).baddbmm_(q, held_keys), key_mass)
        chosen = torch.softmax(scores, -1, out=room.take(*scores.shape))
        shares = over(chosen, value_mass, room.take(*chosen.shape))
        found = Read(
            q,
            k,
            v,
            e,
            f,
            near,
            held_keys,
            held_values,
            key_mass,
            value_mass,
            scores,
            chosen,
            shares,
        )
        return found, ends

    def triangle(self, like: Tensor) -> Tensor:
        """Ones up to the diagonal, for every chunk: a product with it is a running sum."""
        c = like.shape[1]
        return like.new_ones(c, c).tril_().expand(like.shape[0], -1, -1)

    def forward(self, states: Tensor) -> Tensor:
        """`states` (see `room`) gets those before each window but the first."""
        with lent(self.v) as self.scratch:
            return self.walk(states)

    def walk(self, states: Tensor) -> Tensor:
        out = by_position(self.v, self.N, self.T, self.C)
        before: list[Tensor | None] = [None] * len(self.parts_of_state)
        for piece in self.pieces():
            self.scratch.clear()
            read, ends = self.read(piece, before)
            before = [
                aside(end, piece, states[:, :, part])
                for end, part in zip(ends, self.parts_of_state, strict=True)
            ]
            near = self.scratch.bmm(read.shares, read.f.mT).tril_()
            mixed = self.scratch.bmm(near, read.v).baddbmm_(read.shares, read.held_values.mT)
            place = chunks(out, piece)
            place.copy_(mixed.view(place.shape))
        return out

    def backward(self, gradient: Tensor, states: Tensor) -> list[Tensor]:
        """The gradients of q, k, v, E and, if it is another, F."""
        with lent(self.v) as self.scratch:
            return self.walk_back(gradient, states)

    def walk_back(self, gradient: Tensor, states: Tensor) -> list[Tensor]:
        given = [x for x in (self.q, self.k, self.v, self.e, self.f) if x is not None]
        results = [by_position(x, *x.shape) for x in given]
        # Of A and B, where all heads have the same; several groups of heads add to these.
        to_masses = [torch.zeros_like(mass) for mass in self.masses]
        if self.shared:
            for x in results[3:]:
                x.zero_()
        later: list[Tensor | None] = [None] * 4
        for piece in self.pieces(backwards=True):
            self.scratch.clear()
            before = [
                states[piece.number, piece.heads, part] if piece.number else None
                for part in self.parts_of_state
            ]
            read, _ = self.read(piece, before)
            parts, masses = self.parts(read, self.rows(gradient, piece), later, piece)
            for number, (result, part) in enumerate(zip(results, parts, strict=True)):
                self.put(result, part, piece, add=number > 2)
            for to_mass, part in zip(to_masses, masses, strict=True):
                self.put(to_mass, part, piece, add=True)
        for number, to_mass in enumerate(to_masses, 3):  # of E, and of F where it is another
            results[number].addcmul_(to_mass.flip(1).cumsum_(1).flip(1), given[number].exp())
        return results

    def parts(
        self, read: Read, up: Tensor, later: list[Tensor | None], piece: Piece
    ) -> tuple[list[Tensor], list[Tensor]]:
        """A piece's gradients of q, k, v, E and F, and of A and B if these are shared.

        `later` (sums over later pieces) is replaced.
        """

        room = self.scratch

        def gather(left: Tensor, right: Tensor, number: int) -> Tensor:
            after, end = sum_up(room, left, right, later[number], piece.n, backwards=True)
            later[number] = end.clone() if piece.number else None
            return after

        q, k, v, e, f = read[:5]
        # The mixture of values.
        back = room.bmm(up, v.mT).tril_()
        near = room.bmm(read.shares, f.mT).tril_()
        after = gather(up, read.shares, 0)
        to_f = room.bmm(back.mT, read.shares).baddbmm_(v, after)
        to_v = room.bmm(near.mT, up).baddbmm_(f, after.mT)
        to_chosen = over(room.bmm(back, f).baddbmm_(up, read.held_values), read.value_mass)
        to_mass = torch.mul(to_chosen, read.shares, out=room.take(*to_chosen.shape)).neg_()  # of B
        # The softmax, and the scores.
        to_score = torch.ops.aten._softmax_backward_data(
            to_chosen, read.chosen, -1, to_chosen.dtype, grad_input=to_chosen
        )
        to_score = over(to_score, read.key_mass)
        after = gather(q, to_score, 1)
        back = room.bmm(to_score, e.mT).tril_()
        to_q = room.bmm(back, k).baddbmm_(to_score, read.held_keys.mT)
        to_k = room.bmm(back.mT, q).baddbmm_(e, after.mT)
        to_e = room.bmm(read.near.mT, to_score).baddbmm_(k, after)
        less = to_score.mul_(read.scores)  # minus the gradient of A
        masses = [to_mass.sub_(less)] if self.f is None else [less.neg_(), to_mass]
        if not self.shared:
            # A sum from the end, over the later chunks and inside each.
            ones, tri = k.new_ones(*k.shape[:2], 1), self.triangle(k).mT
            for number, (mass, to_log) in enumerate(zip(masses, (to_e, to_f), strict=False), 2):
                to_log.baddbmm_(tri, mass).add_(gather(ones, mass, number))
            masses = []
        if self.f is None:
            return [to_q, to_k, to_v, to_e.add_(to_f).mul_(e)], masses
        return [to_q, to_k, to_v, to_e.mul_(e), to_f.mul_(f)], masses

    def put(self, result: Tensor, part: Tensor, piece: Piece, add: bool) -> None:
        part = part.view(-1, piece.n, piece.chunk, part.shape[2])
        if add and self.shared:
            place = result[:, piece.window]
            place += part.sum(1).view(place.shape)
        else:
            chunks(result, piece).copy_(part)


def over(x: Tensor, mass: Tensor, out: Tensor | None = None) -> Tensor:
    """x (G n,c,m) divided by masses that the heads may share, in place unless told where."""
    shape = (mass.shape[0], -1, *mass.shape[2:])
    out = x if out is None else out
    torch.div(x.view(shape), mass, out=out.view(shape))
    return out
