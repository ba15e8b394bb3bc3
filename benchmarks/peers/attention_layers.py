"""The attention layers that are compared: (1, T, 256) -> (1, T, 256), 8 heads of 32.

Each is a function of the length; a peer is built from its package's own layer class, with the
output projection added where that class has none. Imports are inside: the packages live in two
environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, HEAD = 256, 8, 32
FEATURES = 128  # performer's features, linformer's projected length, perceiver's latents
# HF's BigBird: first and last block global, three blocks of window, the rest configurable.
BLOCK, WINDOW, RANDOM, LEADING = 64, 3, 3, 2
# Below this length HF's BigBird takes full attention by itself.
SPARSE_FROM = (5 + 2 * RANDOM) * BLOCK + 1


class Bare(nn.Module):
    """Projections and torch's own exact attention: the baseline."""

    def __init__(self, T: int, rope: bool = False) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.turn: Tensor | None = None
        if rope:
            theta = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
            angles = torch.arange(T)[:, None] * theta
            self.turn = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        if self.turn is not None:
            q, k = self.rotate(q, self.turn), self.rotate(k, self.turn)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out

    @staticmethod
    def rotate(x: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2)


class Core(nn.Module):
    """Attention itself, queries, keys and values (1,H,T,d) being given: no projections."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


def sdpa_core(T: int) -> nn.Module:
    return Core(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def whence_core(causal: bool) -> Callable[[int], nn.Module]:
    def build(T: int) -> nn.Module:
        layer = whence("performer", causal, features=FEATURES)(T)
        return Core(lambda q, k, v: layer.mix(q, k, v, None))

    return build


def performer_pytorch_core(causal: bool) -> Callable[[int], nn.Module]:
    def build(T: int) -> nn.Module:
        from performer_pytorch import FastAttention

        return Core(FastAttention(HEAD, FEATURES, causal=causal))

    return build


def whence(mechanism: str, causal: bool, **options: Any) -> Callable[[int], nn.Module]:
    def build(T: int) -> nn.Module:
        from whence.attention import MECHANISMS

        return MECHANISMS[mechanism](WIDTH, HEADS, T, causal, **options)

    return build


def performer_pytorch(causal: bool) -> Callable[[int], nn.Module]:
    def build(T: int) -> nn.Module:
        from performer_pytorch import SelfAttention

        layer: nn.Module = SelfAttention(
            WIDTH, causal=causal, heads=HEADS, dim_head=HEAD, nb_features=FEATURES
        )
        return layer

    return build


def linformer(T: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    layer: nn.Module = LinformerSelfAttention(WIDTH, T, k=FEATURES, heads=HEADS)
    return layer


def linformer_pytorch(T: int) -> nn.Module:
    from linformer_pytorch.linformer_pytorch import MHAttention, gen_causal_mask

    mask = gen_causal_mask(T, FEATURES, False)
    layer: nn.Module = MHAttention(
        T, HEAD, WIDTH, FEATURES, HEADS, 0.0, "C0", "headwise", None, None, False, mask
    )
    return layer


class HuggingFaceBigBird(nn.Module):
    """The block-sparse layer, or below its shortest length the full one, as its model chooses."""

    def __init__(self, T: int, decoder: bool = False) -> None:
        super().__init__()
        from transformers import BigBirdConfig
        from transformers.models.big_bird import modeling_big_bird as big_bird

        config = BigBirdConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            block_size=BLOCK,
            num_random_blocks=RANDOM,
            max_position_embeddings=T,
            attention_probs_dropout_prob=0.0,
            is_decoder=decoder,
        )
        self.sparse = T >= SPARSE_FROM
        self.masks: dict[str, Tensor] = {}
        if self.sparse:
            self.layer = big_bird.BigBirdBlockSparseAttention(config, seed=0)
            names = ("blocked", "band_mask", "from_mask", "to_mask")
            make = big_bird.BigBirdModel.create_masks_for_block_sparse_attn
            self.masks = dict(zip(names, make(torch.ones(1, T), BLOCK), strict=True))
            blocked = self.masks.pop("blocked")
            self.masks["from_blocked_mask"] = self.masks["to_blocked_mask"] = blocked
        else:
            self.layer = big_bird.BigBirdSelfAttention(config)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(self.layer(x, **self.masks)[0])
        return out


class PerceiverIO(nn.Module):
    """perceiver-pytorch's own layer three times: latents read, think, and are read."""

    def __init__(self, T: int) -> None:
        super().__init__()
        from perceiver_pytorch.perceiver_io import Attention

        self.latents = nn.Parameter(torch.randn(1, FEATURES, WIDTH))
        self.down, self.inner, self.up = (Attention(WIDTH, WIDTH, HEADS, HEAD) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        latents = self.down(self.latents, context=x)
        latents = latents + self.inner(latents)
        out: Tensor = self.up(x, context=latents)
        return out


class PerceiverAR(nn.Module):
    """Its first layer: the last positions, as latents, read everything. Outputs for these only."""

    def __init__(self, T: int) -> None:
        super().__init__()
        from perceiver_ar_pytorch.perceiver_ar_pytorch import CausalPrefixAttention

        self.layer = CausalPrefixAttention(dim=WIDTH, dim_head=HEAD, heads=HEADS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x[:, -FEATURES:], x[:, :-FEATURES])
        return out


class XTransformers(nn.Module):
    def __init__(self, T: int, rope: bool = False) -> None:
        super().__init__()
        from x_transformers.x_transformers import Attention, RotaryEmbedding

        self.layer = Attention(WIDTH, dim_head=HEAD, heads=HEADS, causal=True, flash=True)
        self.rotary = RotaryEmbedding(HEAD) if rope else None

    def forward(self, x: Tensor) -> Tensor:
        turn = None if self.rotary is None else self.rotary.forward_from_seq_len(x.shape[1])
        out = self.layer(x, rotary_pos_emb=turn)
        result: Tensor = out[0] if isinstance(out, tuple) else out
        return result


GRAPH = {"block": BLOCK, "window": WINDOW, "random": RANDOM, "leading": LEADING}

# label: (whose environment, what makes the layer for a length)
LAYERS: dict[str, tuple[str, Callable[[int], nn.Module]]] = {
    "torch sdpa": ("whence", Bare),
    "torch sdpa + rope": ("whence", lambda T: Bare(T, rope=True)),
    "whence softmax": ("whence", whence("softmax", True)),
    "whence rope": ("whence", whence("rope", True)),
    "whence performer": ("whence", whence("performer", True, features=FEATURES)),
    "whence performer, both ways": ("whence", whence("performer", False, features=FEATURES)),
    "whence linformer": ("whence", whence("linformer", True, projected=FEATURES)),
    "whence linformer, both ways": ("whence", whence("linformer", False, projected=FEATURES)),
    "whence bigbird": ("whence", whence("bigbird", True, **GRAPH)),
    "whence bigbird, both ways": ("whence", whence("bigbird", False, **GRAPH)),
    "whence perceiver": ("whence", whence("perceiver", True, latents=FEATURES)),
    "whence perceiver, both ways": ("whence", whence("perceiver", False, latents=FEATURES)),
    "torch sdpa, core": ("whence", sdpa_core),
    "whence performer, core": ("whence", whence_core(True)),
    "whence performer, core, both ways": ("whence", whence_core(False)),
    "performer-pytorch, core": ("peers", performer_pytorch_core(True)),
    "performer-pytorch, core, both ways": ("peers", performer_pytorch_core(False)),
    "performer-pytorch": ("peers", performer_pytorch(True)),
    "performer-pytorch, both ways": ("peers", performer_pytorch(False)),
    "linformer, both ways": ("peers", linformer),
    "linformer-pytorch": ("peers", linformer_pytorch),
    "transformers bigbird, both ways": ("peers", HuggingFaceBigBird),
    "perceiver-pytorch, both ways": ("peers", PerceiverIO),
    "perceiver-ar-pytorch": ("peers", PerceiverAR),
    "x-transformers": ("peers", XTransformers),
    "x-transformers + rope": ("peers", lambda T: XTransformers(T, rope=True)),
}


def inputs_of(layer: str, T: int) -> list[Tensor]:
    """Standard normal: q, k and v of a core, x of a layer. Positions are the last but one."""
    shape = (1, HEADS, T, HEAD) if "core" in layer else (1, T, WIDTH)
    return [torch.randn(shape) for _ in range(3 if "core" in layer else 1)]
