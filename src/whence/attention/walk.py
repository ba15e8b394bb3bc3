"""How the causal scan goes through the positions: in segments, forwards and backwards.

Shape letters: N batch times heads, T positions, M features, C channels, G chunks of a segment.
`scan.py` says what is computed; this file computes it. An input may have N = 1, shared by all.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# exp(60) = 1e26: the largest ratio of two weights that share a reference. Float32 ends at 1e38,
# so nothing that matters (1e-7 of a sum) is lost and nothing overflows.
SPREAD = 60.0
# Stands for "no key seen yet" where -inf would make -inf - (-inf) = NaN.
FLOOR = -1e30
CHUNK = 64
# Numbers of a segment's largest array: a megabyte of float32, about one core's cache.
SEGMENT = 1 << 18


class Inputs(NamedTuple):
    """What `causal_scan` was given, with batch and heads made one dimension."""

    a: Tensor | None
    b: Tensor | None
    c: Tensor | None
    query_log: Tensor | None
    key_log: Tensor | None
    offset: Tensor | None
    directions: Tensor | None


class Segment(NamedTuple):
    start: int
    stop: int
    chunk: int
    top: Tensor | None  # (N,1,M or C): the reference of the segment's key logarithms
    key_log: Tensor | None  # (N,L,M or C)


class Read(NamedTuple):
    """A segment in chunks, relative to its reference; products of a mantissa and an exponential."""

    a: Tensor  # (N*G, chunk, M)
    b: Tensor
    c: Tensor  # (N*G, chunk, C), with a column of ones when the scan is normalised
    a_scale: Tensor | None  # the exponential part of a and b, where both parts exist
    b_scale: Tensor | None
    lift: Tensor | None  # (N*G, chunk, C): what the channels of the output are multiplied by
    rows: Tensor | None  # (N, L, 1): the logarithm taken out of each row of a


def segments(
    logs: Callable[[int, int], Tensor] | None, T: int, size: int, chunk: int
) -> Iterator[Segment]:
    """Cut T positions so that within a segment all logarithms can share one reference.

    A reference is the maximum over the past and over the segment itself. If the segment's end rises
    far above its beginning, the beginning would underflow: such a segment is halved, down to single
    positions, whose reference is their own. With sane keys it never happens.
    """
    size = max(chunk, size // chunk * chunk)
    waiting = [(start, min(start + size, T)) for start in range(0, T, size)][::-1]
    top = key_log = None
    while waiting:
        start, stop = waiting.pop()
        if logs is not None:
            key_log = logs(start, stop)
            if top is None:
                top = key_log.new_full((key_log.shape[0], 1, key_log.shape[2]), FLOOR)
            peak = torch.maximum(top, key_log.amax(1, keepdim=True))
            first = torch.maximum(top, key_log[:, :1])
            if stop - start > 1 and float((peak - first).amax()) > SPREAD:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            top = peak
        # Whole chunks, and the rest as one shorter chunk: no length has to divide anything.
        whole = (stop - start) // chunk * chunk
        if whole:
            here = None if key_log is None else key_log[:, :whole]
            yield Segment(start, start + whole, chunk, top, here)
        if start + whole < stop:
            here = None if key_log is None else key_log[:, whole:]
            yield Segment(start + whole, stop, stop - start - whole, top, here)


class Walk:
    def __init__(self, given: Inputs, channels: bool, normalise: bool, chunk: int) -> None:
        self.given, self.channels, self.normalise, self.chunk = given, channels, normalise, chunk
        shapes = [x.shape for x in given[:6] if x is not None]
        self.N, self.T = max(shape[0] for shape in shapes), shapes[0][1]
        values = given.c if given.c is not None else given.query_log
        features = given.a if given.a is not None else given.query_log
        assert features is not None and values is not None
        self.M = features.shape[-1] if given.directions is None else given.directions.shape[0]
        self.C = values.shape[-1]
        self.width = self.C + int(normalise)
        self.like = values

    def key_logs(self, start: int, stop: int) -> Tensor:
        key_log, offset, directions = self.given[4:]
        assert key_log is not None
        part = key_log[:, start:stop]
        if directions is None:
            return part
        logs = part @ directions.mT
        return logs if offset is None else logs.sub_(offset[:, start:stop])

    def segments(self) -> Iterator[Segment]:
        logs = None if self.given.key_log is None else self.key_logs
        return segments(logs, self.T, SEGMENT // (self.N * self.M), self.chunk)

    def chunks(self, x: Tensor, segment: Segment) -> Tensor:
        return x.expand(self.N, -1, -1).reshape(-1, segment.chunk, x.shape[-1])

    def read(self, segment: Segment, rows: Tensor | None = None) -> Read:
        window = slice(segment.start, segment.stop)
        a, b, c, q = (None if x is None else x[:, window] for x in self.given[:4])
        top, k = segment.top, segment.key_log
        a_scale = b_scale = lift = None
        if q is not None and top is not None:
            k = self.key_logs(segment.start, segment.stop) if k is None else k
            directions = self.given.directions
            raised = q + top if directions is None else (q @ directions.mT).add_(top)
            lowered = (k - top).exp_()
            if self.channels:
                c, lift = lowered, raised.exp_()
            else:
                if self.normalise:
                    if rows is None:
                        rows = raised.amax(-1, keepdim=True)
                    raised = raised.sub_(rows) if raised.shape[0] == self.N else raised - rows
                raised.exp_()
                a_scale, a = (None, raised) if a is None else (raised, raised * a)
                b_scale, b = (None, lowered) if b is None else (lowered, lowered * b)
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

    def gather(
        self, left: Tensor, right: Tensor, state: Tensor, backwards: bool
    ) -> tuple[Tensor, Tensor]:
        """Add left^T right of the chunks to a state (N,M,C), in their order or from the last.

        Returns the state at each chunk (N*G,M,C), itself excluded, and the state after them all.
        """
        G = left.shape[0] // self.N
        if G == 1:
            return state, torch.baddbmm(state, left.mT, right)
        gains = torch.bmm(left.mT, right).view(self.N, G, -1)
        order = torch.ones(G, G, dtype=state.dtype, device=state.device)
        order = order.triu_(1) if backwards else order.tril_(-1)
        # A product with a triangle of ones: for so few chunks much faster than a cumulative sum.
        before = torch.baddbmm(state.view(self.N, 1, -1), order.expand(self.N, G, G), gains)
        after = state.view(self.N, -1) + gains.sum(1)
        return before.view(-1, self.M, self.width), after.view(state.shape)

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        out = self.like.new_empty(self.N, self.T, self.C)
        mass = out.new_ones(self.N, self.T, 1) if self.normalise else out.new_empty(0)
        rows = out.new_zeros(self.N, self.T, 1) if self.normalise else out.new_empty(0)
        state = out.new_zeros(self.N, self.M, self.width)
        top: Tensor | None = None
        for segment in self.segments():
            read = self.read(segment)
            state = self.carry(state, top, segment.top)
            before, state = self.gather(read.b, read.c, state, backwards=False)
            near = torch.bmm(read.a, read.b.mT).tril_()
            mixed = torch.bmm(near, read.c).baddbmm_(read.a, before)
            if read.lift is not None:
                mixed *= read.lift
            mixed = mixed.view(self.N, -1, self.width)
            window = slice(segment.start, segment.stop)
            if self.normalise:
                total = mixed[..., self.C :]
                torch.div(mixed[..., : self.C], total, out=out[:, window])
                mass[:, window] = total
                if read.rows is not None:
                    rows[:, window] = read.rows
            else:
                out[:, window] = mixed
            top = segment.top
        if self.normalise:
            out.masked_fill_(mass == 0, 0.0)
        if not bool(state.isfinite().all()):
            self.keep_in_place(out, mass, rows)
        return out, mass, rows

    def keep_in_place(self, out: Tensor, mass: Tensor, rows: Tensor) -> None:
        """A NaN or infinity at position j makes NaN of the outputs from j on, of none before."""
        bad = torch.zeros(self.N, self.T, dtype=torch.bool, device=out.device)
        given = self.given
        for tensor in (given.b, given.c):
            if tensor is not None:
                bad |= ~tensor.isfinite().all(-1)
        if given.key_log is not None:
            bad |= ~(self.key_logs(0, self.T) < torch.inf).all(-1)
        if not bool(bad.any()):
            return  # finite numbers that overflowed: the infinities are the honest answer
        after = (bad.cumsum(1) > 0)[..., None]

        def clean(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.expand(self.N, -1, -1).masked_fill(after, 0.0)

        names = ("b", "c", "key_log", "offset")
        calm = given._replace(**{name: clean(getattr(given, name)) for name in names})
        again = Walk(calm, self.channels, self.normalise, self.chunk).forward()
        for result, good in zip((out, mass, rows), again, strict=True):
            if result.numel():
                result.copy_(good)
        out.masked_fill_(after, torch.nan)

    def backward(self, gradient: Tensor, out: Tensor, mass: Tensor, rows: Tensor) -> list[Tensor]:
        """The gradients of a, b, c, query_log, key_log and offset; absent ones are empty."""
        results = [
            self.like.new_empty(0) if x is None else x.new_empty(x.shape) for x in self.given[:6]
        ]
        if self.channels and self.given.query_log is not None:
            self.put(results[3], slice(None), gradient * out)
        if self.normalise:
            # out = mixed / total: total is one more channel, whose gradient is -(gradient . out).
            gradient = torch.cat([gradient, -(gradient * out).sum(-1, keepdim=True)], -1)
            gradient = gradient.div_(mass).masked_fill_(mass == 0, 0.0)
        begin = []
        state, top = out.new_zeros(self.N, self.M, self.width), None
        for segment in self.segments():
            state = self.carry(state, top, segment.top)
            begin.append((segment._replace(key_log=None), state))
            if segment.stop < self.T:
                read = self.read(segment, self.row(rows, segment))
                _, state = self.gather(read.b, read.c, state, backwards=False)
            top = segment.top
        later = torch.zeros_like(state)
        for segment, state in reversed(begin):
            later = self.carry(later, segment.top, top)
            top = segment.top
            read = self.read(segment, self.row(rows, segment))
            up = self.chunks(gradient[:, segment.start : segment.stop], segment)
            if read.lift is not None:
                up = up * read.lift
            before, _ = self.gather(read.b, read.c, state, backwards=False)
            after, later = self.gather(read.a, up, later, backwards=True)
            near = torch.bmm(read.a, read.b.mT).tril_()
            back = torch.bmm(up, read.c.mT).tril_()
            to_a = torch.bmm(back, read.b).baddbmm_(up, before.mT)
            to_b = torch.bmm(back.mT, read.a).baddbmm_(read.c, after.mT)
            to_c = torch.bmm(near.mT, up).baddbmm_(read.b, after)
            self.write(segment, read, (to_a, to_b, to_c), results)
        return results

    def row(self, rows: Tensor, segment: Segment) -> Tensor | None:
        return rows[:, segment.start : segment.stop] if rows.numel() else None

    def write(
        self,
        segment: Segment,
        read: Read,
        gradients: tuple[Tensor, Tensor, Tensor],
        results: list[Tensor],
    ) -> None:
        """The gradients of the products, handed to the mantissas and logarithms they came from."""
        window = slice(segment.start, segment.stop)
        to_a, to_b, to_c = (x.view(self.N, -1, x.shape[-1]) for x in gradients)
        a, b, c = (x.view(self.N, -1, x.shape[-1]) for x in (read.a, read.b, read.c))
        da, db, dc, dq, dk, offset = results
        if da.numel():
            self.put(da, window, to_a if read.a_scale is None else to_a * read.a_scale)
        if db.numel():
            self.put(db, window, to_b if read.b_scale is None else to_b * read.b_scale)
        if dc.numel():
            self.put(dc, window, to_c[..., : self.C])
        if dk.numel():
            to_key = to_c.mul_(c) if self.channels else to_b.mul_(b)
            if offset.numel():
                self.put(offset, window, -to_key.sum(-1, keepdim=True))
            self.put(dk, window, self.undirected(to_key))
        if dq.numel() and not self.channels:
            self.put(dq, window, self.undirected(to_a.mul_(a)))

    def undirected(self, to_log: Tensor) -> Tensor:
        return to_log if self.given.directions is None else to_log @ self.given.directions

    def put(self, result: Tensor, window: slice, value: Tensor) -> None:
        shared = result.shape[0] == 1 and self.N > 1
        result[:, window] = value.sum(0, keepdim=True) if shared else value
