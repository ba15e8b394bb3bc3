"""How the causal scan goes through the positions: in segments, forwards and backwards.

Shape letters: N batch times heads, T positions, M features, C channels, G chunks of a segment.
`scan.py` says what is computed; this file computes it. An input may have N = 1, shared by all.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# exp(60) = 1e26: the largest ratio of two weights that share a reference. Float32 ends at 1e38,
# so nothing that matters (1e-7 of a sum) is lost and nothing overflows.
SPREAD = 60.0
# Logarithms of queries and keys whose sum stays within this need no reference at all: a product
# of two exponentials is below exp(64) = 6e27, which leaves ten powers of ten for the sum over
# positions and the values.
CALM = 64.0
# Stands for "no key seen yet" where -inf would make -inf - (-inf) = NaN.
FLOOR = -1e30
CHUNK = 64
LOG2E = math.log2(math.e)
# What a forward pass leaves to its backward pass: no states, all of them, or those of one of the
# two ways of `calm.py`.
UNKNOWN, KNOWN, CALMLY, DIVIDED = range(4)
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
    top: Tensor | None  # (N,1,M or C): the reference of the key logarithms; None is zero
    logs: tuple[Tensor, Tensor] | None  # (N,L,M or C): of queries and keys


class Read(NamedTuple):
    """A segment in chunks, relative to its reference; products of a mantissa and an exponential."""

    a: Tensor  # (N*G, chunk, M)
    b: Tensor
    c: Tensor  # (N*G, chunk, C), with a column of ones when the scan is normalised
    a_scale: Tensor | None  # the exponential part of a and b, where both parts exist
    b_scale: Tensor | None
    lift: Tensor | None  # (N*G, chunk, C): what the channels of the output are multiplied by


def length(x: Tensor) -> Tensor:
    """Of vectors (.., d) -> (.., 1), of half precision in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    found: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return found


def with_ones(c: Tensor) -> Tensor:
    """One more channel of ones, whose sum is the row's."""
    wide = c.new_ones(*c.shape[:2], c.shape[2] + 1)
    wide[..., :-1] = c
    return wide


def by_position(like: Tensor, N: int, T: int, C: int) -> Tensor:
    """An empty (N,T,C) with the heads of a position side by side, as projections lie in memory."""
    return like.new_empty(T, N, C).transpose(0, 1)


Logs = Callable[[int, int], tuple[Tensor, Tensor]]


def calm(*logs: Tensor, limit: float = CALM) -> bool:
    """Whether exponentials and their products fit float32 as they are. -inf is a plain zero."""
    reach = 0.0
    for log in logs:
        low, high = (float(x) for x in log.aminmax())
        if low == -math.inf:
            low = float(log.masked_fill(log == -math.inf, 0.0).amin())
        reach += max(-low, high, 0.0) if low == low else math.nan
    return reach <= limit  # NaN is not


def seen(key_log: Tensor) -> Tensor:
    """(N,1,M): where a feature had a key at all; padding is minus infinity."""
    return key_log.amax(1, keepdim=True) > -math.inf


