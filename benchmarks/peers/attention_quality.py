"""How far FAVOR+ is from exact causal attention: ours and performer-pytorch's, the same inputs.

Runs in the peers' environment with Whence's source on the path. Over many draws of the features the
mean squared error of the outputs is bias^2 + variance; all are given as roots, relative to the root
mean square of the exact outputs. The bias is that of the mean of all draws, less the part of its
square that is left of the variance after averaging (so it can come out as zero). For comparison:
the error of the plain mean of all values so far, which looks at neither queries nor keys.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from performer_pytorch import FastAttention  # noqa: E402
from torch import Tensor  # noqa: E402

from whence.attention import Performer  # noqa: E402

HEADS, HEAD, LENGTH, FEATURES = 8, 32, 512, 128


def describe(name: str, estimate: Callable[[int], Tensor], draws: int, exact: Tensor) -> dict:
    """Error, bias and deviation of an estimate, by sums that hold one draw at a time."""
    total, squares, errors = torch.zeros_like(exact), torch.zeros_like(exact), 0.0
    for draw in range(draws):
        out = estimate(draw).double()
        total += out
        squares += out.square()
        errors += float((out - exact).square().mean())
    mean = total / draws
    variance = float(((squares / draws - mean.square()) * draws / (draws - 1)).mean())
    bias = max(0.0, float((mean - exact).square().mean()) - variance / draws)
    size = float(exact.square().mean())
    parts = {"error": errors / draws, "bias": bias, "deviation": variance}
    return {f"{name}: {part}": round((x / size) ** 0.5, 3) for part, x in parts.items()}


def main() -> None:
    draws = int(sys.argv[1])
    rows = []
    for size in (0.25, 0.5, 0.75, 1.0, 1.5):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, HEADS, LENGTH, HEAD) for _ in range(3))
        q, k = q * size, k * size
        exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
        layer = Performer(HEADS * HEAD, HEADS, LENGTH, features=FEATURES)

        def ours(draw: int) -> Tensor:
            layer.redraw(draw)  # noqa: B023
            return layer.mix(q, k, v, None)  # noqa: B023

        def theirs(draw: int) -> Tensor:
            torch.manual_seed(draw)
            return FastAttention(HEAD, FEATURES, causal=True)(q, k, v)  # noqa: B023

        with torch.no_grad():
            mean = v.double().cumsum(2) / torch.arange(1, LENGTH + 1)[:, None]
            plain = float((mean - exact).square().mean() / exact.square().mean()) ** 0.5
            rows.append(
                {
                    "deviation of q and k": size,
                    **describe("whence", ours, draws, exact),
                    **describe("performer-pytorch", theirs, draws, exact),
                    "plain mean of the values: error": round(plain, 3),
                }
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
