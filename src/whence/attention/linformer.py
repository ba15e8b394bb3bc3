"""Linformer (Wang et al. 2020, arXiv:2006.04768): keys and values projected to m positions.

    softmax(Q (E K)^T / sqrt d) (F V),   E and F learned, m x T

As published it mixes all positions before any mask could act, so it cannot be causal. The causal
form runs the projections along the sequence (attention with bounded memory, Peng et al. 2021,
arXiv:2110.02488): at time t slot i holds

    free      K~_i = sum_{j<=t} E_ij k_j                              (as published, cut at t)
    averaged  K~_i = sum_{j<=t} e^{E_ij} k_j / sum_{j<=t} e^{E_ij}    (a running mean: no growth)

and V~ likewise. Scores q_t . K~ and the mixture of V~ are two passes of the one causal scan; of the
averaged form mostly something quicker (`means.py`).
A slot whose column of E has been exactly zero (averaged: -inf) so far is empty and gets no weight,
unless all of them are.

Without a mask E (x W) = (E x) W: the positions are projected first, and W_k and W_v see m rows
instead of T, which saves half of the layer's large products. Rotary positions, normed keys and a
projection per head do not commute with W, and take the plain order.
"""

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.attention.base import Attention, in_parts, lifted, unrounded
from whence.attention.checks import State, refuse_below, refuse_unless_flag
from whence.attention.dropout import drop
from whence.attention.exact import exact_attention
from whence.attention.linear import derived, linear, product
from whence.attention.look_back import aim_back
from whence.attention.means import attend_means, by_scans, hide_empty, hide_unentered
from whence.attention.pooled import pooled_heads
from whence.attention.scan import causal_scan
from whence.attention.softmax import masked_softmax

FORMS = ("free", "averaged")
OWN = 8.0  # logarithm of how much more a slot holds of its own position than of an earlier one
ROUNDS = 3  # how often a slot may change its position: beyond, exponentials are not moderate


