"""Performer, FAVOR+ (Choromanski et al. 2020, arXiv:2009.14794): softmax by random features.

exp(q.k) is the mean of phi(q).phi(k) over random w, so attention is phi(Q) (phi(K)^T V), linear in
the length. With x standing for q or k (both divided by d^(1/4)) and w ~ N(0, I):

    positive    exp(w.x - |x|^2/2)
    hyperbolic  exp(+w.x - |x|^2/2), exp(-w.x - |x|^2/2)
    trig        exp(+|x|^2/2) (sin w.x, cos w.x)     unbiased too, but of either sign: see below
    relu        max(w.x, 0) + 0.001                  another kernel, not softmax's

Trigonometric features make weights and row sums of either sign; where the kernel is small a row sum
comes near zero and training breaks. They are here because the paper's argument is about them.

Factors of a query cancel in the division by the row sum, so |q|^2/2 is never computed. Features are
kept as logarithms as long as possible (`scan.py`): no epsilon, and nothing of the future stays.
"""

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from whence.attention.base import Attention, lifted, unrounded
from whence.attention.checks import State, refuse_below
from whence.attention.linear import linear
from whence.attention.look_back import aim_back
from whence.attention.scan import causal_scan
from whence.attention.short import SHORT, SMALLEST, feature_pairs
from whence.attention.softmax import masked_softmax
from whence.attention.walk import FLOOR
from whence.attention.whole import hide, whole_attention

KINDS = ("positive", "hyperbolic", "trig", "relu")
DRAWS = ("orthogonal", "iid")
HELD = 1 << 24  # numbers that exist at a time while a picture is made pair by pair
ROUNDED = 0.1  # more than conversions to half precision change, less than another draw
SHARP = 2.0  # gain of a head that looks back: more of it, and some features drown the others


class Features(NamedTuple):
    """phi(q) and phi(k), each a mantissa times the exponential of a logarithm; None is one."""

    a: Tensor | None
    b: Tensor | None
    query_log: Tensor | None
    key_log: Tensor | None


