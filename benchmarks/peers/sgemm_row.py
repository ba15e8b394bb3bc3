"""The machine's float32 matrix-product rate, in FLOPs: what any training is bounded by.

As torch's `@` has it; with the argument `quickest`, as Whence's `linear` does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from contest import serve
from whence.attention.linear import linear

quickest = sys.argv[1:] == ["quickest"]
SIZE = 2048
left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
out = torch.empty(SIZE, SIZE)


def work() -> float:
    """Products for about two seconds."""
    start, products = time.perf_counter(), 0
    while time.perf_counter() - start < 2:
        if quickest:
            linear(left, right)
        else:
            torch.mm(left, right, out=out)
        products += 1
    return products * 2.0 * SIZE**3


serve(work)
