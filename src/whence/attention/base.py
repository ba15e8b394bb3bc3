"""The interface of every attention mechanism, and the projections that they share.

Shape letters: B batch, T queries, S sources, H heads, D width, d = D/H the width of a head.

A mechanism decides how much each query takes from each source. All of them are linear in the
values, so each has a `pattern` (B, H, T, S) with

    forward(x) == project(pattern(x) @ values(x))        (evaluation mode)

and what is drawn is what the model did. A new mechanism writes one method, `mix`;
`docs/add-a-mechanism.md` shows one. Its pattern and its decoding then work at once, through the
general `weights`, `prefill` and `step` below; a mechanism with a shorter way overrides them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.attention.beside import apart
from whence.attention.checks import (
    Checked,
    State,
    refuse_below,
    refuse_unless_flag,
    refuse_unless_share,
    refuse_unless_whole,
)
from whence.attention.dropout import drop
from whence.attention.linear import Linear, linear
from whence.attention.rotation import Rotation

HELD = 1 << 22  # numbers that the making of a picture holds at a time
Layer = TypeVar("Layer", bound="Attention")
Rest = ParamSpec("Rest")


def in_parts(queries: Tensor, each: int) -> Iterator[tuple[int, Tensor]]:
    """Queries (B,H,T,d) some rows at a time, with the number of the first; `each`: what a row
    costs. A picture needs no more memory for its making than for itself."""
    size = max(1, HELD // max(1, each))
    for first in range(0, queries.shape[2], size):
        yield first, queries[:, :, first : first + size]


def unrounded(
    method: Callable[Concatenate[Layer, Tensor, Rest], tuple[Tensor, State]],
) -> Callable[Concatenate[Layer, Tensor, Rest], tuple[Tensor, State]]:
    """A `prefill` or `step` of running sums: under autocast in the precision of the weights."""

    @wraps(method)
    def precise(
        layer: Layer, x: Tensor, /, *args: Rest.args, **options: Rest.kwargs
    ) -> tuple[Tensor, State]:
        if not torch.is_autocast_enabled(x.device.type):
            return method(layer, x, *args, **options)
        with torch.autocast(x.device.type, enabled=False):
            return method(layer, x.to(layer.proj.weight.dtype), *args, **options)

    return precise


def lifted(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In float32 if they are of half precision: running sums would stand still at 256 + 1."""
    return tuple(x.float() if x.dtype.itemsize < 4 else x for x in tensors)


