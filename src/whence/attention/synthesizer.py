"""Synthesizer (Tay et al. 2020, arXiv:2005.00743): attention weights without queries and keys.

Row i of the logits, before mask and softmax:

    dense              W2 relu(W1 x_i + b1) + b2             per head
    course             the same with W2, b2 shared by the heads: the assignment of CS 224n, 2021-22
    random             R_i, learned
    fixed              R_i, drawn from `seed` and not learned
    factorised-random  R1_i R2^T, of rank `rank`
    factorised-dense   A(x_i) tiled times B(x_i) repeated, lengths a b >= context
    mixture            a learned convex combination of the logits of `members`,
                       of which "softmax" is q_i . k_j / sqrt d

A row depends on x_i alone (softmax apart), so hiding j > i is exactly causal. There is no 1/sqrt d
and no product of queries with keys; the product with the values remains T^2 d.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.attention.base import Attention
from whence.attention.checks import State, refuse_below
from whence.attention.dropout import drop
from whence.attention.linear import Linear, linear
from whence.attention.look_back import backwards, refuse_alike, turn, waves
from whence.attention.softmax import SHORT, masked_softmax

FORMS = ("dense", "random", "fixed", "factorised-random", "factorised-dense", "course")
ROUNDED = 0.1  # more than conversions to half precision change, less than another draw
DENSE = ("dense", "factorised-dense", "course")
LEARNED = ("dense", "course")  # logits are hidden units times one learned matrix


class Synthesizer(Attention):
    """form: see above. columns: sources that the logits have room for, `context` by default.

    rank: of factorised-random. members: of mixture.
    """

    mechanism = "synthesizer"
    variants: ClassVar = {
        **{form: {"form": form} for form in FORMS},
        "mixture": {"form": "mixture"},
        "mixture-of-all": {"form": "mixture", "members": [*FORMS, "softmax"], "rope": True},
    }
    logits_fixed: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        form: str = "dense",
        columns: int | None = None,
        rank: int | None = None,
        members: Sequence[str] | None = None,
        **rest: Any,
    ) -> None:
        if form not in (*FORMS, "mixture"):
            raise ValueError(f"form must be one of {', '.join(FORMS)}, mixture, not {form!r}")
        if members is not None and form != "mixture":
            raise ValueError(f"members belong to the form mixture, not {form!r}")
        self.form = form
        self.members: tuple[str, ...] = (form,)
        if form == "mixture":
            self.members = ("dense", "softmax") if members is None else tuple(members)
        unknown = [member for member in self.members if member not in (*FORMS, "softmax")]
        if unknown or not self.members or len(set(self.members)) != len(self.members):
            raise ValueError(
                f"members must be different ones of {', '.join(FORMS)}, softmax, "
                f"not {list(self.members)}"
            )
        for option in ("rope", "qk_norm"):
            if rest.get(option) and "softmax" not in self.members:
                raise ValueError(f"synthesizer has no queries and keys: {option} means nothing")
        if rank is not None and "factorised-random" not in self.members:
            raise ValueError("rank belongs to the form factorised-random")
        if columns is not None:
            refuse_below(1, columns=columns)
        if columns is not None and columns > context:
            raise ValueError(f"columns must be in 1 ... context ({context}), not {columns}")
        super().__init__(width, heads, columns or context, causal, **rest)
        if rank is not None:
            refuse_below(1, rank=rank)
        self.rank = rank or 8
        for member in self.members:
            self._make(member)
        if form == "mixture":
            self.shares = nn.Parameter(torch.zeros(len(self.members)))

    def make_projections(self, bias: bool) -> None:
        D = self.width
        if "softmax" in self.members:
            self.query_key = Linear(D, 2 * D, bias=bias)
        if any(member in DENSE for member in self.members):
            self.w1 = Linear(D, D, bias=bias)
        self.value = Linear(D, D, bias=bias)
        self.proj = Linear(D, D, bias=bias)

    def _make(self, member: str) -> None:
        H, d, T = self.heads, self.head_width, self.context

        def small(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-1e-3, 1e-3))

        if member == "course":
            self.w2, self.b2 = small(d, T), nn.Parameter(torch.zeros(T))
        elif member == "dense":
            self.dense2 = nn.Parameter(torch.randn(H, d, T) * d**-0.5)
            self.dense2_bias = nn.Parameter(torch.zeros(H, 1, T))
        elif member == "factorised-dense":
            self.inner = math.ceil(math.sqrt(T))
            self.outer = math.ceil(T / self.inner)
            self.tiled = nn.Parameter(torch.randn(H, d, self.inner) * d**-0.5)
            self.tiled_bias = nn.Parameter(torch.ones(H, 1, self.inner))
            self.repeated = nn.Parameter(torch.randn(H, d, self.outer) * d**-0.5)
            self.repeated_bias = nn.Parameter(torch.ones(H, 1, self.outer))
        elif member == "random":
            self.logits_random = nn.Parameter(torch.randn(H, T, T) * 0.1)
        elif member == "fixed":
            self.register_buffer("logits_fixed", self.draw_fixed().to(self.proj.weight.dtype))
        elif member == "factorised-random":
            # Products of two such sums have a standard deviation of about 0.3.
            deviation = 0.3**0.5 * self.rank**-0.25
            self.row_factors = nn.Parameter(torch.randn(H, T, self.rank) * deviation)
            self.column_factors = nn.Parameter(torch.randn(H, T, self.rank) * deviation)

    def draw_fixed(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.heads, self.context, self.context)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def options(self) -> dict[str, Any]:
        own: dict[str, Any] = {"form": self.form}
        if self.form == "mixture":
            own["members"] = list(self.members)
        if "factorised-random" in self.members:
            own["rank"] = self.rank
        if "fixed" in self.members:
            drawn = self.draw_fixed().to(self.logits_fixed)
            same = bool((self.logits_fixed - drawn).abs().max() < ROUNDED)
            own["seed"] = self.seed if same else None  # loaded from a layer with another seed
        return own

    @torch.no_grad()
    def look_back(self, nearest: int = 1) -> None:
        """relu(z) - relu(-z) = z: half of the hidden units hold the waves of the position looked
        at, the others their opposites, and the logits of source j compare them with its waves.
        All heads do: none of them could find anything by what the text says.
        """
        d = self.head_width
        if self.form not in LEARNED:
            raise ValueError(f"a synthesizer of form {self.form!r} does not look at its position")
        refuse_alike(self, d // 4)
        pairs = d // 2 - 1 - 2 * torch.arange(d // 4)  # every second, from the fastest on
        channels = torch.cat([pairs, pairs + d // 2])
        sources = waves(self.context, d)[:, channels].T
        compare = torch.zeros(d, self.context)
        compare[: 2 * len(channels)] = torch.cat([sources, -sources]) / 2
        if self.form == "course":
            self.w2.copy_(compare)
        for rows, back in backwards(self, nearest, self.heads):
            there = turn(d, -back)[channels]
            units = self.w1.weight[rows][: 2 * len(channels)]  # any others stay as they are
            units.zero_()
            units[:, :d] = torch.cat([there, -there])
            if self.form == "dense":
                self.dense2[rows.start // d] = compare

    # Logits -----------------------------------------------------------------------------------

    def hidden(self, x: Tensor) -> Tensor:
        """relu(W1 x), (B,H,T,d)."""
        return self.split(self.w1(x)).relu()

    def learned(self, form: str, S: int) -> tuple[Tensor, Tensor]:
        """Of the form "dense" or "course" the matrix (d,S) and bias (1,S) behind `hidden`; of the
        first, those of every head."""
        if form == "course":
            return self.w2[:, :S], self.b2[None, :S]
        return self.dense2[..., :S], self.dense2_bias[..., :S]

    def queries_keys(
        self, x: Tensor, source: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        D, weight, bias = self.width, self.query_key.weight, self.query_key.bias
        both = []
        for tensor, rows in ((x, slice(0, D)), (source, slice(D, None))):
            heads = self.split(linear(tensor, weight[rows], None if bias is None else bias[rows]))
            if self.qk_norm:
                heads = F.rms_norm(heads, (self.head_width,))
            both.append(heads if self.rotation is None else self.rotation(heads, positions))
        return both[0], both[1]

    def synthesized(self, member: str, x: Tensor, S: int, positions: Tensor | None) -> Tensor:
        """Logits (B or 1,H,T,S) of one member; `positions` (B,) places a single step."""

        def rows(table: Tensor) -> Tensor:
            """(H,context,.) -> (1,H,T,.), or (B,H,1,.) of the rows at `positions`."""
            if positions is None:
                return table[None, :, : x.shape[1]]
            return table[:, positions].transpose(0, 1)[:, :, None]

        if member in LEARNED:
            weight, bias = self.learned(member, S)
            return self.hidden(x) @ weight + bias
        if member == "factorised-dense":
            hidden = self.hidden(x)
            tiled = hidden @ self.tiled + self.tiled_bias
            repeated = hidden @ self.repeated + self.repeated_bias
            product = repeated[..., :, None] * tiled[..., None, :]
            return product.flatten(-2)[..., :S]
        if member == "random":
            return rows(self.logits_random)[..., :S]
        if member == "fixed":
            return rows(self.logits_fixed)[..., :S]
        return rows(self.row_factors) @ self.column_factors[:, :S].mT

    def logits(
        self, x: Tensor, S: int, queries_keys: tuple[Tensor, Tensor] | None, at: Tensor | None
    ) -> Tensor:
        found: list[Tensor] = []
        for member in self.members:
            if member == "softmax":
                assert queries_keys is not None
                queries, keys = queries_keys
                found.append(queries @ keys.mT * self.head_width**-0.5)
            else:
                found.append(self.synthesized(member, x, S, at))
        if self.form != "mixture":
            return found[0]
        shares = self.shares.softmax(0)
        weighed = [share * logit for share, logit in zip(shares, found, strict=True)]
        return torch.stack(torch.broadcast_tensors(*weighed)).sum(0)  # type: ignore[no-untyped-call]

    # The interface ----------------------------------------------------------------------------

    def mixed(self, x: Tensor, source: Tensor | None, padding: Tensor | None) -> Tensor:
        (values,) = self.blank(padding, self.values(x if source is None else source))
        dropping = self.training and self.dropout > 0.0
        if self.is_short(x, values, padding) and not dropping:
            mixed = self.written_out(x, values)
            # The last position has multiplied every value by some weight: see `Softmax.forward`.
            if math.isfinite(float(mixed.detach()[:, :, -1].sum())):
                return mixed
        # Nothing else carries a NaN on: the weights do not depend on the sources.
        _, values, trace = self.contain(x.shape[1], values, values)
        if self.form in LEARNED and not dropping:
            mixed = self._learned_keys(x, values, padding)
        else:
            weights = self.pattern(x, source, padding)
            mixed = drop(weights, self.dropout, self.training) @ values
        return mixed + trace

    def is_short(self, x: Tensor, values: Tensor, padding: Tensor | None) -> bool:
        """Whether weights are best written out, as `Softmax.is_short` says: for a gradient."""
        if torch.compiler.is_compiling():  # which cannot look for a NaN afterwards
            return False
        learned = self.form in LEARNED and self.causal and padding is None
        short = x.shape[1] == values.shape[2] <= SHORT.get(values.dtype, 0)
        return learned and short and torch.is_grad_enabled()

    def written_out(self, x: Tensor, values: Tensor) -> Tensor:
        """The forms "dense" and "course" by plain products."""
        weight, bias = self.learned(self.form, x.shape[1])
        unseen = torch.full_like(bias, -math.inf).expand(*bias.shape[:-2], x.shape[1], -1).triu(1)
        return (self.hidden(x) @ weight + (bias + unseen)).softmax(-1) @ values

    def _learned_keys(self, x: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        """Dense logits are queries relu(W1 x), 1 against learned keys W2, b2: torch's own kernel
        then never writes the T^2 weights."""
        T, S = x.shape[1], values.shape[2]
        keys = torch.cat(self.learned(self.form, S), -2).mT.expand(self.heads, -1, -1)
        queries = F.pad(self.hidden(x), (0, 1), value=1.0)
        mask = None if padding is None else self.visible(T, S, padding, x.device)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys.expand(x.shape[0], -1, -1, -1),
            F.pad(values, (0, 1)),
            attn_mask=mask,
            is_causal=self.causal and mask is None,
            scale=1.0,
        )
        return mixed[..., :-1]

    def picture(self, x: Tensor, source: Tensor, padding: Tensor | None) -> Tensor:
        T, S = x.shape[1], source.shape[1]
        both = self.queries_keys(x, source) if "softmax" in self.members else None
        logits = self.logits(x, S, both, None).expand(x.shape[0], -1, -1, -1)
        mask = self.visible(T, S, padding, x.device)
        return masked_softmax(logits, mask, rows_see=padding is None)

    def values(self, source: Tensor) -> Tensor:
        return self.split(self.value(source))

    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        self.check_prefill(x, room)
        y = self(x)
        kept = {"values": self.values(x)}
        if "softmax" in self.members:
            kept["keys"] = self.queries_keys(x, x)[1]
        state = {}
        for name, tensor in kept.items():
            shape = (x.shape[0], self.heads, room or self.context, self.head_width)
            state[name] = tensor.new_zeros(shape)
            state[name][:, :, : x.shape[1]] = tensor
        return y, state

    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        self.check_step(x, state, positions, state["values"].shape[2])
        rows = torch.arange(x.shape[0], device=x.device)
        seen = int(positions.max()) + 1
        both = None
        if "softmax" in self.members:
            queries, keys = self.queries_keys(x, x, positions)
            state["keys"][rows, :, positions] = keys[:, :, 0]
            both = queries, state["keys"][:, :, :seen]
        state["values"][rows, :, positions] = self.values(x)[:, :, 0]
        logits = self.logits(x, seen, both, positions)
        mask = torch.arange(seen, device=x.device) <= positions[:, None, None, None]
        weights = masked_softmax(logits, mask, rows_see=True)
        return self.project(weights @ state["values"][:, :, :seen]), state
