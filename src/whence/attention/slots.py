"""Causal attention to m slots that are running means of the past: linformer and perceiver.

    A_t = sum_{j<=t} e_j                 e_j = exp(E_j), the mass of the slots at time t
    s_t = sum_{j<=t} (q_t . k_j) e_j / A_t            p_t = softmax(s_t)
    y_t = sum_{j<=t} (p_t / B_t . f_j) v_j            f_j = exp(F_j), B_t their running sum

As two scans, a running logarithm of sums and a softmax this writes a dozen arrays of T x m numbers
to memory and reads them again. Here they exist a piece at a time, forwards and backwards, and what
goes from piece to piece are sums of k e, v f and e. Where all heads share E and F, A and B are made
once for all of them. It is for logarithms that are moderate and all finite, which is nearly always;
else, and where torch compiles, the mechanisms take the two scans.

Shape letters: N batch times heads, T positions, d head width, C channels, m slots; see `pieces.py`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.attention.gradients import final
from whence.attention.pieces import Piece, chunks, pieces, sum_up
from whence.attention.walk import CALM, by_position

CHUNK = 32


def moderate(key_log: Tensor, value_log: Tensor, *others: Tensor) -> bool:
    """Whether `attend_slots` may be used: exponentials within bounds, the rest finite."""
    if torch.compiler.is_compiling():
        return False
    for log in (key_log,) if key_log is value_log else (key_log, value_log):
        low, high = (float(x) for x in log.detach().aminmax())
        if not max(-low, high) <= CALM / 2:
            return False
    return all(math.isfinite(float(x.detach().sum())) for x in others)


def attend_slots(
    queries: Tensor, keys: Tensor, values: Tensor, key_log: Tensor, value_log: Tensor
) -> Tensor:
    """(B,H,T,d), (B,H,T,d), (B,H,T,C), E and F (1 or B, 1 or H, T, m) -> (B,H,T,C).

    Queries are scaled by the caller. E and F may be one tensor, which is read once then.
    """
    lead = keys.shape[:2]
    full = torch.float64 if keys.dtype == torch.float64 else torch.float32

    shared = key_log.shape[:2] == value_log.shape[:2] == (1, 1)

    def flat(x: Tensor) -> Tensor:
        wide = x.to(full)
        if not (shared and wide.shape[:2] == (1, 1)):
            wide = wide.expand(*lead, -1, -1)
        return wide.reshape(-1, *x.shape[-2:])

    q, k, v, e = (flat(x) for x in (queries, keys, values, key_log))
    f = None if value_log is key_log else flat(value_log)
    with torch.autocast(keys.device.type, enabled=False):
        out: Tensor = _Slots.apply(q, k, v, e, f)  # type: ignore[no-untyped-call]
    return out.view(*lead, *out.shape[1:])


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


States = list[Tensor | None]


class Scan:
    def __init__(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor | None) -> None:
        self.q, self.k, self.v, self.e, self.f = q, k, v, e, f
        (self.N, self.T, self.d), self.C, self.m = k.shape, v.shape[2], e.shape[2]
        self.shared = e.shape[0] != self.N
        # A and B of all positions (1,T,m), where they are the same for all heads.
        logs = (e,) if f is None else (e, f)
        self.masses = [log.exp().cumsum_(1) for log in logs] if self.shared else []

    def pieces(self, backwards: bool = False) -> Any:
        return pieces(self.N, self.T, self.m, CHUNK, backwards)

    def rows(self, x: Tensor, piece: Piece) -> Tensor:
        return chunks(x, piece).reshape(-1, piece.chunk, x.shape[2])

    def exponentials(self, log: Tensor, piece: Piece) -> Tensor:
        if not self.shared:
            return self.rows(log, piece).exp()
        weights = log[:, piece.window].exp().view(-1, 1, piece.chunk, self.m)
        return weights.expand(-1, piece.n, -1, -1).reshape(-1, piece.chunk, self.m)

    def sums(
        self, left: Tensor, weights: Tensor, state: Tensor | None, piece: Piece, which: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of left^T weights before each chunk, the masses, and the state after the piece."""
        if self.shared:
            held, after = sum_up(left, weights, state, piece.n)
            mass = self.masses[which][:, piece.window]
            return held, mass.view(-1, 1, piece.chunk, self.m), after
        wide = torch.cat([left, left.new_ones(*left.shape[:2], 1)], -1)
        held, after = sum_up(wide, weights, state, piece.n)
        mass = torch.baddbmm(held[:, -1:], self.triangle(left), weights)
        return held[:, :-1], mass.view(-1, piece.n, piece.chunk, self.m), after

    def read(self, piece: Piece, states: States) -> tuple[Read, States]:
        q, k, v = (self.rows(x, piece) for x in (self.q, self.k, self.v))
        e = self.exponentials(self.e, piece)
        if self.f is None:
            f, both = e, torch.cat([k, v], -1)
            held, key_mass, after = self.sums(both, e, states[0], piece, 0)
            held_keys, held_values = held[:, : self.d], held[:, self.d :]
            value_mass, states = key_mass, [after]
        else:
            f = self.exponentials(self.f, piece)
            held_keys, key_mass, after = self.sums(k, e, states[0], piece, 0)
            held_values, value_mass, later = self.sums(v, f, states[-1], piece, 1)
            states = [after, later]
        near = torch.bmm(q, k.mT).tril_()
        scores = over(torch.bmm(near, e).baddbmm_(q, held_keys), key_mass)
        chosen = scores.softmax(-1)
        shares = over(chosen, value_mass, torch.empty_like(chosen))
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
        return found, states

    def triangle(self, like: Tensor) -> Tensor:
        """Ones up to the diagonal, for every chunk: a product with it is a running sum."""
        c = like.shape[1]
        return like.new_ones(c, c).tril_().expand(like.shape[0], -1, -1)

    def forward(self) -> tuple[Tensor, dict[tuple[int, int], States]]:
        """Outputs, and the states before the pieces."""
        out = by_position(self.v, self.N, self.T, self.C)
        kept: dict[tuple[int, int], States] = {}
        states: States = [None]
        for piece in self.pieces():
            if piece.number == 0:
                states = [None]
            kept[piece.number, piece.heads.start] = states
            read, states = self.read(piece, states)
            near = torch.bmm(read.shares, read.f.mT).tril_()
            mixed = torch.bmm(near, read.v).baddbmm_(read.shares, read.held_values.mT)
            place = chunks(out, piece)
            place.copy_(mixed.view(place.shape))
        return out, kept

    def backward(
        self, gradient: Tensor, kept: dict[tuple[int, int], States]
    ) -> tuple[Tensor | None, ...]:
        given = (self.q, self.k, self.v, self.e, self.f)
        results = [None if x is None else by_position(x, *x.shape) for x in given]
        # Of A and B, where all heads have the same; several groups of heads add to these.
        to_masses = [torch.zeros_like(mass) for mass in self.masses]
        if self.shared:
            for x in results[3:]:
                if x is not None:
                    x.zero_()
        later: States = [None] * 4
        for piece in self.pieces(backwards=True):
            if piece.last:
                later = [None] * 4
            read, _ = self.read(piece, kept[piece.number, piece.heads.start])
            parts, masses = self.parts(read, self.rows(gradient, piece), later, piece.n)
            for number, (result, part) in enumerate(zip(results, parts, strict=True)):
                if result is not None and part is not None:
                    self.put(result, part, piece, add=number > 2)
            for to_mass, part in zip(to_masses, masses, strict=True):
                self.put(to_mass, part, piece, add=True)
        for number, to_mass in enumerate(to_masses, 3):  # of E, and of F where it is another
            result, log = results[number], given[number]
            assert result is not None and log is not None
            result.addcmul_(to_mass.flip(1).cumsum_(1).flip(1), log.exp())
        return tuple(results)

    def parts(
        self, read: Read, up: Tensor, later: States, n: int
    ) -> tuple[tuple[Tensor | None, ...], list[Tensor]]:
        """A piece's gradients of q, k, v, E and F, and of A and B if these are shared.

        `later` (sums over later chunks) is replaced.
        """
        q, k, v, e, f = read[:5]
        # The mixture of values.
        back = torch.bmm(up, v.mT).tril_()
        near = torch.bmm(read.shares, f.mT).tril_()
        after, later[0] = sum_up(up, read.shares, later[0], n, backwards=True)
        to_f = torch.bmm(back.mT, read.shares).baddbmm_(v, after)
        to_v = torch.bmm(near.mT, up).baddbmm_(f, after.mT)
        to_chosen = over(torch.bmm(back, f).baddbmm_(up, read.held_values), read.value_mass)
        to_mass = (to_chosen * read.shares).neg_()  # of B
        # The softmax, and the scores.
        to_score = to_chosen.sub_((to_chosen * read.chosen).sum(-1, keepdim=True))
        to_score = over(to_score.mul_(read.chosen), read.key_mass)
        after, later[1] = sum_up(q, to_score, later[1], n, backwards=True)
        back = torch.bmm(to_score, e.mT).tril_()
        to_q = torch.bmm(back, k).baddbmm_(to_score, read.held_keys.mT)
        to_k = torch.bmm(back.mT, q).baddbmm_(e, after.mT)
        to_e = torch.bmm(read.near.mT, to_score).baddbmm_(k, after)
        less = to_score.mul_(read.scores)  # minus the gradient of A
        masses = [to_mass.sub_(less)] if self.f is None else [less.neg_(), to_mass]
        if not self.shared:
            # A sum from the end, over the later chunks and inside each.
            ones, tri = k.new_ones(*k.shape[:2], 1), self.triangle(k).mT
            for number, (mass, to_log) in enumerate(zip(masses, (to_e, to_f), strict=False), 2):
                after, later[number] = sum_up(ones, mass, later[number], n, backwards=True)
                to_log.baddbmm_(tri, mass).add_(after)
            masses = []
        if self.f is None:
            return (to_q, to_k, to_v, to_e.add_(to_f).mul_(e), None), masses
        return (to_q, to_k, to_v, to_e.mul_(e), to_f.mul_(f)), masses

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


class _Slots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor | None) -> Tensor:
        out, ctx.kept = Scan(q, k, v, e, f).forward()
        ctx.save_for_backward(q, k, v, e, f)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return final(_Slots.gradients, gradient, ctx.kept, *ctx.saved_tensors)

    @staticmethod
    def gradients(
        gradient: Tensor, kept: dict[tuple[int, int], States], *given: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        return Scan(*given).backward(gradient, kept)  # type: ignore[arg-type]
