"""Perceiver (Jaegle et al. 2021, arXiv:2103.03206): attention through a bottleneck of m latents.

m learned latents attend to the positions, then to themselves; the positions attend to the latents.
The latents' keys and values are mixtures of the positions' own, so the whole is linear in the
values: pattern = up @ self @ down.

Causal forms:

    course  latent i sees positions j <= i only (the mask tril[:m, :T] of the course's assignment),
            and position t sees latents i <= t. Exact, but positions after the m-th are never read.
    prefix  latent i at time t summarises all positions j <= t: weights exp(latent_i . k_j) over a
            running denominator. Every position sees everything before it, through m summaries that
            grow with it (`means.py`).

The latents attend to themselves in the course form and without a mask, `layers` times. In the
prefix form they would be different latents at each time, at a cost of T m^2: there they do not.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.attention.base import Attention, in_parts, lifted, unrounded
from whence.attention.checks import State, refuse_below
from whence.attention.dropout import drop
from whence.attention.exact import exact_attention
from whence.attention.means import attend_means
from whence.attention.softmax import masked_softmax
from whence.attention.summary import summarise
from whence.attention.whole import hide

FORMS = ("prefix", "course")


class Perceiver(Attention):
    """latents: m. form: see above; without a mask there is one form. layers: of self-attention."""

    mechanism = "perceiver"
    variants: ClassVar = {
        "default": {"latents": 5},
        "one": {"latents": 1},
        "rope": {"rope": True, "qk_norm": True, "latents": 5},
        "course": {"form": "course", "latents": 5, "causal": True},
        "course-wide": {"form": "course", "latents": 64, "layers": 2, "causal": True},
    }

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        latents: int = 32,
        form: str | None = None,
        layers: int | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(width, heads, context, causal, **rest)
        refuse_below(1, latents=latents)
        if layers is not None:
            refuse_below(0, layers=layers)
        if form is not None and not causal:
            raise ValueError(f"form {form!r} is a way to be causal, and causal is False")
        if causal and form is not None and form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        self.form = (form or "prefix") if causal else None
        if layers and self.form == "prefix":
            raise ValueError(
                "the prefix form has no self-attention of the latents: layers must be 0"
            )
        self.layers = layers if layers is not None else int(self.form != "prefix")
        self.latents = nn.Parameter(torch.empty(heads, latents, self.head_width))
        # Of the size of a key, or all latents would ask for the same mean of everything.
        nn.init.normal_(self.latents)

    def options(self) -> dict[str, Any]:
        return {
            "latents": self.latents.shape[1],
            "form": self.form or "bidirectional",
            "layers": self.layers,
            "dropout_of": "sources" if self.form == "prefix" else "weights",
        }

    def ask(self, keys: Tensor, padding: Tensor | None) -> Tensor:
        """How much each latent wants each source: logarithms (B,H,S,m)."""
        scores: Tensor = keys @ (self.latents * self.head_width**-0.5).mT
        if padding is None:
            return scores
        return scores.masked_fill(~padding[:, None, :, None], -math.inf)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        if self.form is None and not (self.training and self.dropout):
            return self.read_all(queries, keys, values, padding)
        if self.form != "prefix":
            keys, values, trace = self.contain(queries.shape[2], keys, values)
            up, down = self.through(queries, keys, padding, None)
            return up @ cleared(down @ values) + trace
        values = self.drop_sources(values)
        keys, values, padding = self.align(queries.shape[2], keys, values, padding)
        wanted = self.ask(keys, padding)
        kind = values.dtype
        queries, keys, values, wanted = lifted(queries, keys, values, wanted)
        return attend_means(queries * self.head_width**-0.5, keys, values, wanted, wanted).to(kind)

    def read_all(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        """What `through` does without a mask, but the latents' keys and values are carried along
        instead of their weights on the sources: nothing has S columns."""
        scale = self.head_width**-0.5
        latents = (self.latents * scale).expand(keys.shape[0], -1, -1, -1)
        pooled, held = summarise(latents, keys, values, hide(padding, keys))
        for _ in range(self.layers):
            inner = (pooled @ pooled.mT * scale).softmax(-1)
            pooled, held = (pooled + inner @ pooled) / 2, (held + inner @ held) / 2
        out = exact_attention(queries, pooled, held)
        if padding is None:
            return out
        return out.masked_fill(~padding.any(1)[:, None, None, None], 0.0)

    def through(
        self, queries: Tensor, keys: Tensor, padding: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The weights of positions on latents (B,H,T,m) and of latents on sources (B,H,m,S).

        `positions` (B,) places a single query of each row, and hides what is after it.
        """
        T, S, m = queries.shape[2], keys.shape[2], self.latents.shape[1]
        scale, device = self.head_width**-0.5, keys.device
        sees = torch.ones(m, S, dtype=torch.bool, device=device)
        among = torch.ones(m, m, dtype=torch.bool, device=device)
        shown = torch.ones(T, m, dtype=torch.bool, device=device)
        if self.causal:
            sees, among, shown = sees.tril(), among.tril(), shown.tril()
        if positions is not None:
            shown = torch.arange(m, device=device) <= positions[:, None, None, None]
        if padding is not None:
            sees = sees & padding[:, None, None]
        # A latent that sees nothing (padding, or before its time) is no latent.
        alive = sees.any(-1)[..., None, :]
        down = self.thin(masked_softmax(self.ask(keys, None).mT, sees))
        for _ in range(self.layers):
            pooled = down @ keys
            inner = masked_softmax(pooled * scale @ pooled.mT, among & alive)
            # The residual connection, as a mean so that rows still sum to one.
            down = (down + self.thin(inner) @ cleared(down)) / 2
        up = masked_softmax(queries * scale @ (down @ keys).mT, shown & alive)
        return self.thin(up), down

    def thin(self, weights: Tensor) -> Tensor:
        return drop(weights, self.dropout, self.training)

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        if self.form != "prefix":
            return super().weights(queries, keys, padding)
        mask = self.visible(queries.shape[2], keys.shape[2], padding, queries.device)
        assert mask is not None
        wanted = self.ask(keys, None).mT[:, :, None]  # (B,H,1,m,S)
        rows = []
        for first, part in in_parts(queries, wanted.numel()):
            visible = mask[..., first : first + part.shape[2], None, :]
            seen = masked_softmax(wanted, visible)  # (B,H,rows,m,S)
            scores = ((part @ keys.mT)[:, :, :, None] * seen).sum(-1) * self.head_width**-0.5
            rows.append((scores.softmax(-1)[:, :, :, None] @ seen)[:, :, :, 0])
        return torch.cat(rows, 2)

    @unrounded
    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        self.check_prefill(x, room)
        queries, keys, values = self.heads_of(x)
        y = self.project(self.mix(queries, keys, values, None))
        if self.form == "course":
            m = self.latents.shape[1]
            state = {}
            for name, what in (("keys", keys), ("values", values)):
                state[name] = what.new_zeros(x.shape[0], self.heads, m, self.head_width)
                state[name][:, :, : min(m, x.shape[1])] = what[:, :, :m]
            return y, state
        wanted, keys, values = lifted(self.ask(keys, None), keys, values)
        mass = wanted.logsumexp(2, keepdim=True)
        share = (wanted - mass).exp().mT
        return y, {"mass": mass, "keys": share @ keys, "values": share @ values}

    @unrounded
    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        self.check_step(x, state, positions)
        queries, keys, values = self.heads_of(x, positions=positions)
        if self.form == "course":
            m, device = self.latents.shape[1], x.device
            rows = torch.arange(x.shape[0], device=device)[positions < m]
            state["keys"][rows, :, positions[rows]] = keys[rows, :, 0]
            state["values"][rows, :, positions[rows]] = values[rows, :, 0]
            # Latents after the row's own position are unfinished, and hidden from it.
            up, down = self.through(queries, state["keys"], None, positions)
            return self.project(up @ (down @ state["values"])), state
        wanted, queries, keys, values = lifted(self.ask(keys, None), queries, keys, values)
        mass = torch.logaddexp(state["mass"], wanted)
        kept, new = (state["mass"] - mass).exp().mT, (wanted - mass).exp().mT
        after = {"mass": mass}
        for name, what in (("keys", keys), ("values", values)):
            after[name] = state[name] * kept + new * what
        scores = queries @ after["keys"].mT * self.head_width**-0.5
        return self.project((scores.softmax(-1) @ after["values"]).to(x.dtype)), after


def cleared(x: Tensor) -> Tensor:
    """Zero for NaN: of latents that overflowed, which earlier ones and positions multiply by zero.
    Those that see them have NaN for a weight already."""
    return x.nan_to_num(0.0, math.inf, -math.inf)