class Performer(Attention):
    """features: number of random directions w. kind, draw: see above. redraw(seed): new ones."""

    mechanism = "performer"
    variants: ClassVar = {
        **{kind: {"kind": kind, "features": 16} for kind in KINDS},
        "iid": {"draw": "iid", "features": 7},
        "rope": {"rope": True, "qk_norm": True, "features": 16},
    }
    directions: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        features: int = 128,
        kind: str = "positive",
        draw: str = "orthogonal",
        **shared: Any,
    ) -> None:
        super().__init__(width, heads, context, causal, **shared)
        refuse_below(1, features=features)
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        if draw not in DRAWS:
            raise ValueError(f"draw must be one of {', '.join(DRAWS)}, not {draw!r}")
        self.features, self.kind, self.draw = features, kind, draw
        # Part of the function, so part of a checkpoint.
        drawn = draw_directions(features, self.head_width, draw, self.seed)
        self.register_buffer("directions", drawn.to(self.proj.weight.dtype))

    def redraw(self, seed: int) -> None:
        """New random directions, in place. Deliberate: nothing redraws by itself."""
        self.seed = seed
        self.directions.copy_(draw_directions(self.features, self.head_width, self.draw, seed))

    def drawn_from_seed(self) -> bool:
        """Not if the directions were loaded from a layer with another seed."""
        drawn = draw_directions(self.features, self.head_width, self.draw, self.seed)
        return bool((self.directions - drawn.to(self.directions)).abs().max() < ROUNDED)

    def look_back(self, nearest: int = 1) -> None:
        """Roughly: with 128 features a third of the weight falls on the position looked at."""
        if self.kind not in ("positive", "hyperbolic"):
            raise ValueError(f"features of kind {self.kind!r} do not let the best match win")
        aim_back(self, nearest, SHARP)

    def options(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "kind": self.kind,
            "draw": self.draw,
            "seed": self.seed if self.drawn_from_seed() else None,
            "dropout_of": "sources",
        }

    def phi(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Features:
        """(B,H,T,d), (B,H,S,d) -> features (B,H,T,M), (B,H,S,M); a padded key has none."""
        scale = self.head_width**-0.25
        turn = (self.directions * scale).to(queries.dtype)
        q, k = linear(queries, turn), linear(keys, turn)
        hidden = None if padding is None else ~padding[:, None, :, None]
        if self.kind == "relu":
            a, b = q.relu() + 1e-3, k.relu() + 1e-3
            return Features(a, b if hidden is None else b.masked_fill(hidden, 0.0), None, None)
        half = keys.square().sum(-1, keepdim=True) * (0.5 * scale**2)
        if self.kind == "trig":
            a, b = torch.cat([q.sin(), q.cos()], -1), torch.cat([k.sin(), k.cos()], -1)
            waves: tuple[Tensor | None, Tensor | None] = a, b
            key_log = half.expand(*half.shape[:-1], b.shape[-1])
            query_log = queries.new_zeros(1, 1, 1, 1).expand(a.shape)
        else:
            waves = None, None
            if self.kind == "hyperbolic":
                query_log, key_log = torch.cat([q, -q], -1), torch.cat([k - half, -k - half], -1)
            else:
                query_log, key_log = q, k.sub_(half)  # in place: new memory costs more than sums
        if hidden is not None:
            key_log = key_log.masked_fill(hidden, -math.inf)
        return Features(*waves, query_log, key_log)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        values = self.drop_sources(values)
        if self.causal:
            keys, values, padding = self.align(queries.shape[2], keys, values, padding)
            if self.kind in ("positive", "hyperbolic"):
                turn, square, offset = self.turn_and_offset(keys, padding)
                out = causal_scan(
                    None,
                    None,
                    values,
                    query_log=queries,
                    key_log=keys,
                    offset=offset,
                    directions=turn,
                    square=square,
                    normalise=True,
                )
                return out.to(values.dtype)
            a, b, query_log, key_log = self.phi(queries, keys, padding)
            out = causal_scan(a, b, values, query_log=query_log, key_log=key_log, normalise=True)
            return out.to(values.dtype)
        if self.kind in ("positive", "hyperbolic"):
            turn, square, offset = self.turn_and_offset(keys, padding)
            out = whole_attention(queries, keys, values, turn, square, offset)
            return out.to(values.dtype)
        kind = values.dtype
        queries, keys, values = lifted(queries, keys, values)
        a, b, query_log, key_log = self.phi(queries, keys, padding)
        if query_log is not None and key_log is not None:
            # Any reference gives the same result; this one overflows nowhere.
            top = key_log.detach().amax(2, keepdim=True).clamp(min=FLOOR)
            raised, lowered = query_log + top, (key_log - top).exp()
            raised = (raised - raised.detach().amax(-1, keepdim=True)).exp()
            a, b = raised if a is None else a * raised, lowered if b is None else b * lowered
        assert a is not None and b is not None
        total = a @ b.sum(2, keepdim=True).mT
        # Where nothing is real both are zero, and dividing by one leaves a gradient, too.
        return (a @ (b.mT @ values) / total.masked_fill(total == 0, 1.0)).to(kind)

    def mix_rounded(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor | None:
        """Of short texts in training: there a scan in float32 takes as long as all else does."""
        # Half precision of the other kind has no room for what features are.
        if torch.compiler.is_compiling() or values.dtype != torch.bfloat16:
            return None
        exponential = self.kind in ("positive", "hyperbolic")
        short = queries.shape[2] == keys.shape[2] <= SHORT and torch.is_grad_enabled()
        if not (self.causal and exponential and short and padding is None):
            return None
        turn, square, _ = self.turn_and_offset(keys, None)
        return feature_pairs(queries, keys, self.drop_sources(values), turn, square)

    def turn_and_offset(
        self, keys: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, float, Tensor | None]:
        """Directions (M,d), scaled; the factor of |k|^2/2; what hides padded keys (B,H,S,1)."""
        scale = self.head_width**-0.25
        turn = self.directions * scale
        if self.kind == "hyperbolic":
            turn = torch.cat([turn, -turn])
        return turn, scale**2, hide(padding, keys)

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        T, S, precision = queries.shape[2], keys.shape[2], queries.dtype
        queries, keys = lifted(queries, keys)
        a, b, query_log, key_log = self.phi(queries, keys, padding)
        mask = self.visible(T, S, padding, queries.device)
        if self.kind in ("positive", "hyperbolic"):
            assert query_log is not None and key_log is not None
            return masked_softmax(log_kernel(query_log, key_log, mask), mask).to(precision)
        assert a is not None and b is not None
        kernel = a @ b.mT
        if key_log is not None:
            scale = key_log[..., 0].unsqueeze(2).expand_as(kernel)
            if mask is not None:
                scale = scale.masked_fill(~mask, -math.inf)
            kernel = kernel * (scale - scale.amax(-1, keepdim=True).clamp(min=FLOOR)).exp()
        elif mask is not None:
            kernel = kernel.masked_fill(~mask, 0.0)
        total = kernel.sum(-1, keepdim=True)
        return (kernel / total.masked_fill(total == 0, 1.0)).to(precision)

    @unrounded
    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        self.check_prefill(x, room)
        queries, keys, values = self.heads_of(x)
        y = self.project(self.mix(queries, keys, values, None))
        queries, keys, values = lifted(queries, keys, values)
        _, b, _, key_log = self.phi(queries, keys, None)
        if key_log is None:
            assert b is not None
            top, scaled = b.new_zeros(*b.shape[:2], b.shape[-1]), b
        else:
            top = key_log.amax(2)
            scaled = (key_log - top[:, :, None]).exp()
            scaled = scaled if b is None else scaled * b
        ones = values.new_ones(*values.shape[:3], 1)
        return y, {"sum": scaled.mT @ torch.cat([values, ones], -1), "top": top}

    @unrounded
    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        self.check_step(x, state, positions)
        queries, keys, values = lifted(*self.heads_of(x, positions=positions))
        a, b, query_log, key_log = self.phi(queries, keys, None)
        total, top = state["sum"], state["top"][:, :, None]
        if query_log is not None and key_log is not None:
            before, top = top, torch.maximum(top, key_log)
            total = total * (before - top).exp().mT
            raised, lowered = query_log + top, (key_log - top).exp()
            raised = (raised - raised.amax(-1, keepdim=True)).exp()
            a, b = raised if a is None else a * raised, lowered if b is None else b * lowered
        assert a is not None and b is not None
        total = total + b.mT @ torch.cat([values, values.new_ones(*values.shape[:3], 1)], -1)
        mixed = a @ total
        y = self.project((mixed[..., :-1] / mixed[..., -1:]).to(x.dtype))
        return y, {"sum": total, "top": top[:, :, 0]}


def log_kernel(query_log: Tensor, key_log: Tensor, mask: Tensor | None) -> Tensor:
    """(B,H,T,M), (B,H,S,M) -> (B,H,T,S): the logarithm of phi(q) . phi(k).

    One reference a row and a column serves moderate logarithms. Where it does not (no feature is
    large for both), every pair gets its own, some rows at a time.
    """
    # A padded key has some logarithm, too: that of zero has no gradient. The mask hides it.
    key_log = key_log.clamp(min=FLOOR)
    rows, columns = (x.detach().amax(-1, keepdim=True) for x in (query_log, key_log))
    kernel = (query_log - rows).exp() @ (key_log - columns).exp().mT
    lost = kernel < SMALLEST
    if not bool((lost if mask is None else lost & mask).any()):
        return kernel.log() + rows + columns.mT
    some = max(1, HELD // key_log.numel())
    parts = [
        torch.logsumexp(query_log[:, :, start : start + some, None] + key_log[:, :, None], -1)
        for start in range(0, query_log.shape[2], some)
    ]
    return torch.cat(parts, 2)


def draw_directions(features: int, width: int, draw: str, seed: int) -> Tensor:
    """(features, width) float64: standard Gaussian rows; `orthogonal` within blocks of `width`.

    The sign fix matters: without it QR's factor is not uniformly distributed, and the estimate of
    the kernel is biased.
    """
    generator = torch.Generator().manual_seed(seed)

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    if draw == "iid":
        return gaussian(features)
    blocks = []
    for _ in range(math.ceil(features / width)):
        factor, triangle = torch.linalg.qr(gaussian(width))
        turned = factor * triangle.diagonal().sign()
        # The lengths of independent Gaussian vectors, so that each row is N(0, I).
        blocks.append(turned.mT * gaussian(width).norm(dim=1, keepdim=True))
    return torch.cat(blocks)[:features]
