"""Attention mechanisms: one interface, one file each, proved causal by one set of tests.

    from whence.attention import MECHANISMS, Performer

    attention = Performer(width=256, heads=8, context=4096)
    y = attention(x)                  # (B, T, 256) -> (B, T, 256)
    picture = attention.pattern(x)    # (B, 8, T, T), what `forward` really did

Needs torch and nothing else.
"""

from whence.attention.base import Attention, State
from whence.attention.rope import Rope
from whence.attention.rotation import Rotation
from whence.attention.softmax import Softmax

MECHANISMS: dict[str, type[Attention]] = {
    "softmax": Softmax,
    "rope": Rope,
}

__all__ = ["MECHANISMS", "Attention", "Rope", "Rotation", "Softmax", "State"]
