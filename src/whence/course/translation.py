"""The course's tensors <-> Whence's: the same numbers under other names, some of them joined.

Whence keeps queries, keys and values in one matrix, because one product is faster than three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from whence.model import GPT

# Whence's name within a block -> the course's; attention apart.
BLOCK_NAMES = {
    "norm1.weight": "ln1.weight",
    "norm1.bias": "ln1.bias",
    "norm2.weight": "ln2.weight",
    "norm2.bias": "ln2.bias",
    "up.weight": "mlp.0.weight",
    "up.bias": "mlp.0.bias",
    "down.weight": "mlp.2.weight",
    "down.bias": "mlp.2.bias",
    "attention.proj.weight": "attn.proj.weight",
    "attention.proj.bias": "attn.proj.bias",
}
SYNTHESIZER_NAMES = ("w1.weight", "w1.bias", "w2", "b2", "value.weight", "value.bias")
TOP_NAMES = {
    "embedding.weight": "tok_emb.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
    "head.weight": "head.weight",
}


def block_prefixes(model: GPT) -> list[str]:
    """The course's prefix of each of the model's blocks, and of its attention."""
    layers = model.config.layers
    if not model.config.bottleneck:
        return [f"blocks.{number}" for number in range(layers)]
    return ["down_block", *(f"blocks.{number}" for number in range(layers - 2)), "up_block"]


def attention_prefix(block: str) -> str:
    return f"{block}.attn" if block.startswith("blocks.") else f"{block}.cross_attn"


def _pairs(model: GPT) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Whence's name and the names of the course's tensors that are stacked in it."""
    yield from ((ours, (theirs,)) for ours, theirs in TOP_NAMES.items())
    if model.positions is not None:
        yield "positions", ("pos_emb",)
    if model.latents is not None:
        yield "latents", ("down_block.C",)
    for number, block in enumerate(block_prefixes(model)):
        attention = attention_prefix(block)
        for ours, theirs in BLOCK_NAMES.items():
            name = theirs.replace("attn", attention) if "attn" in theirs else f"{block}.{theirs}"
            yield f"blocks.{number}.{ours}", (name,)
        if model.config.attention == "synthesizer":
            for part in SYNTHESIZER_NAMES:
                yield f"blocks.{number}.attention.{part}", (f"{attention}.{part}",)
            continue
        for kind in ("weight", "bias"):
            stacked = tuple(f"{attention}.{part}.{kind}" for part in ("query", "key", "value"))
            yield f"blocks.{number}.attention.qkv.{kind}", stacked


def whence_state(model: GPT, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Course -> Whence. The caller has checked that every tensor is there."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return {
        ours: torch.cat([state[name] for name in theirs]).reshape(shapes[ours])
        for ours, theirs in _pairs(model)
    }


def course_state(model: GPT) -> dict[str, Tensor]:
    """Whence -> course, with the masks and rotation tables that the course keeps as buffers."""
    ours = model.state_dict()
    state: dict[str, Tensor] = {}
    for name, theirs in _pairs(model):
        parts = ours[name].detach().chunk(len(theirs))
        # Clones: a view would be saved with the whole storage that it looks into.
        state.update((part, tensor.clone()) for part, tensor in zip(theirs, parts, strict=True))
    if "pos_emb" in state:
        state["pos_emb"] = state["pos_emb"][None]
    state.update(_buffers(model))
    return state


def _buffers(model: GPT) -> dict[str, Tensor]:
    context, latents = model.config.context, model.config.bottleneck
    buffers: dict[str, Tensor] = {}
    for block in block_prefixes(model):
        inner = bool(latents) and block.startswith("blocks.")
        size = latents if inner else context
        attention = attention_prefix(block)
        buffers[f"{attention}.mask"] = torch.ones(size, size).tril()[None, None]
        if model.config.attention == "rope":
            buffers[f"{attention}.rope_cache"] = rotation_table(model)
    return buffers


def rotation_table(model: GPT) -> Tensor:
    """(positions, pairs, 2): cos and sin of t / 10000^(2i/d)."""
    size = model.config.width // model.config.heads
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(model.config.context, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.cos(), angles.sin()), dim=-1).float()
