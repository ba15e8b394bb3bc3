"""Claims perf-3 and perf-4: positive and orthogonal random features, against their formulas."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.attention.performer import draw_directions
from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.svg import Figure, Line, Panel

GROUP = "Efficient attention"
SOURCE = "the reading questions; Choromanski et al. 2020, arXiv:2009.14794"
WIDTH = 16
KINDS = ("trig", "positive", "hyperbolic")
COSINES = [-1 + step / 8 for step in range(17)]


def directions(count: int, draws: int, draw: str, generator: torch.Generator) -> Tensor:
    """(draws, count, WIDTH): independent sets of random directions, by the mechanism's own code."""
    seeds = torch.randint(0, 2**31, (draws,), generator=generator).tolist()
    return torch.stack([draw_directions(count, WIDTH, draw, seed) for seed in seeds])


def estimates(w: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Estimates of e^{x.y}, one for each set of directions w (draws, m, d)."""
    half = (x.square().sum() + y.square().sum()) / 2
    return {
        "trig": torch.exp(half) * torch.cos(w @ (x - y)).mean(-1),
        "positive": torch.exp(w @ (x + y) - half).mean(-1),
        "hyperbolic": torch.exp(-half) * torch.cosh(w @ (x + y)).mean(-1),
    }


def theory(x: Tensor, y: Tensor, m: int) -> dict[str, float]:
    """The exact mean squared errors for independent Gaussian directions."""
    kernel = math.exp(float(x @ y))
    plus, minus = float((x + y).square().sum()), float((x - y).square().sum())
    positive = math.exp(plus) * kernel**2 * (1 - math.exp(-plus)) / m
    return {
        "trig": math.exp(plus) / kernel**2 * (1 - math.exp(-minus)) ** 2 / (2 * m),
        "positive": positive,
        "hyperbolic": positive * (1 - math.exp(-plus)) / 2,
    }


def pair(cosine: float, norm: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two vectors of the given norm and cosine in a random plane."""
    basis, _ = torch.linalg.qr(torch.randn(WIDTH, 2, generator=generator, dtype=torch.float64))
    x = norm * basis[:, 0]
    y = norm * (cosine * basis[:, 0] + math.sqrt(max(0.0, 1 - cosine**2)) * basis[:, 1])
    return x, y


def excess(kind: str, x: Tensor, y: Tensor) -> float:
    """Excess kurtosis of one direction's estimate, from the moments of exp, cosh or cos of N(0, s).

    It decides how well a mean of squares can be measured at all: that of exp grows as e^{4 s}, so
    that for long x + y no affordable sample comes near its own expectation.
    """
    s = float((x - y if kind == "trig" else x + y).square().sum())

    def moment(power: int) -> float:
        if kind == "positive":
            return math.exp(power**2 * s / 2)
        sign = -1 if kind == "trig" else 1
        terms = (
            math.comb(power, j) * math.exp(sign * (power - 2 * j) ** 2 * s / 2)
            for j in range(power + 1)
        )
        return sum(terms) * 0.5**power

    one, two, three, four = (moment(power) for power in range(1, 5))
    variance = two - one**2
    if variance < 1e-9 * two:
        return 0.0  # nothing varies: the estimate is exact
    return (four - 4 * one * three + 6 * one**2 * two - 3 * one**4) / variance**2 - 3


def errors_by_angle(
    norm: float, w: Tensor, generator: torch.Generator
) -> tuple[dict[str, dict[float, float]], dict[str, dict[float, float]], list[float]]:
    """By kind and cosine: relative errors measured, the same by the formulas, and how far apart.

    A measured error is kept only where its own standard error is below a twentieth; how far it is
    from the formula is given in those standard errors.
    """
    draws, m, _ = w.shape
    measured: dict[str, dict[float, float]] = {kind: {} for kind in KINDS}
    exact: dict[str, dict[float, float]] = {kind: {} for kind in KINDS}
    apart = []
    for cosine in COSINES:
        x, y = pair(cosine, norm, generator)
        kernel = math.exp(float(x @ y))
        said = theory(x, y, m)
        for kind, values in estimates(w, x, y).items():
            exact[kind][cosine] = math.sqrt(said[kind]) / kernel
            # The mean of m has a kurtosis of 3 + excess/m, the mean of its squares this deviation:
            uncertain = math.sqrt((2 + excess(kind, x, y) / m) / draws)
            if uncertain > 0.05:
                continue
            found = float((values - kernel).square().mean())
            measured[kind][cosine] = math.sqrt(found) / kernel
            if exact[kind][cosine] > 1e-6:
                apart.append(abs(found / said[kind] - 1) / uncertain)
    return measured, exact, apart


def positive(generator: torch.Generator, setting: Setting) -> Verdict:
    m, draws = 64, 3000
    w = directions(m, draws, "iid", generator)
    panels, apart = [], []
    for norm in (0.5, 2.0):
        measured, exact, distances = errors_by_angle(norm, w, generator)
        apart += distances
        panels.append(
            Panel(
                f"|x| = |y| = {norm:g}",
                "cosine of x and y",
                "relative error",
                [Line(list(measured[kind]), list(measured[kind].values()), kind) for kind in KINDS]
                + [
                    Line(COSINES, list(exact[kind].values()), dashed=True, of=number)
                    for number, kind in enumerate(KINDS)
                ],
                log_y=True,
                floor=1e-3,
            )
        )
    figure = Figure(
        "Relative error of e^{x.y} with 64 features: measured (full, where 3,000 draws are enough "
        "to measure it) and by the formulas (dashed). Positive features are exact where the kernel "
        "is smallest, trigonometric ones where it is largest.",
        panels,
    )
    # What is left are the errors at |x| = |y| = 2, where the kernel goes from e^-4 to e^4.
    measures = [
        Measure("largest distance from a formula, in standard errors", max(apart), "<=", 4.5),
        Measure("kernel e^-4: relative error, positive", measured["positive"][-1.0], "<=", 1e-6),
        Measure("kernel e^-4: relative error, trigonometric", measured["trig"][-1.0], ">=", 100.0),
        Measure("kernel e^-2: relative error, positive (formula)", exact["positive"][-0.5]),
        Measure("kernel e^-2: relative error, trigonometric", measured["trig"][-0.5], ">=", 10.0),
        Measure("kernel e^4: relative error, trigonometric", measured["trig"][1.0], "<=", 1e-6),
        Measure("kernel e^4: relative error, positive (formula)", exact["positive"][1.0]),
    ]
    finding = (
        "Where the kernel is small positive features are at their best and trigonometric ones at "
        "their worst: at e^-2 the error is the size of the weight against 36 times that. The price "
        "is paid at the other end, where x = y: there positive features are hopeless, and their "
        "tail is so heavy that their error can be computed but not measured. Most pairs of a "
        "sentence are of the first kind."
    )
    return judge(measures, draws * 2 * len(COSINES), finding, figure=figure)


def orthogonal(generator: torch.Generator, setting: Setting) -> Verdict:
    draws, counts = 4000, [2, 4, 8, 16]
    x, y = pair(0.0, 0.6, generator)  # short enough for the error to be measured: see `excess`
    kernel = math.exp(float(x @ y))
    floor = math.exp(-float(x.square().sum() + y.square().sum()) / 2)
    errors: dict[str, list[float]] = {"iid": [], "orthogonal": []}
    for m in counts:
        for draw in errors:
            values = estimates(directions(m, draws, draw, generator), x, y)["positive"]
            errors[draw].append(float((values - kernel).square().mean()))
    figure = Figure(
        "Mean squared error of e^{x.y} against the number of features, width 16: orthogonal "
        "directions reach the same error with fewer of them. Dashed: the formula for independent "
        "ones.",
        [
            Panel(
                "Orthogonal features",
                "features",
                "mean squared error",
                [
                    Line(counts, errors["iid"], "independent"),
                    Line(counts, errors["orthogonal"], "orthogonal"),
                    Line(counts, [theory(x, y, m)["positive"] for m in counts], dashed=True, of=0),
                ],
                log_x=True,
                log_y=True,
            )
        ],
    )
    full = counts[-1]
    alone = theory(x, y, full)["positive"]
    promised = 2 * (full - 1) / (full * (WIDTH + 2)) * (kernel - floor) ** 2
    uncertain = alone * math.sqrt((2 + excess("positive", x, y) / full) / draws)
    ratio = errors["orthogonal"][-1] / alone
    measures = [
        Measure("mean squared error, orthogonal / independent, m = 16", ratio, "<=", 0.9),
        # An independent draw's error is c/m, so this many would be needed for the same error.
        Measure("independent features for the error of 16 orthogonal ones", full / ratio),
        Measure(
            "m = 16: gain over independent features, less three standard errors of it",
            alone - errors["orthogonal"][-1] - 3 * uncertain,
            ">=",
            0.0,
        ),
        Measure("m = 16: gain", alone - errors["orthogonal"][-1], ">=", promised - 3 * uncertain),
        Measure("m = 16: gain promised by the theorem, at least", promised),
    ]
    finding = (
        "Sixteen orthogonal directions do what about twenty independent ones do, and the gain is "
        "the theorem's or more. It grows with m up to the width, where a block of orthogonal "
        "directions is full."
    )
    return judge(measures, draws * 2 * len(counts), finding, figure=figure)


CLAIMS = [
    Claim(
        "perf-3",
        GROUP,
        "Positive features are stable where the kernel is small.",
        SOURCE,
        positive,
    ),
    Claim(
        "perf-4",
        GROUP,
        "Orthogonal features reduce the variance: fewer features for the same error.",
        SOURCE,
        orthogonal,
    ),
]