def segments(logs: Logs | None, T: int, size: int, chunk: int) -> Iterator[Segment]:
    """Cut T positions so that within a segment all logarithms can share one reference.

    As long as all logarithms are moderate that reference is zero, and nothing is subtracted. From
    the first that is not, it is the maximum over the past and over the segment itself; of a past
    that was nothing but padding there is none. If the
    segment's end rises far above its beginning, the beginning would underflow: such a segment is
    halved, down to single positions, whose reference is their own. With sane keys it never happens.
    """
    size = max(chunk, size // chunk * chunk)
    waiting = [(start, min(start + size, T)) for start in range(0, T, size)][::-1]
    top: Tensor | None = None
    here: tuple[Tensor, Tensor] | None = None
    while waiting:
        start, stop = waiting.pop()
        if logs is not None:
            here = logs(start, stop)
            key_log = here[1]
            if top is not None or not calm(*here):
                if top is None:
                    top = key_log.new_full((key_log.shape[0], 1, key_log.shape[2]), FLOOR)
                    for before in range(0, start, size):
                        past = logs(before, min(before + size, start))[1]
                        top.masked_fill_(seen(past), 0.0)
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
            part = None if here is None else (here[0][:, :whole], here[1][:, :whole])
            yield Segment(start, start + whole, chunk, top, part)
        if start + whole < stop:
            part = None if here is None else (here[0][:, whole:], here[1][:, whole:])
            yield Segment(start + whole, stop, stop - start - whole, top, part)


def room_for_states(N: int, T: int, M: int, chunk: int) -> int:
    """At least as many as `segments` gives where nothing is halved; also of symbolic sizes."""
    size: int = torch.sym_max(chunk, SEGMENT // (N * M) // chunk * chunk)  # type: ignore[no-untyped-call]
    return (T + size - 1) // size + 1


class Walk:
    def __init__(
        self, given: Inputs, square: float, channels: bool, normalise: bool, chunk: int
    ) -> None:
        self.given, self.square = given, square
        self.channels, self.normalise, self.chunk = channels, normalise, chunk
        shapes = [x.shape for x in given[:6] if x is not None]
        self.N, self.T = max(shape[0] for shape in shapes), shapes[0][1]
        values = given.c if given.c is not None else given.query_log
        features = given.a if given.a is not None else given.query_log
        assert features is not None and values is not None
        self.M = features.shape[-1] if given.directions is None else given.directions.shape[0]
        self.C = values.shape[-1]
        self.width = self.C + int(normalise)
        self.like = values

    def logs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        query_log, key_log, offset, directions = self.given[3:]
        assert query_log is not None and key_log is not None
        query, key = query_log[:, start:stop], key_log[:, start:stop]
        if directions is None:
            return query, key
        half = length(key).square_().mul_(self.square / 2)
        if offset is not None:
            half += offset[:, start:stop]
        turn = directions.mT.expand(self.N, -1, -1)
        return torch.bmm(query, turn), torch.bmm(key, turn).sub_(half)

    def segments(self, plain: bool = False) -> Iterator[Segment]:
        """`plain`: known to need no references."""
        logs = None if plain or self.given.key_log is None else self.logs
        return segments(logs, self.T, SEGMENT // (self.N * self.M), self.chunk)

    def chunks(self, x: Tensor, segment: Segment) -> Tensor:
        return x.expand(self.N, -1, -1).reshape(-1, segment.chunk, x.shape[-1])

    def read(self, segment: Segment) -> Read:
        window = slice(segment.start, segment.stop)
        a, b, c = (None if x is None else x[:, window] for x in self.given[:3])
        a_scale = b_scale = lift = None
        if self.given.key_log is not None:
            raised, lowered = self.exponentials(segment)
            if self.channels:
                c, lift = lowered, raised
            else:
                a_scale, a = (None, raised) if a is None else (raised, raised * a)
                b_scale, b = (None, lowered) if b is None else (lowered, lowered * b)
        assert a is not None and b is not None and c is not None
        if self.normalise:
            c = with_ones(c)
        a, b, c = (self.chunks(x, segment) for x in (a, b, c))
        if lift is not None:
            lift = self.chunks(lift, segment)
        return Read(a, b, c, a_scale, b_scale, lift)

    def exponentials(self, segment: Segment) -> tuple[Tensor, Tensor]:
        """Of queries and keys, relative to the segment's reference."""
        query, key = segment.logs or self.logs(segment.start, segment.stop)
        if segment.top is None:
            if self.given.directions is None:
                return query.exp(), key.exp()
            return query.exp_(), key.exp_()
        raised = query + segment.top
        if self.normalise:
            # A factor of a row cancels in the division.
            raised = raised - raised.amax(-1, keepdim=True)
        return raised.exp_(), (key - segment.top).exp_()

    def carry(self, state: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        """A state relative to one reference, made relative to another."""
        if after is None or before is after:
            return state  # zero was the reference of both, or the same maximum
        # From zero a reference only rises, unless nothing was seen yet and the state is zero.
        factor = after.neg().clamp_(max=0.0) if before is None else before - after
        factor.exp_()
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
        # One sum after the other: faster than a cumulative sum, or a product with a triangle.
        before = torch.empty_like(gains)
        after = state.view(self.N, -1)
        for g in reversed(range(G)) if backwards else range(G):
            before[:, g] = after
            after = after + gains[:, g]
        return before.view(-1, self.M, self.width), after.view(state.shape)

    def states_for(self, keep: bool) -> Tensor:
        """For the states before the segments, if they are to be kept for a gradient."""
        count = room_for_states(self.N, self.T, self.M, self.chunk) if keep else 0
        return self.like.new_empty(count, self.N, self.M, self.width)

    def turned(self, states: Tensor) -> Tensor:
        """The same memory with channels before features, as `calm.py` has them."""
        return states.view(len(states), self.N, self.width, self.M)

    def forward(self, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs, row sums, the states before the segments, and whether these are all.

        References belong to the states: where there were any, the backward pass walks again.
        """
        out = by_position(self.like, self.N, self.T, self.C)
        mass = out.new_ones(self.N, self.T, 1) if self.normalise else out.new_empty(0)
        states = self.states_for(keep)
        state, top = out.new_zeros(self.N, self.M, self.width), None
        for number, segment in enumerate(self.segments()):
            read = self.read(segment)
            state = self.carry(state, top, segment.top)
            top = segment.top
            if number < len(states):
                states[number] = state
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
            else:
                out[:, window] = mixed
        if self.normalise and bool((mass == 0).any()):
            out.masked_fill_(mass == 0, 0.0)
        if not bool(state.isfinite().all()):
            self.keep_in_place(out, mass)
        return out, mass, states, torch.tensor(KNOWN if keep and top is None else UNKNOWN)

    def keep_in_place(self, out: Tensor, mass: Tensor) -> None:
        """A NaN or infinity at position j makes NaN of the outputs from j on, of none before."""
        bad = torch.zeros(self.N, self.T, dtype=torch.bool, device=out.device)
        given = self.given
        for tensor in (given.b, given.c):
            if tensor is not None:
                bad |= ~tensor.isfinite().all(-1)
        if given.key_log is not None:
            bad |= ~(self.logs(0, self.T)[1] < torch.inf).all(-1)
        if not bool(bad.any()):
            return  # finite numbers that overflowed: the infinities are the honest answer
        after = (bad.cumsum(1) > 0)[..., None]

        def clean(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.expand(self.N, -1, -1).masked_fill(after, 0.0)

        names = ("b", "c", "key_log", "offset")
        tame = given._replace(**{name: clean(getattr(given, name)) for name in names})
        again = Walk(tame, self.square, self.channels, self.normalise, self.chunk).forward(False)
        for result, good in zip((out, mass), again[:2], strict=True):
            if result.numel():
                result.copy_(good)
        out.masked_fill_(after, torch.nan)

    def backward(
        self, gradient: Tensor, out: Tensor, mass: Tensor, states: Tensor, known: bool
    ) -> list[Tensor]:
        """The gradients of a, b, c, query_log and key_log; absent ones are empty."""
        results = [
            self.like.new_empty(0) if x is None else by_position(x, *x.shape)
            for x in self.given[:5]
        ]
        if self.channels and self.given.query_log is not None:
            self.put(results[3], slice(None), gradient * out)
        if self.normalise:
            # out = mixed / total: total is one more channel, whose gradient is -(gradient . out).
            gradient = torch.cat([gradient, -(gradient * out).sum(-1, keepdim=True)], -1)
            gradient = gradient.div_(mass)
            if bool((mass == 0).any()):
                gradient.masked_fill_(mass == 0, 0.0)
        # There is room for more states than segments.
        plain = zip(self.segments(plain=True), states, strict=False)
        begin = list(plain) if known else self.walk_again()
        later, top = torch.zeros_like(begin[0][1]), begin[-1][0].top
        for segment, state in reversed(begin):
            later = self.carry(later, segment.top, top)
            top = segment.top
            read = self.read(segment)
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

    def walk_again(self) -> list[tuple[Segment, Tensor]]:
        """The segments and the state before each, relative to its reference."""
        begin = []
        state, top = self.like.new_zeros(self.N, self.M, self.width), None
        for segment in self.segments():
            state = self.carry(state, top, segment.top)
            begin.append((segment._replace(logs=None), state))
            if segment.stop < self.T:
                read = self.read(segment)
                _, state = self.gather(read.b, read.c, state, backwards=False)
            top = segment.top
        return begin

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
        da, db, dc, dq, dk = results
        if da.numel():
            self.put(da, window, to_a if read.a_scale is None else to_a * read.a_scale)
        if db.numel():
            self.put(db, window, to_b if read.b_scale is None else to_b * read.b_scale)
        if dc.numel():
            self.put(dc, window, to_c[..., : self.C])
        if dk.numel():
            to_key = to_c.mul_(c) if self.channels else to_b.mul_(b)
            directions, keys = self.given.directions, self.given.key_log
            if directions is None or keys is None:
                self.put(dk, window, to_key)
            else:
                shrink = to_key.sum(-1, keepdim=True).mul_(self.square) * keys[:, window]
                self.put(dk, window, (to_key @ directions).sub_(shrink))
        if dq.numel() and not self.channels:
            to_query = to_a.mul_(a)
            directions = self.given.directions
            self.put(dq, window, to_query if directions is None else to_query @ directions)

    def put(self, result: Tensor, window: slice, value: Tensor) -> None:
        shared = result.shape[0] == 1 and self.N > 1
        result[:, window] = value.sum(0, keepdim=True) if shared else value
