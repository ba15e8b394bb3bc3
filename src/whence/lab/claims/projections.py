"""Claim lin-3: how far a projection of keys and values to m positions keeps attention."""

from __future__ import annotations

import math

import torch

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.svg import Figure, Line, Panel

GROUP = "Efficient attention"
SOURCE = "the reading questions; Wang et al. 2020, arXiv:2006.04768"
WIDTH = 16
ROWS = 128  # queries looked at


def projected(length: int, m: int, generator: torch.Generator) -> tuple[float, float]:
    """Mean errors with a random m x T projection R: of P R^T R V, and of the layer's own formula.

    The first is what the theorem is about, relative to |p| |v| as in its proof; the second is
    softmax(Q (R K)^T) (R V), relative to the size of the exact output.
    """
    q = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, length, WIDTH, generator=generator, dtype=torch.float64)
    p = torch.softmax(q @ k.T / math.sqrt(WIDTH), -1)
    r = torch.randn(m, length, generator=generator, dtype=torch.float64) / math.sqrt(m)
    exact = p @ v
    moved = (p @ r.T) @ (r @ v)
    scale = p.norm(dim=1, keepdim=True) * v.norm(dim=0)
    theorem = float(((moved - exact).abs() / scale).mean())
    layer = torch.softmax(q @ (r @ k).T / math.sqrt(WIDTH), -1) @ (r @ v)
    own = float((layer - exact).norm() / exact.norm())
    return theorem, own


def johnson_lindenstrauss(generator: torch.Generator, setting: Setting) -> Verdict:
    sizes, lengths = [8, 16, 32, 64, 128, 256], [128, 512, 2048]
    draws = 4
    table: dict[tuple[int, int], tuple[float, float]] = {}
    for length in lengths:
        for m in sizes:
            found = [projected(length, m, generator) for _ in range(draws)]
            table[length, m] = (
                sum(one for one, _ in found) / draws,
                sum(other for _, other in found) / draws,
            )
    # For Gaussian R the error of one inner product is about sqrt(2/pi) / sqrt(m), whatever T is.
    constants = [table[length, m][0] * math.sqrt(m) for length in lengths for m in sizes]
    flat = max(
        max(table[length, m][0] for length in lengths)
        / min(table[length, m][0] for length in lengths)
        for m in sizes
    )
    own = min(error for _, error in table.values())
    figure = Figure(
        "Left: the theorem's error, projecting P and V, falls as m^-1/2 and does not depend on T. "
        "Right: the layer's own formula with the same random projection does not come near "
        "softmax.",
        [
            Panel(
                "P R^T R V",
                "m",
                "error / (|p| |v|)",
                [
                    Line(sizes, [table[length, m][0] for m in sizes], f"T = {length}")
                    for length in lengths
                ],
                log_x=True,
                log_y=True,
            ),
            Panel(
                "softmax(Q (RK)^T) (RV)",
                "m",
                "relative error",
                [
                    Line(sizes, [table[length, m][1] for m in sizes], f"T = {length}")
                    for length in lengths
                ],
                log_x=True,
                log_y=True,
            ),
        ],
    )
    measures = [
        Measure("largest error x sqrt(m)", max(constants), "<=", 1.0),
        Measure("largest over smallest error when T grows from 128 to 2,048", flat, "<=", 1.5),
        Measure("the layer's own formula: smallest relative error of all", own, ">=", 0.5),
    ]
    finding = (
        "The error of the theorem is 0.8/sqrt(m) of |p| |v|, the same for every T: m of the order "
        "1/eps^2 is enough for one row, and log or d factors make it hold for all. But the "
        "theorem projects the finished weights, which nobody has; the layer's formula projects "
        "the keys inside the softmax, and with random E and F it is no approximation at all. "
        "Linformer works because E and F are learned."
    )
    condition = "it is read as projecting the finished weights, relative to |p| |v|"
    samples = draws * len(table)
    return judge(measures, samples, finding, condition=condition, figure=figure)


CLAIMS = [
    Claim(
        "lin-3",
        GROUP,
        "With m of the order d/eps^2 the error of projecting stays below eps, whatever the length "
        "T.",
        SOURCE,
        johnson_lindenstrauss,
    ),
]
