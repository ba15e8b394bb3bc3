"""Softmax attention with rotary positions (Su et al. 2021, arXiv:2104.09864)."""

from typing import Any, ClassVar

from whence.attention.softmax import Softmax


class Rope(Softmax):
    """Softmax attention with rotary positions."""

    mechanism = "rope"
    variants: ClassVar = {"default": {}, "norm": {"qk_norm": True}}

    def __init__(
        self, width: int, heads: int, context: int, causal: bool = True, **options: Any
    ) -> None:
        if options.setdefault("rope", True) is not True:
            raise ValueError("rope=False: attention 'rope' is softmax with rotary positions")
        super().__init__(width, heads, context, causal, **options)
