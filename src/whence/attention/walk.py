"""How the causal scan goes through the positions: in segments, forwards and backwards.

Shape letters: N batch times heads, T positions, M features, C channels, G chunks of a segment.
`scan.py` says what is computed; this file computes it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# exp(60) = 1e26: the largest ratio of two weights that share a reference. Float32 ends at 1e38,
# so nothing that matters (1e-7 of a sum) is lost and nothing overflows.
SPREAD = 60.0
# Stands for "no key seen yet" where -inf would make -inf - (-inf) = NaN.
FLOOR = -1e30
CHUNK = 64
# Numbers of a segment's largest array: two megabytes of float32, about one core's cache.
SEGMENT = 1 << 19


class Segment(NamedTuple):
    start: int
    stop: int
    chunk: int
    top: Tensor | None  # (N,1,M or C): the reference of the segment's key logarithms


def segments(key_log: Tensor | None, T: int, size: int, chunk: int) -> Iterator[Segment]:
    """Cut T positions so that within a segment all logarithms can share one reference.

    A reference is the maximum over the past and over the segment itself. If the segment's end rises
    far above its beginning, the beginning would underflow: such a segment is halved, down to single
    positions, whose reference is their own. With sane keys it never happens.
    """
    size = max(chunk, size // chunk * chunk)
    waiting = [(start, min(start + size, T)) for start in range(0, T, size)][::-1]
    top = None
    if key_log is not None:
        top = key_log.new_full((key_log.shape[0], 1, key_log.shape[2]), FLOOR)
    while waiting:
        start, stop = waiting.pop()
        if key_log is not None and top is not None:
            peak = torch.maximum(top, key_log[:, start:stop].amax(1, keepdim=True))
            first = torch.maximum(top, key_log[:, start : start + 1])
            if stop - start > 1 and bool(((peak - first) > SPREAD).any()):
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            top = peak
        # Whole chunks, and the rest as one shorter chunk: no length has to divide anything.
        whole = start + (stop - start) // chunk * chunk
        if whole > start:
            yield Segment(start, whole, chunk, top)
        if stop > whole:
            yield Segment(whole, stop, stop - whole, top)


class Read(NamedTuple):
    """A segment in chunks, relative to its reference; products of a mantissa and an exponential."""

    a: Tensor  # (N*G, chunk, M)
    b: Tensor
    c: Tensor  # (N*G, chunk, C), with a column of ones when the scan is normalised
    a_scale: Tensor | None  # the exponential part of a and b, where both parts exist
    b_scale: Tensor | None
    lift: Tensor | None  # (N*G, chunk, C): what the channels of the output are multiplied by
    rows: Tensor | None  # (N, L, 1): the logarithm taken out of each row of a


class Walk:
    def __init__(
        self,
        a: Tensor | None,
        b: Tensor | None,
        c: Tensor | None,
        query_log: Tensor | None,
        key_log: Tensor | None,
        channels: bool,
        normalise: bool,
        chunk: int,
    ) -> None:
        self.a, self.b, self.c = a, b, c
        self.query_log, self.key_log = query_log, key_log
        self.channels, self.normalise, self.chunk = channels, normalise, chunk
        features = a if a is not None else query_log
        values = c if c is not None else query_log
        assert features is not None and values is not None
        self.N, self.T, self.M = features.shape
        self.C = values.shape[-1]
        self.width = self.C + int(normalise)
        self.like = values

    def segments(self) -> Iterator[Segment]:
        size = SEGMENT // (self.N * self.M)
        return segments(self.key_log, self.T, size, self.chunk)

    def chunks(self, x: Tensor, segment: Segment) -> Tensor:
        return x.reshape(-1, segment.chunk, x.shape[-1])

    def read(self, segment: Segment, rows: Tensor | None = None) -> Read:
        window = slice(segment.start, segment.stop)

        def take(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, window]

        a, b, c, q, k = map(take, (self.a, self.b, self.c, self.query_log, self.key_log))
        a_scale = b_scale = lift = None
        if q is not None and k is not None and segment.top is not None:
            raised, lowered = q + segment.top, (k - segment.top).exp_()
            if self.channels:
                c, lift = lowered, raised.exp_()
            else:
                if self.normalise:
                    if rows is None:
                        rows = raised.amax(-1, keepdim=True)
                    raised -= rows
                raised.exp_()
                if a is None:
                    a = raised
                else:
                    a_scale, a = raised, raised * a
                if b is None:
                    b = lowered
                else:
                    b_scale, b = lowered, lowered * b
        assert a is not None and b is not None and c is not None
        if self.normalise:
            c = torch.cat([c, c.new_ones(*c.shape[:2], 1)], -1)
        a, b, c = (self.chunks(x, segment) for x in (a, b, c))
        if lift is not None:
            lift = self.chunks(lift, segment)
        return Read(a, b, c, a_scale, b_scale, lift, rows)

    def carry(self, state: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        """A state relative to one reference, made relative to another."""
        if before is None or after is None or before is after:
            return state
        factor = (before - after).exp_()
        return state * (factor if self.channels else factor.mT)

    def states(self, read: Read, state: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each chunk of a segment (N*G, M, C), and the state after them all."""
        if read.b.shape[0] == self.N:
            return state, torch.baddbmm(state, read.b.mT, read.c)
        gains = torch.bmm(read.b.mT, read.c).view(self.N, -1, self.M, self.width)
        whole = torch.cat([state[:, None], gains], 1).cumsum(1)
        return whole[:, :-1].reshape(-1, self.M, self.width), whole[:, -1]

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        out = self.like.new_empty(self.N, self.T, self.C)
        mass = out.new_ones(self.N, self.T, 1) if self.normalise else out.new_empty(0)
        rows = out.new_zeros(self.N, self.T, 1) if self.normalise else out.new_empty(0)
        state = out.new_zeros(self.N, self.M, self.width)
        top: Tensor | None = None
        for segment in self.segments():
            read = self.read(segment)
            before, state = self.states(read, self.carry(state, top, segment.top))
            near = torch.bmm(read.a, read.b.mT).tril_()
            mixed = torch.bmm(near, read.c).baddbmm_(read.a, before)
            if read.lift is not None:
                mixed *= read.lift
            mixed = mixed.view(self.N, -1, self.width)
            window = slice(segment.start, segment.stop)
            if self.normalise:
                total = mixed[..., self.C :]
                out[:, window] = (mixed[..., : self.C] / total).masked_fill_(total == 0, 0.0)
                mass[:, window] = total
                if read.rows is not None:
                    rows[:, window] = read.rows
            else:
                out[:, window] = mixed
            top = segment.top
        if not bool(state.isfinite().all()):
            self.keep_in_place(out, mass, rows)
        return out, mass, rows

    def keep_in_place(self, out: Tensor, mass: Tensor, rows: Tensor) -> None:
        """A NaN or infinity at position j makes NaN of the outputs from j on, of none before."""
        bad = torch.zeros(self.N, self.T, dtype=torch.bool, device=out.device)
        for tensor in (self.b, self.c):
            if tensor is not None:
                bad |= ~tensor.isfinite().all(-1)
        if self.key_log is not None:
            bad |= ~(self.key_log < torch.inf).all(-1)
        if not bool(bad.any()):
            return  # finite numbers that overflowed: the infinities are the honest answer
        after = (bad.cumsum(1) > 0)[..., None]

        def clean(x: Tensor | None, value: float) -> Tensor | None:
            return None if x is None else x.masked_fill(after, value)

        b, c = clean(self.b, 0.0), clean(self.c, 0.0)
        logs = self.query_log, clean(self.key_log, FLOOR)
        again = Walk(self.a, b, c, *logs, self.channels, self.normalise, self.chunk).forward()
        for result, good in zip((out, mass, rows), again, strict=True):
            if result.numel():
                result.copy_(good)
        out.masked_fill_(after, torch.nan)

    def backward(
        self, gradient: Tensor, out: Tensor, mass: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        if self.normalise:
            # out = mixed / total: total is one more channel, whose gradient is -(gradient . out).
            gradient = torch.cat([gradient, -(gradient * out).sum(-1, keepdim=True)], -1)
            gradient = (gradient / mass).masked_fill_(mass == 0, 0.0)

        def empty(x: Tensor | None) -> Tensor:
            return self.like.new_empty(0) if x is None else torch.empty_like(x).contiguous()

        given = (self.a, self.b, self.c, self.query_log, self.key_log)
        da, db, dc, dq, dk = results = tuple(map(empty, given))
        begin = []
        state, top = out.new_zeros(self.N, self.M, self.width), None
        for segment in self.segments():
            state = self.carry(state, top, segment.top)
            begin.append((segment, state))
            if segment.stop < self.T:
                read = self.read(segment, self.row(rows, segment))
                _, state = self.states(read, state)
            top = segment.top
        later = torch.zeros_like(state)
        for segment, state in reversed(begin):
            later = self.carry(later, segment.top, top) if top is not segment.top else later
            top = segment.top
            window = slice(segment.start, segment.stop)
            read = self.read(segment, self.row(rows, segment))
            up = self.chunks(gradient[:, window], segment)
            if read.lift is not None:
                up = up * read.lift
            before, _ = self.states(read, state)
            after, later = self.later_states(read.a, up, later)
            near = torch.bmm(read.a, read.b.mT).tril_()
            back = torch.bmm(up, read.c.mT).tril_()
            to_a = torch.bmm(back, read.b).baddbmm_(up, before.mT)
            to_b = torch.bmm(back.mT, read.a).baddbmm_(read.c, after.mT)
            to_c = torch.bmm(near.mT, up).baddbmm_(read.b, after)
            self.write(segment, read, (to_a, to_b, to_c), results)
        if self.channels and self.query_log is not None:
            torch.mul(gradient, out, out=dq)
        return da, db, dc, dq, dk

    def row(self, rows: Tensor, segment: Segment) -> Tensor | None:
        return rows[:, segment.start : segment.stop] if rows.numel() else None

    def later_states(self, a: Tensor, up: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
        """As `states`, backwards in time: what the queries after each chunk ask of its keys."""
        if a.shape[0] == self.N:
            return later, torch.baddbmm(later, a.mT, up)
        gains = torch.bmm(a.mT, up).view(self.N, -1, self.M, self.width)
        whole = torch.cat([later[:, None], gains.flip(1)], 1).cumsum(1)
        return whole[:, :-1].flip(1).reshape(-1, self.M, self.width), whole[:, -1]

    def write(
        self,
        segment: Segment,
        read: Read,
        gradients: tuple[Tensor, Tensor, Tensor],
        results: tuple[Tensor, ...],
    ) -> None:
        """The gradients of the products, handed to the mantissas and logarithms they came from."""
        window = slice(segment.start, segment.stop)
        to_a, to_b, to_c = (x.view(self.N, -1, x.shape[-1]) for x in gradients)
        da, db, dc, dq, dk = (x[:, window] if x.numel() else x for x in results)
        a, b, c = (x.view(self.N, -1, x.shape[-1]) for x in (read.a, read.b, read.c))
        if dc.numel():
            dc.copy_(to_c[..., : self.C])
        if dk.numel():
            torch.mul(c, to_c, out=dk) if self.channels else torch.mul(b, to_b, out=dk)
        if dq.numel() and not self.channels:
            torch.mul(a, to_a, out=dq)
        if da.numel():
            da.copy_(to_a if read.a_scale is None else to_a * read.a_scale)
        if db.numel():
            db.copy_(to_b if read.b_scale is None else to_b * read.b_scale)