class Attention(Checked):
    """Multi-head attention; subclasses say how the values are mixed.

    width: D, the size of a position's vector; a multiple of `heads`.
    context: the longest sequence.
    causal: query i sees sources j <= i only.
    dropout: probability that an attention weight is dropped in training. Mechanisms that never
        hold the weights drop whole sources per head instead; `describe` says which.
    rope: rotate queries and keys by their position.
    qk_norm: bring queries and keys to root mean square one, so that scores cannot grow.
    seed: of whatever is random and part of the function (a graph, random features).
    """

    # Settings that the laws are checked for, by name. "causal" among them restricts to that mode.
    variants: ClassVar[dict[str, dict[str, Any]]] = {"default": {}}
    # Whether under autocast `mix` is made in low precision; else only the projections are.
    rounds: ClassVar[bool] = False
    # What the rows of `pattern` promise: that they sum to one over the visible sources.
    rows_sum_to_one: bool = True

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        rope: bool = False,
        qk_norm: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        refuse_below(1, width=width, heads=heads, context=context)
        refuse_unless_flag(causal=causal, bias=bias, rope=rope, qk_norm=qk_norm)
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        refuse_unless_share(dropout=dropout)
        refuse_unless_whole(seed=seed)
        self.width, self.heads, self.context, self.causal = width, heads, context, causal
        self.head_width = width // heads
        self.dropout, self.qk_norm, self.seed = dropout, qk_norm, seed
        self.make_projections(bias)
        self.rotation: Rotation | None = None
        if rope:
            self.rotation = Rotation(self.head_width, context)

    def make_projections(self, bias: bool) -> None:
        """One matrix for queries, keys and values: one product instead of three."""
        self.qkv = Linear(self.width, 3 * self.width, bias=bias)
        self.proj = Linear(self.width, self.width, bias=bias)

    # What a mechanism writes ------------------------------------------------------------------

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        """(B,H,T,d), (B,H,S,d), (B,H,S,d), (B,S) or None -> (B,H,T,d).

        Not abstract: a mechanism without queries and keys (the synthesizer) has its own `forward`.
        """
        raise TypeError(f"{type(self).__name__} defines neither mix nor a forward of its own")

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        """The (B,H,T,S) weights by which `mix` mixes the values: what it makes of the identity."""
        identity = torch.eye(keys.shape[2], dtype=keys.dtype, device=keys.device)
        identity = identity.expand(*keys.shape[:2], -1, -1)
        training = self.training
        try:
            return self.eval().mix(queries, keys, identity, padding)
        finally:
            self.train(training)

    def mix_rounded(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor | None:
        """`mix` of half-precision heads under autocast, if there is a way that may be rounded."""
        return None

    def options(self) -> dict[str, Any]:
        """The mechanism's own settings, for `describe`."""
        return {}

    def look_back(self, nearest: int = 1) -> None:
        """Start with half of the heads looking back: `nearest` positions, one more, and so on; with
        all of them where none can find anything by what the text says.

        `look_back.py` says how a head knows where it is, and has what a mechanism needs for it.
        """
        raise ValueError(
            f"{type(self).__name__.lower()} has no head that looks at one single position"
        )

    # What everybody calls ---------------------------------------------------------------------

    def forward(
        self, x: Tensor, source: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """(B,T,D) -> (B,T,D). `padding` (B,S) is True where a source position is real."""
        self.check(x, source, padding)
        if x.shape[0] == 0:
            result: Tensor = self.proj(x)  # a batch of nobody
            return result
        return self.project(self.mixed(x, source, padding))

    def mixed(self, x: Tensor, source: Tensor | None, padding: Tensor | None) -> Tensor:
        """(B,H,T,d): what `forward` projects, of arguments that were checked."""
        queries, keys, values = self.heads_of(x, source)
        keys, values = self.blank(padding, keys, values)
        if self.rounds or values.dtype == self.proj.weight.dtype:
            return self.mix(queries, keys, values, padding)
        rounded = self.mix_rounded(queries, keys, values, padding)
        if rounded is not None:
            return rounded
        # Under autocast: running sums and exponentials want the precision of the weights.
        with torch.autocast(x.device.type, enabled=False):
            kind = self.proj.weight.dtype
            return self.mix(queries.to(kind), keys.to(kind), values.to(kind), padding)

    def pattern(
        self, x: Tensor, source: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """(B,H,T,S): how much of each source's value each query takes in evaluation mode."""
        self.check(x, source, padding)
        about = x if source is None else source
        if x.shape[0] == 0:
            return x.new_zeros(0, self.heads, x.shape[1], about.shape[1])
        return self.picture(x, about, padding)

    def picture(self, x: Tensor, source: Tensor, padding: Tensor | None) -> Tensor:
        """What `pattern` returns, of arguments that were checked."""
        queries, keys, _ = self.heads_of(x, None if source is x else source)
        (keys,) = self.blank(padding, keys)
        return self.weights(queries, keys, padding)

    def values(self, source: Tensor) -> Tensor:
        """(B,S,D) -> (B,H,S,d)."""
        weight, bias = self.qkv.weight, self.qkv.bias
        rows = slice(2 * self.width, None)
        return self.split(linear(source, weight[rows], None if bias is None else bias[rows]))

    def project(self, mixed: Tensor) -> Tensor:
        """(B,H,T,d) -> (B,T,D)."""
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result

    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        """Read a beginning (B,T,D) of one length; return its outputs and the state to go on from.

        `room`: how many positions the state will ever hold, T included (`context` if left out).
        The state is a dictionary of tensors, batch first, whose sizes depend on the room only:
        states of beginnings of different lengths can be concatenated.
        """
        self.check_prefill(x, room)
        history = x.new_zeros(x.shape[0], room or self.context, self.width)
        history[:, : x.shape[1]] = x
        return self(x), {"history": history}

    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        """One new token x (B,1,D) per row, at `positions` (B,). The state is written in place.

        A mechanism with `strides` takes several, x (B,R,D), of which `positions` places the first.
        Every position is given once and in order: what has been read is not taken back.
        """
        self.check_step(x, state, positions, state["history"].shape[1])
        history, rows = state["history"], torch.arange(x.shape[0], device=x.device)
        history[rows, positions] = x[:, 0]
        # Causality makes the junk after a row's own position harmless.
        y = self(history[:, : int(positions.max()) + 1])
        return y[rows, positions][:, None], state

    def describe(self) -> dict[str, Any]:
        """What really runs: mechanism, options and number of parameters."""
        return {
            "mechanism": self.mechanism,
            "causal": self.causal,
            "width": self.width,
            "heads": self.heads,
            "context": self.context,
            "rope": self.rotation is not None,
            "qk_norm": self.qk_norm,
            "dropout": self.dropout,
            **self.options(),
            "parameters": sum(parameter.numel() for parameter in self.parameters()),
        }

    def extra_repr(self) -> str:
        own = {k: v for k, v in self.describe().items() if k not in ("mechanism", "parameters")}
        return ", ".join(f"{name}={value}" for name, value in own.items())

    # Pieces for the mechanisms ----------------------------------------------------------------

    def split(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,H,T,d)."""
        return x.reshape(*x.shape[:2], self.heads, self.head_width).transpose(1, 2)

    def heads_of(
        self, x: Tensor, source: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B,H,T,d) of x, keys and values (B,H,S,d) of the source, or of x."""
        # Taken apart along the positions, so that the gradients are put together by plain copies.
        if source is None:
            joined = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, self.head_width)
            if not self.qk_norm and (self.rotation is None or self.turned(joined, positions)):
                if not joined.requires_grad:  # the same in fewer calls
                    queries, keys, values = joined.transpose(1, 3).unbind(2)
                    return queries, keys, values
                parts = apart(joined)
            else:
                *asking, values = apart(joined)
                parts = (*self.place(positions, *asking), values)
        else:
            weight, bias, D = self.qkv.weight, self.qkv.bias, self.width
            queries = linear(x, weight[:D], None if bias is None else bias[:D])
            queries = queries.reshape(*x.shape[:2], self.heads, self.head_width)
            joined = linear(source, weight[D:], None if bias is None else bias[D:])
            shape = (*source.shape[:2], 2, self.heads, self.head_width)
            keys, values = joined.reshape(shape).unbind(2)
            parts = (*self.place(positions, queries), *self.place(positions, keys), values)
        queries, keys, values = (part.transpose(1, 2) for part in parts)  # (B,T,H,d)
        return queries, keys, values

    def turned(self, joined: Tensor, positions: Tensor | None) -> bool:
        """Rotate the queries and keys of (B,T,3,H,d) where they are, if that may be: a hook of the
        projection, or somebody's own projection, may have kept them."""
        rotation, hooks = self.rotation, torch.nn.modules.module._global_forward_hooks
        if type(self.qkv) is not Linear or self.qkv._forward_hooks or hooks:
            return False
        if "forward" in vars(self.qkv) or type(self).place is not Attention.place:
            return False
        if type(rotation) is not Rotation or not rotation.may_turn_in_place(joined):
            return False
        rotation.turn_in_place(positions, joined[:, :, :2])
        return True

    def place(self, positions: Tensor | None, *heads: Tensor) -> Sequence[Tensor]:
        """Norm and rotation of queries, keys or both (B,T,H,d), if there are."""
        if self.qk_norm:
            heads = tuple(F.rms_norm(x, (self.head_width,)) for x in heads)
        rotation = self.rotation
        return heads if rotation is None else rotation.turn(positions, *heads)

    def visible(
        self, T: int, S: int, padding: Tensor | None, device: torch.device
    ) -> Tensor | None:
        """True where query i may see source j: (T,S), (B,1,1,S), (B,1,T,S), or None for all."""
        mask = None
        if self.causal:
            mask = torch.ones(T, S, dtype=torch.bool, device=device).tril()
        if padding is not None:
            real = padding[:, None, None, :]
            mask = real if mask is None else mask & real
        return mask

    def align(
        self, T: int, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """For a causal scan: exactly T sources. Later ones are unseen; missing ones are padding."""
        S = keys.shape[2]
        if T < S:
            padding = None if padding is None else padding[:, :T]
            return keys[:, :, :T], values[:, :, :T], padding
        if T > S:
            if padding is None:
                padding = torch.ones(keys.shape[0], S, dtype=torch.bool, device=keys.device)
            padding = F.pad(padding, (0, T - S))
            keys, values = F.pad(keys, (0, 0, 0, T - S)), F.pad(values, (0, 0, 0, T - S))
        return keys, values, padding

    def blank(self, padding: Tensor | None, *sources: Tensor) -> tuple[Tensor, ...]:
        """Keys or values (B,H,S,d) with zeros where nothing is real, whatever stands there.

        Their weight is zero, but zero times NaN is NaN.
        """
        if padding is None:
            return sources
        nothing = ~padding[:, None, :, None]
        return tuple(source.masked_fill(nothing, 0.0) for source in sources)

    def contain(
        self, T: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """Keep a NaN where it is: causal mechanisms multiply hidden values by a weight of zero, and
        0 * NaN is NaN, as 0 times infinity is. Taken out of keys and values, both are handed on by
        a running sum of zeros, to be added to the T outputs: NaN from there on, nothing before.
        """
        if not self.causal:
            return keys, values, 0.0
        trace = ((keys.detach().sum(-1) + values.detach().sum(-1)) * 0.0).cumsum(-1)[..., :T]
        missing = T - trace.shape[-1]
        if missing:
            trace = torch.cat([trace, trace[..., -1:].expand(-1, -1, missing)], -1)
        keys, values = (x.nan_to_num(0.0, 0.0, 0.0) for x in (keys, values))
        return keys, values, trace[..., None]

    def drop_sources(self, values: Tensor) -> Tensor:
        """Dropout for mechanisms that never hold the weights: whole sources, drawn per head."""
        if not self.training or self.dropout == 0.0:
            return values
        return values * drop(values.new_ones(*values.shape[:3], 1), self.dropout, True)
