"""Attention mechanisms: one interface, one file each, proved causal by one set of tests.

    from whence.attention import MECHANISMS, Performer

    attention = Performer(width=256, heads=8, context=4096)
    y = attention(x)                  # (B, T, 256) -> (B, T, 256)
    picture = attention.pattern(x)    # (B, 8, T, T), what `forward` really did

Needs torch and nothing else.
"""

from whence.attention.base import Attention
from whence.attention.bigbird import BigBird
from whence.attention.checks import State
from whence.attention.linformer import Linformer
from whence.attention.perceiver import Perceiver
from whence.attention.performer import Performer
from whence.attention.rope import Rope
from whence.attention.rotation import Rotation
from whence.attention.softmax import Softmax
from whence.attention.synthesizer import Synthesizer

MECHANISMS: dict[str, type[Attention]] = {
    "softmax": Softmax,
    "rope": Rope,
    "synthesizer": Synthesizer,
    "perceiver": Perceiver,
    "linformer": Linformer,
    "bigbird": BigBird,
    "performer": Performer,
}

__all__ = [
    "MECHANISMS",
    "Attention",
    "BigBird",
    "Linformer",
    "Perceiver",
    "Performer",
    "Rope",
    "Rotation",
    "Softmax",
    "State",
    "Synthesizer",
]
