"""Softmax attention (Vaswani et al. 2017, arXiv:1706.03762): softmax(Q K^T / sqrt d) V."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.attention.base import Attention
from whence.attention.checks import State
from whence.attention.dropout import drop
from whence.attention.exact import exact_attention
from whence.attention.look_back import aim_back

# Up to here the weights fit the cache and plain products are quicker, forward and backward; torch's
# own kernel has a slow backward pass in bfloat16.
SHORT = {torch.float32: 64, torch.bfloat16: 256}


class Softmax(Attention):
    """Exact attention, by torch's kernel or what is quicker; a key-value cache for decoding."""

    mechanism = "softmax"
    strides: ClassVar = True
    rounds: ClassVar = True
    variants: ClassVar = {"default": {}, "norm": {"qk_norm": True}, "rope": {"rope": True}}

    def forward(
        self, x: Tensor, source: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """As every attention's, with NaN looked for after the fact.

        The last position has multiplied every value by some weight, and each of its outputs sums
        over all of them: one number a row tells whether there was anything that had to be hidden.
        """
        if not self.causal or torch.compiler.is_compiling() or x.shape[0] == 0:
            return super().forward(x, source, padding)
        self.check(x, source, padding)
        queries, keys, values = self.heads_of(x, source)
        keys, values = self.blank(padding, keys, values)
        result = self.project(self.exact(queries, keys, values, padding))
        if math.isfinite(sum(result.detach().select(1, -1).select(1, 0).tolist())):
            return result
        return self.project(self.contained(queries, keys, values, padding))

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        if not self.causal:
            return self.exact(queries, keys, values, padding)
        if torch.compiler.is_compiling():
            if padding is not None or queries.shape[2] != values.shape[2]:
                return self.contained(queries, keys, values, padding)
            # Fused into its neighbours. A key hands a NaN on, to the later positions only; that of
            # a value alone is handed on by a running sum of zeros.
            trace = (values.detach().sum(-1, keepdim=True) * 0.0).cumsum(2)
            return self.exact(queries, keys, values.nan_to_num(0.0, 0.0, 0.0), padding) + trace
        if math.isfinite(float(values.detach().sum())):
            return self.exact(queries, keys, values, padding)
        return self.contained(queries, keys, values, padding)

    def contained(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        """`exact`, with a NaN or infinity among the sources kept from the positions before it."""
        keys, values, trace = self.contain(queries.shape[2], keys, values)
        return self.exact(queries, keys, values, padding) + trace

    def exact(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        """The attention itself. A NaN among the sources may reach all positions."""
        dropout = self.dropout if self.training else 0.0
        if dropout:  # torch's kernel writes the weights out then as well, and draws slowly
            return drop(self.training_weights(queries, keys, padding), dropout, True) @ values
        return self.undropped(queries, keys, values, padding)

    def undropped(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        """All sources seen (the later ones not, if causal), none dropped: the quickest way."""
        if self.is_short(queries, padding):
            return self.training_weights(queries, keys, padding) @ values
        mask = None
        if padding is not None:
            mask = self.visible(queries.shape[2], keys.shape[2], padding, queries.device)
        return exact_attention(queries, keys, values, mask, self.causal and mask is None)

    def is_short(self, queries: Tensor, padding: Tensor | None) -> bool:
        """Whether all weights are best written out; a backward pass is what it is about."""
        short = queries.shape[2] <= SHORT.get(queries.dtype, 0)
        return short and padding is None and torch.is_grad_enabled()

    def unseen(self, T: int, S: int, like: Tensor) -> Tensor:
        """(T,S), or (H,T,S): -inf where a query does not see a source, to be added to scores."""
        hidden = like.new_zeros(T, S)
        return hidden.fill_(-math.inf).triu_(1) if self.causal else hidden

    def training_weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        """`weights` with scale and mask folded into the product: fewer passes over (T, S)."""
        # Compiled, nobody looks for NaN afterwards; and added to it minus infinity hides nothing.
        if padding is not None or torch.compiler.is_compiling():
            return self.weights(queries, keys, padding)
        B, H, T, _ = queries.shape
        hidden = self.unseen(T, keys.shape[2], queries)
        if hidden.dim() == 3:
            hidden = hidden.expand(B, -1, -1, -1).flatten(0, 1)
        scores = torch.baddbmm(
            hidden,
            queries.flatten(0, 1),
            keys.flatten(0, 1).transpose(1, 2),
            alpha=1 / math.sqrt(self.head_width),
        )
        return scores.softmax(-1).view(B, H, T, keys.shape[2])

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(self.head_width)
        mask = self.visible(queries.shape[2], keys.shape[2], padding, queries.device)
        return masked_softmax(scores, mask, rows_see=padding is None)

    def look_back(self, nearest: int = 1) -> None:
        aim_back(self, nearest)

    @torch.no_grad()
    def prefill(self, x: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        self.check_prefill(x, room)
        queries, keys, values = self.heads_of(x)
        state = {}
        for name, tensor in (("keys", keys), ("values", values)):
            shape = (x.shape[0], self.heads, room or self.context, self.head_width)
            state[name] = tensor.new_zeros(shape)
            state[name][:, :, : x.shape[1]] = tensor
        return self.project(self.mix(queries, keys, values, None)), state

    @torch.no_grad()
    def step(self, x: Tensor, state: State, positions: Tensor) -> tuple[Tensor, State]:
        self.check_step(x, state, positions, state["keys"].shape[2])
        places = positions[:, None] + torch.arange(x.shape[1], device=x.device)
        queries, keys, values = self.heads_of(x, positions=places)
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        state["keys"][rows, :, places] = keys.transpose(1, 2)
        state["values"][rows, :, places] = values.transpose(1, 2)
        seen, room = int(places.max()) + 1, state["keys"].shape[2]
        if x.shape[1] == 1 and 2 * seen >= room:  # read without gaps: twice as fast
            seen = room
        mixed = F.scaled_dot_product_attention(
            queries,
            state["keys"][:, :, :seen],
            state["values"][:, :, :seen],
            attn_mask=self.step_mask(places, seen),
        )
        return self.project(mixed), state

    def step_mask(self, places: Tensor, seen: int) -> Tensor:
        """(B, 1 or H, R, seen): which of the first positions the new tokens at (B, R) see."""
        return (torch.arange(seen, device=places.device) <= places[..., None])[:, None]


def masked_softmax(scores: Tensor, mask: Tensor | None, rows_see: bool = False) -> Tensor:
    """Softmax over the last dimension where `mask` is True; a row that sees nothing is zero.

    `rows_see` promises that there is no such row, and saves a pass.
    """
    if mask is None:
        return scores.softmax(-1)
    hidden = ~mask
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return weights if rows_see else weights.masked_fill(hidden, 0.0)