class Linformer(Attention):
    """projected: m, the number of slots. shared: E = F. per_head: each head has its own E, F."""

    mechanism = "linformer"
    rounds: ClassVar = True  # what sums lifts itself to float32
    variants: ClassVar = {
        "default": {"projected": 5},
        "free": {"form": "free", "projected": 5},
        "averaged": {"form": "averaged", "projected": 5, "per_head": True},
        "shared": {"projected": 64, "shared": True},
        "rope": {"rope": True, "qk_norm": True, "projected": 5},
    }

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        projected: int = 64,
        form: str | None = None,
        shared: bool = False,
        per_head: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(width, heads, context, causal, **rest)
        refuse_below(1, projected=projected)
        refuse_unless_flag(shared=shared, per_head=per_head)
        if form is None:
            form = "averaged" if causal else "free"
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        self.projected, self.form, self.shared, self.per_head = projected, form, shared, per_head
        self.rows_sum_to_one = form == "averaged"
        shape = (heads if per_head else 1, context, projected)
        deviation = projected**-0.5 if form == "free" else 1.0
        self.project_keys = nn.Parameter(torch.randn(shape) * deviation)
        self.project_values: nn.Parameter | None = None
        if not shared:
            self.project_values = nn.Parameter(torch.randn(shape) * deviation)

    def options(self) -> dict[str, Any]:
        return {
            "projected": self.projected,
            "form": self.form,
            "shared": self.shared,
            "per_head": self.per_head,
        }

    @torch.no_grad()
    def look_back(self, nearest: int = 1) -> None:
        """Every slot starts out holding one position: the last of those that are m apart.

        A mean forgets what came before where each is weighed so much more; a sum cannot.
        """
        most = self.projected * (ROUNDS if self.form == "averaged" else 1)
        if self.context > most:
            raise ValueError(f"{self.projected} slots can hold {most} positions one by one")
        for projection in (self.project_keys, self.project_values):
            if projection is None:
                continue
            nn.init.zeros_(projection)
            for position in range(self.context):
                rounds, slot = divmod(position, self.projected)
                heavy = OWN * (rounds + 1) if self.form == "averaged" else 1.0
                projection[:, position, slot] = heavy
        aim_back(self, nearest)

    def slots(self, S: int, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """E and F for S sources, (1 or B, 1 or H, S, m); a padded source enters no slot."""
        both = [self.project_keys]
        if self.project_values is not None:
            both.append(self.project_values)
        found = [projection[None, :, :S] for projection in both]
        if padding is not None:
            nothing = 0.0 if self.form == "free" else -math.inf
            found = [x.masked_fill(~padding[:, None, :, None], nothing) for x in found]
        return found[0], found[-1]

    def mixed(self, x: Tensor, source: Tensor | None, padding: Tensor | None) -> Tensor:
        if self.causal or self.per_head or self.qk_norm or self.rotation is not None:
            return super().mixed(x, source, padding)
        about, D = x if source is None else source, self.width
        if padding is not None:
            about = about.masked_fill(~padding[..., None], 0.0)  # see `blank`
        rounded = torch.is_autocast_enabled(x.device.type)
        if not (padding is not None or rounded or derived() or torch.compiler.is_compiling()):
            slots, hidden = self.pooling_at_once(about.shape[1])
            weight, bias = self.qkv.weight, self.qkv.bias
            parts = pooled_heads(x, about, weight, bias, slots, self.shared)
            queries, keys, values = (self.split(part) for part in parts)
            return self.look_up(queries, keys, values, hidden)
        to_keys, to_values, hidden = self.pooling(about.shape[1], padding)
        weights = torch.split(self.qkv.weight, D)
        biases = [None] * 3 if self.qkv.bias is None else torch.split(self.qkv.bias, D)
        queries = self.split(linear(x, weights[0], biases[0]))
        keys = self.split(pool_first(to_keys[:, 0], about, weights[1], biases[1]))
        values = self.split(pool_first(to_values[:, 0], about, weights[2], biases[2]))
        return self.look_up(queries, keys, values, hidden)

    def pooling(self, S: int, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Without a mask: E, F (1 or B, 1 or H, S, m) and what hides empty slots, if there are."""
        to_keys, to_values = self.slots(S, padding)
        hidden = None
        # Mostly the first position fills all slots, and nobody has to look at the others.
        sure = not torch.compiler.is_compiling() and all(
            bool(self.filled(slots[:, :, 0]).all()) for slots in (to_keys, to_values)
        )
        if not sure:
            hidden = self.hide_empty(self.filled(to_keys).any(2, keepdim=True))
        if self.form == "averaged":
            to_keys, to_values = (self.mean(slots, sure) for slots in (to_keys, to_values))
        return to_keys, to_values, hidden

    def pooling_at_once(self, S: int) -> tuple[Tensor, Tensor | None]:
        """E and F that all heads share side by side (S, m or 2 m), and what hides empty slots."""
        slots = self.project_keys[0, :S]
        if self.project_values is not None:
            slots = torch.cat([slots, self.project_values[0, :S]], 1)
        if not bool(self.filled(slots[0]).all()):
            to_keys, to_values, hidden = self.pooling(S, None)
            both = to_keys if self.shared else torch.cat([to_keys, to_values], 3)
            return both[0, 0], hidden
        return slots if self.form == "free" else slots.softmax(0), None

    def mean(self, slots: Tensor, sure: bool) -> Tensor:
        """How much of each source (1 or B, 1 or H, S, m) is in a slot's mean; an empty one has
        none. `sure`: there is no such slot."""
        if sure:
            return slots.softmax(2)
        empty = ~self.filled(slots).any(2, keepdim=True)
        return slots.masked_fill(empty, 0.0).softmax(2).masked_fill(empty, 0.0)

    def look_up(
        self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None
    ) -> Tensor:
        """Attention to the slots' keys and values (B,H,m,d)."""
        if self.training and self.dropout:
            scores = queries @ keys.mT * self.head_width**-0.5
            return self.attend(scores, hidden) @ values
        return exact_attention(queries, keys, values, hidden)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        T, scale = queries.shape[2], self.head_width**-0.5
        if not self.causal:
            to_keys, to_values, hidden = self.pooling(keys.shape[2], padding)
            return self.look_up(queries, pool(to_keys, keys), pool(to_values, values), hidden)
        keys, values, padding = self.align(T, keys, values, padding)
        to_keys, to_values = self.slots(T, padding)
        queries = queries * scale
        if self.form == "averaged":
            if self.training and self.dropout:
                thin = partial(drop, probability=self.dropout, training=True)
                return by_scans(queries, keys, values, to_keys, to_values, thin).to(values.dtype)
            return attend_means(queries, keys, values, to_keys, to_values).to(values.dtype)
        hidden = hide_unentered(self.filled(to_keys), to_keys.dtype)
        chosen = self.attend(causal_scan(queries, keys, to_keys), hidden)
        return causal_scan(chosen, to_values, values).to(values.dtype)

    def filled(self, projection: Tensor) -> Tensor:
        return projection != (0.0 if self.form == "free" else -math.inf)

    def hide_empty(self, filled: Tensor) -> Tensor:
        return hide_empty(filled, self.project_keys.dtype)

    def attend(self, scores: Tensor, hidden: Tensor | None) -> Tensor:
        """The weights of the slots: softmax over those that hold something."""
        shown = scores if hidden is None else scores + hidden
        return drop(shown.softmax(-1), self.dropout, self.training)

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        each = queries.shape[0] * self.heads * self.projected * keys.shape[2]
        parts = in_parts(queries, each)
        return torch.cat([self.rows(part, keys, padding, first) for first, part in parts], 2)

    def rows(self, queries: Tensor, keys: Tensor, padding: Tensor | None, first: int) -> Tensor:
        """The weights of some queries, of which the first stands at position `first`."""
        T, S, scale = queries.shape[2], keys.shape[2], self.head_width**-0.5
        to_keys, to_values = (x.mT[:, :, None] for x in self.slots(S, padding))  # (.,.,1,m,S)
        seen = torch.ones(T, 1, S, dtype=torch.bool, device=keys.device)
        if self.causal:
            seen = seen[:, 0].tril(first)[:, None]
        if self.form == "free":
            to_keys, to_values = to_keys * seen, to_values * seen
            filled = (to_keys != 0).any(-1)
        else:
            filled = (self.filled(to_keys) & seen).any(-1)
            to_keys = masked_softmax(to_keys, seen & self.filled(to_keys))
            to_values = masked_softmax(to_values, seen & self.filled(to_values))
        scores = ((queries @ keys.mT)[:, :, :, None] * to_keys).sum(-1) * scale
        chosen = (scores + self.hide_empty(filled)).softmax(-1)
        mixed: Tensor = chosen[:, :, :, None] @ to_values
        return mixed[:, :, :, 0]

    @unrounded
    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        self.check_prefill(x, room)
        T = x.shape[1]
        queries, keys, values = self.heads_of(x)
        y = self.project(self.mix(queries, keys, values, None))
        state = {}
        for name, what, projection in zip(
            ("keys", "values"), lifted(keys, values), lifted(*self.slots(T, None)), strict=True
        ):
            shape = (x.shape[0], self.heads, 1, self.projected)
            if self.form == "averaged":
                mass = projection.logsumexp(2, keepdim=True)
                state[name + "_mass"] = mass.expand(shape).contiguous()
                projection = (projection - mass).exp().nan_to_num()
            else:
                state[name + "_filled"] = (projection != 0).any(2, keepdim=True).expand(shape)
            state[name] = projection.mT @ what
        return y, state

    @unrounded
    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        self.check_step(x, state, positions)
        queries, keys, values = lifted(*self.heads_of(x, positions=positions))
        after: State = {}
        slots = lifted(*self.slots(self.context, None))
        for name, what, projection in zip(("keys", "values"), (keys, values), slots, strict=True):
            column = projection[0][:, positions].transpose(0, 1)[:, :, None]  # (B,H,1,m)
            if self.form == "averaged":
                before = state[name + "_mass"]
                mass = torch.logaddexp(before, column)
                after[name + "_mass"] = mass
                kept, new = (before - mass).exp().nan_to_num(), (column - mass).exp().nan_to_num()
                after[name] = state[name] * kept.mT + new.mT @ what
            else:
                after[name + "_filled"] = state[name + "_filled"] | (column != 0)
                after[name] = state[name] + column.mT @ what
        scores = queries @ after["keys"].mT * self.head_width**-0.5
        averaged = self.form == "averaged"
        filled = after["keys_mass"] > -math.inf if averaged else after["keys_filled"]
        chosen = (scores + self.hide_empty(filled)).softmax(-1)
        return self.project((chosen @ after["values"]).to(x.dtype)), after


def pool(projection: Tensor, x: Tensor) -> Tensor:
    """(1 or B, 1 or H, S, m), (B,H,S,c) -> (B,H,m,c), one product for all heads that share it."""
    if projection.shape[1] > 1:
        return projection.mT @ x
    B, H, S, c = x.shape
    joined = x.transpose(1, 2).reshape(B, S, H * c)
    return product(projection[:, 0].mT, joined).view(B, -1, H, c).transpose(1, 2)


def pool_first(projection: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(1 or B,S,m), (B,S,D) -> (B,m,D): `projection`^T (x weight^T + bias), x projected first."""
    pooled = linear(product(projection.mT, x), weight)
    return pooled if bias is None else pooled + projection.sum(1)[..., None] * bias
