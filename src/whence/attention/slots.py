"""Causal attention to m slots that are running means of the past, a piece at a time.

    A_t = sum_{j<=t} e_j                 e_j = exp(E_j), the mass of the slots at time t
    s_t = sum_{j<=t} (q_t . k_j) e_j / A_t            p_t = softmax(s_t)
    y_t = sum_{j<=t} (p_t / B_t . f_j) v_j            f_j = exp(F_j), B_t their running sum

As two scans, a running logarithm of sums and a softmax this writes a dozen arrays of T x m numbers
to memory and reads them again. Here they exist a piece at a time, forwards and backwards, and what
goes from piece to piece are sums of k e, v f and e. Where all heads share E and F, A and B are made
once for all of them, and a product with e or f serves all heads of a piece: n times as many rows,
and nothing repeated. It is for logarithms that are moderate and all finite, which is nearly always;
`means.py` sees to that.

Shape letters: N batch times heads, T positions, d head width, C channels, m slots; G, n and c as in
`pieces.py`; L = G where the n heads share E and F, otherwise G n.
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
    """What a piece is made of, and the sums before each of its chunks."""

    q: Tensor  # (G n, c, d)
    k: Tensor
    v: Tensor  # (G n, c, C)
    e: Tensor  # (L, c, m)
    f: Tensor
    near: Tensor  # q . k inside a chunk, (G n, c, c)
    held_keys: Tensor  # (G n, d, m): sums of k e
    held_values: Tensor  # (G n, C, m): sums of v f
    key_mass: Tensor  # A, (L, 1, c, m)
    value_mass: Tensor  # B
    scores: Tensor  # (G n, c, m)
    chosen: Tensor  # p
    shares: Tensor  # p / B


class Scan:
    room: Room  # for what a piece is made of

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

    def states_for(self, keep: bool) -> Tensor:
        """For the states before the windows, if they are to be kept for a gradient."""
        count = room_for_states(self.N, self.T, self.m, CHUNK) if keep else 0
        return self.v.new_empty(count, self.N, self.parts_of_state[-1].stop, self.m)

    def pieces(self, backwards: bool = False) -> Iterator[Piece]:
        return pieces(self.N, self.T, self.m, CHUNK, backwards)

    def rows(self, x: Tensor, piece: Piece) -> Tensor:
        """(N,T,.) -> (G n, c, .)"""
        return self.room.copy(chunks(x, piece)).view(-1, piece.chunk, x.shape[2])

    def beside(self, x: Tensor, rows: Tensor, piece: Piece) -> Tensor:
        """The heads' channels beside each other, (G, c, n, .), where they share their weights;
        otherwise the rows as they are."""
        return chunks(x, piece).transpose(1, 2) if self.shared else rows

    def exponentials(self, log: Tensor, piece: Piece) -> Tensor:
        """(L,c,m)"""
        if not self.shared:
            return self.rows(log, piece).exp_()
        window = log[:, piece.window].view(-1, piece.chunk, self.m)
        return torch.exp(window, out=self.room.take(*window.shape))

    def joined(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Channels beside each other; without others, a one."""
        L, W = left.shape[-1], 1 if right is None else right.shape[-1]
        wide = self.room.take(*left.shape[:-1], L + W)
        wide[..., :L] = left
        wide[..., L:] = 1.0 if right is None else right
        return wide

    def sums(
        self, left: Tensor, weights: Tensor, state: Tensor | None, piece: Piece, which: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of left^T weights before each chunk (G n, ., m), the masses, and the state after
        the piece. `left` is as `beside` has it."""
        left = left if self.shared else self.joined(left)
        each = 1 if self.shared else piece.n
        held, end = sum_up(self.room, left.flatten(2), weights, state, each)
        held, end = (x.view(-1, left.shape[-1], self.m) for x in (held, end))
        if self.shared:
            mass = self.masses[which][:, piece.window]
            return held, mass.view(-1, 1, piece.chunk, self.m), end
        mass = self.room.bmm(self.triangle(left), weights).add_(held[:, -1:])
        return held[:, :-1], mass[:, None], end

    def times(self, x: Tensor, weights: Tensor) -> Tensor:
        """x (G n, c, .) by the weights (L, ., .) -> (G n, c, .)"""
        wide = x.view(len(weights), -1, x.shape[2])
        return self.room.bmm(wide, weights).view(len(x), x.shape[1], -1)

    def read(self, piece: Piece, states: Sequence[Tensor | None]) -> tuple[Read, list[Tensor]]:
        """A piece, and the states after it (views: see `aside`)."""
        q, k, v = (self.rows(x, piece) for x in (self.q, self.k, self.v))
        keys, values = self.beside(self.k, k, piece), self.beside(self.v, v, piece)
        e = self.exponentials(self.e, piece)
        if self.f is None:
            f, both = e, self.joined(keys, values)
            held, key_mass, end = self.sums(both, e, states[0], piece, 0)
            held_keys, held_values = held[:, : self.d], held[:, self.d :]
            value_mass, ends = key_mass, [end]
        else:
            f = self.exponentials(self.f, piece)
            held_keys, key_mass, end = self.sums(keys, e, states[0], piece, 0)
            held_values, value_mass, other = self.sums(values, f, states[1], piece, 1)
            ends = [end, other]
        room = self.room
        near = room.bmm(q, k.mT).tril_()
        scores = over(self.times(near, e).baddbmm_(q, held_keys), key_mass)
        chosen = torch.softmax(scores, -1, out=room.take(*scores.shape))
        shares = over(chosen, value_mass, room.take(*chosen.shape))
        before = (held_keys, held_values, key_mass, value_mass)
        return Read(q, k, v, e, f, near, *before, scores, chosen, shares), ends

    def triangle(self, like: Tensor) -> Tensor:
        """Ones up to the diagonal, for every chunk: a product with it is a running sum."""
        c = like.shape[1]
        return like.new_ones(c, c).tril_().expand(like.shape[0], -1, -1)

    def forward(self, states: Tensor) -> Tensor:
        """`states` (see `states_for`) gets those before each window but the first."""
        with lent(self.v) as self.room:
            return self.walk(states)

    def walk(self, states: Tensor) -> Tensor:
        out = by_position(self.v, self.N, self.T, self.C)
        before: list[Tensor | None] = [None] * len(self.parts_of_state)
        for piece in self.pieces():
            self.room.clear()
            read, ends = self.read(piece, before)
            before = [
                aside(end, piece, states[:, :, part])
                for end, part in zip(ends, self.parts_of_state, strict=True)
            ]
            near = self.times(read.shares, read.f.mT).tril_()
            mixed = self.room.bmm(near, read.v).baddbmm_(read.shares, read.held_values.mT)
            place = chunks(out, piece)
            place.copy_(mixed.view(place.shape))
        return out

    def backward(self, gradient: Tensor, states: Tensor) -> list[Tensor]:
        """The gradients of q, k, v, E and, if it is another, F."""
        if not len(states):  # somebody recorded this who had said that nothing would be
            states = self.states_for(True)
            self.forward(states)
        with lent(self.v) as self.room:
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
            self.room.clear()
            before = [
                states[piece.number, piece.heads, part] if piece.number else None
                for part in self.parts_of_state
            ]
            read, _ = self.read(piece, before)
            self.pull(piece, read, self.rows(gradient, piece), later, results, to_masses)
        for number, to_mass in enumerate(to_masses, 3):  # of E, and of F where it is another
            results[number].addcmul_(to_mass.flip(1).cumsum_(1).flip(1), given[number].exp())
        return results

    def pull(
        self,
        piece: Piece,
        read: Read,
        up: Tensor,
        later: list[Tensor | None],
        results: list[Tensor],
        to_masses: list[Tensor],
    ) -> None:
        """Write a piece's gradients. `later` (sums over later pieces) is replaced."""
        room, (q, k, v, e, f) = self.room, read[:5]
        L = len(e)

        def gather(left: Tensor, right: Tensor, number: int) -> Tensor:
            after, end = sum_up(room, left, right, later[number], piece.n, backwards=True)
            later[number] = end.clone() if piece.number else None
            return after.view(L, -1, after.shape[2])

        def add_weights(
            to: Tensor, pairs: Tensor, by: Tensor, x: Tensor, rows: Tensor, after: Tensor, new: bool
        ) -> None:
            """pairs^T by + x after, summed over the heads that share weights: (L,c,m)"""
            turned = pairs.view(L, -1, piece.chunk).mT
            to.baddbmm_(turned, by.view(L, -1, self.m), beta=0 if new else 1)
            to.baddbmm_(self.beside(x, rows, piece).flatten(2), after)

        # The mixture of values.
        back = room.bmm(up, v.mT).tril_()
        near = self.times(read.shares, f.mT).tril_()
        after = gather(up, read.shares, 0)
        to_f = room.take(*f.shape)
        add_weights(to_f, back, read.shares, self.v, v, after, new=True)
        self.put(results[2], piece, room.bmm(near.mT, up), room.bmm(f, after.mT))
        to_chosen = over(self.times(back, f).baddbmm_(up, read.held_values), read.value_mass)
        to_mass = torch.mul(to_chosen, read.shares, out=room.take(*to_chosen.shape)).neg_()  # of B
        # The softmax, and the scores.
        to_score = torch.ops.aten._softmax_backward_data(
            to_chosen, read.chosen, -1, to_chosen.dtype, grad_input=to_chosen
        )
        to_score = over(to_score, read.key_mass)
        after = gather(q, to_score, 1)
        back = self.times(to_score, e.mT).tril_()
        self.put(results[0], piece, room.bmm(back, k).baddbmm_(to_score, read.held_keys.mT))
        self.put(results[1], piece, room.bmm(back.mT, q), room.bmm(e, after.mT))
        to_e = to_f if self.f is None else room.take(*e.shape)
        add_weights(to_e, read.near, to_score, self.k, k, after, new=to_e is not to_f)
        less = to_score.mul_(read.scores)  # minus the gradient of A
        masses = [to_mass.sub_(less)] if self.f is None else [less.neg_(), to_mass]
        if self.shared:
            for result, mass in zip(to_masses, masses, strict=True):
                self.add(result, piece, mass.view(L, piece.n, piece.chunk, self.m).sum(1))
        else:
            # A sum from the end, over the later chunks and inside each.
            ones, tri = k.new_ones(*k.shape[:2], 1), self.triangle(k).mT
            for number, (mass, to_log) in enumerate(zip(masses, (to_e, to_f), strict=False), 2):
                to_log.baddbmm_(tri, mass).add_(gather(ones, mass, number))
        self.add(results[3], piece, to_e.mul_(e))
        if self.f is not None:
            self.add(results[4], piece, to_f.mul_(f))

    def put(self, result: Tensor, piece: Piece, part: Tensor, other: Tensor | None = None) -> None:
        """(G n, c, .), and what is added to it as `beside` has it, (L, c, .)"""
        place = chunks(result, piece)
        part = part.view(place.shape)
        if other is None:
            place.copy_(part)
        elif self.shared:
            turned = other.view(len(other), piece.chunk, piece.n, -1).transpose(1, 2)
            torch.add(part, turned, out=place)
        else:
            torch.add(part, other.view(place.shape), out=place)

    def add(self, result: Tensor, piece: Piece, part: Tensor) -> None:
        """(L,c,m), to which several groups of heads add where they share it."""
        if self.shared:
            place = result[:, piece.window]
            place += part.view(place.shape)
        else:
            self.put(result, piece, part)


def over(x: Tensor, mass: Tensor, out: Tensor | None = None) -> Tensor:
    """x (G n, c, m) divided by masses (L, 1, c, m), in place unless told where."""
    shape = (mass.shape[0], -1, *mass.shape[2:])
    out = x if out is None else out
    torch.div(x.view(shape), mass, out=out.view(shape))
    return out
