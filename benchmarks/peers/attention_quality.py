"""How far FAVOR+ is from exact causal attention: ours and performer-pytorch's, the same inputs.

Runs in the peers' environment with Whence's source on the path. Error: root mean square of output
minus exact output over the root mean square of the exact one, mean over draws of the features.
Bias: the same for the mean of all draws' outputs, which an unbiased kernel brings down.
"""

from __future__ import annotations

import json
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from performer_pytorch import FastAttention  # noqa: E402
from torch import Tensor  # noqa: E402

from whence.attention import Performer  # noqa: E402

HEADS, HEAD, LENGTH, FEATURES = 8, 32, 1024, 128


def distance(x: Tensor, exact: Tensor) -> float:
    return float((x - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def main() -> None:
    draws = int(sys.argv[1])
    rows = []
    for size in (0.5, 1.0, 1.5, 2.0):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, HEADS, LENGTH, HEAD) for _ in range(3))
        q, k = q * size, k * size
        exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        ours, theirs = [], []
        layer = Performer(HEADS * HEAD, HEADS, LENGTH, features=FEATURES)
        with torch.no_grad():
            for draw in range(draws):
                layer.redraw(draw)
                ours.append(layer.mix(q, k, v, None))
                torch.manual_seed(draw)
                theirs.append(FastAttention(HEAD, FEATURES, causal=True)(q, k, v))
        rows.append(
            {
                "deviation of q and k": size,
                "whence: error": round(sum(distance(x, exact) for x in ours) / draws, 3),
                "performer-pytorch: error": round(
                    sum(distance(x, exact) for x in theirs) / draws, 3
                ),
                "whence: error of the mean": round(distance(sum(ours) / draws, exact), 3),
                "performer-pytorch: error of the mean": round(
                    distance(sum(theirs) / draws, exact), 3
                ),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
