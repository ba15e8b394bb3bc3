"""Claims copy-* and avg-*: pointing at one value, separating two, averaging two."""

from __future__ import annotations

import math

import torch

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.constructions import averaging_query, orthonormal, projection, subspaces
from whence.lab.heads import attend, weights
from whence.lab.svg import Figure, Line, Panel

GROUP = "Attention exploration"
SOURCE = "the written answers, attention exploration"


def categorical(generator: torch.Generator, setting: Setting) -> Verdict:
    smallest, off, samples = math.inf, 0.0, 0
    for n in (1, 2, 7, 64):
        for scale in (0.1, 1.0, 30.0, 1000.0):
            keys = scale * torch.randn(250, n, 8, generator=generator, dtype=torch.float64)
            query = torch.randn(250, 8, generator=generator, dtype=torch.float64)
            a = weights(query, keys)
            smallest = min(smallest, float(a.min()))
            off = max(off, float((a.sum(-1) - 1).abs().max()))
            samples += 250
    measures = [
        Measure("smallest weight", smallest, ">=", 0.0),
        Measure("largest |sum - 1|", off, "<=", 1e-12),
    ]
    finding = (
        "Every draw is a distribution over the n keys, for scores from near nothing to the "
        "thousands. On paper no weight is ever 0; in float64 the small ones underflow to it."
    )
    return judge(measures, samples, finding)


def copying(generator: torch.Generator, setting: Setting) -> Verdict:
    over, under, far, samples = 0.0, math.inf, -math.inf, 0
    for n in (2, 5, 32):
        for scale in (0.3, 1.0, 3.0):
            keys = scale * torch.randn(200, n, 16, generator=generator, dtype=torch.float64)
            query = torch.randn(200, 16, generator=generator, dtype=torch.float64)
            values = torch.randn(200, n, 16, generator=generator, dtype=torch.float64)
            scores = torch.einsum("snd,sd->sn", keys, query)
            best, index = scores.max(-1)
            others = scores.scatter(1, index.unsqueeze(1), -math.inf)
            gap = best - others.max(-1).values
            a = weights(query, keys)
            kept = a.gather(1, index.unsqueeze(1)).squeeze(1)
            rest = a.scatter(1, index.unsqueeze(1), 0.0).sum(-1)
            over = max(over, float((rest / ((n - 1) * torch.exp(-gap))).max()))
            under = min(under, float((rest / (kept * torch.exp(-gap))).min()))
            copied = values[torch.arange(200), index]
            reach = (values - copied.unsqueeze(1)).norm(dim=-1).max(-1).values
            distance = (attend(query, keys, values) - copied).norm(dim=-1)
            far = max(far, float((distance - rest * reach).max()))
            samples += 200
    gaps = [0.5 * step for step in range(41)]
    lines = [
        Line(gaps, [1 - 1 / (1 + (n - 1) * math.exp(-gap)) for gap in gaps], f"n = {n}")
        for n in (2, 16, 128)
    ]
    bound = Line(gaps, [min(1.0, 127 * math.exp(-gap)) for gap in gaps], "bound, n = 128", True)
    figure = Figure(
        "What the other keys keep, 1 - a_j, when all of them are `gap` behind: a gap of log n is "
        "lost in the crowd, ten more leave 5e-5.",
        [Panel("Copying one value", "gap", "1 - a_j", [*lines, bound], log_y=True)],
    )
    measures = [
        Measure("largest (1 - a_j) / ((n - 1) e^-gap)", over, "<=", 1 + 1e-9),
        Measure("smallest (1 - a_j) / (a_j e^-gap)", under, ">=", 1 - 1e-9),
        Measure("largest |c - v_j| - (1 - a_j) max |v_i - v_j|", far, "<=", 1e-12),
    ]
    finding = (
        "Both directions: a_j e^-gap <= 1 - a_j <= (n - 1) e^-gap, so a weight near one needs a "
        "gap of log((n - 1)/delta) to leave at most delta to the others, and has it."
    )
    return judge(measures, samples, finding, figure=figure)


def _separation(
    generator: torch.Generator,
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(A, v_a, v_a + v_b) for many sizes of the two subspaces."""
    cases = []
    for width, first, second in ((2, 1, 1), (4, 1, 3), (8, 3, 2), (16, 8, 8), (32, 5, 20)):
        basis, other = subspaces(width, first, second, generator, batch=250)
        coordinates = torch.randn(250, first, 1, generator=generator, dtype=torch.float64)
        remainder = torch.randn(250, second, 1, generator=generator, dtype=torch.float64)
        wanted = basis @ coordinates
        cases.append((basis, wanted, wanted + other @ remainder))
    return cases


def separating(generator: torch.Generator, setting: Setting) -> Verdict:
    cases = _separation(generator)
    worst = max(
        float((projection(basis) @ both - wanted).norm(dim=(-2, -1)).max())
        for basis, wanted, both in cases
    )
    skewed = [basis * 2 for basis, _, _ in cases]  # a basis whose vectors are not of length one
    error = min(
        float((projection(basis) @ both - wanted).norm(dim=(-2, -1)).median())
        for basis, (_, wanted, both) in zip(skewed, cases, strict=True)
    )
    measures = [
        Measure("largest |M(v_a + v_b) - v_a|", worst, "<=", 1e-12),
        Measure("median error with basis vectors of length 2", error, ">=", 0.1),
    ]
    finding = (
        "Exact to rounding for every size of the subspaces. It rests on two things the answer must "
        "say: the columns of A have length one, and the two subspaces are orthogonal."
    )
    return judge(measures, 1250, finding)


def coordinates(generator: torch.Generator, setting: Setting) -> Verdict:
    cases = _separation(generator)
    sizes = sum(len(basis) for basis, _, _ in cases if basis.shape[-1] == basis.shape[-2])
    read = max(
        float((basis @ (basis.transpose(-2, -1) @ both) - wanted).norm(dim=(-2, -1)).max())
        for basis, wanted, both in cases
    )
    square = orthonormal(6, 6, generator, batch=1000).transpose(-2, -1)
    wanted = torch.randn(1000, 6, 1, generator=generator, dtype=torch.float64)
    off = (square.transpose(-2, -1) @ wanted - wanted).norm(dim=(-2, -1)) / wanted.norm(
        dim=(-2, -1)
    )
    measures = [
        Measure("draws in which A^T(v_a + v_b) has as many numbers as v_a", sizes, "<=", 0.0),
        Measure("largest |A (A^T(v_a + v_b)) - v_a|", read, "<=", 1e-12),
        Measure("square A, smallest relative error of A^T v_a", float(off.min()), ">=", 0.01),
    ]
    finding = (
        "A^T(v_a + v_b) is the list of v_a's coordinates in the basis A, m numbers and not d. Read "
        "in that basis it is right; as a vector it is not, not even for a square A (unless A = I)."
    )
    return judge(measures, 2250, finding, expected=False)


def averaging(generator: torch.Generator, setting: Setting) -> Verdict:
    worst_weight, worst_output, samples = 0.0, -math.inf, 0
    sizes, factors = (3, 8, 32), (0.5, 2.0, 8.0, 24.0)
    for n in sizes:
        for factor in factors:
            keys = orthonormal(n, n, generator, batch=100)
            values = torch.randn(100, n, n, generator=generator, dtype=torch.float64)
            query = averaging_query(keys[:, 0], keys[:, 1], factor)
            expected = math.exp(factor) / (n - 2 + 2 * math.exp(factor))
            a = weights(query, keys)
            worst_weight = max(worst_weight, float((a[:, :2] - expected).abs().max()))
            middle = values[:, :2].mean(1)
            reach = (values - middle.unsqueeze(1)).norm(dim=-1).max(-1).values
            error = (attend(query, keys, values) - middle).norm(dim=-1)
            lost = (n - 2) / (n - 2 + 2 * math.exp(factor))
            worst_output = max(worst_output, float((error - lost * reach).max()))
            samples += 100
    axis = [0.25 * step for step in range(1, 81)]
    figure = Figure(
        "The weight that does not go to a and b, (n - 2)/(n - 2 + 2 e^C): straight lines of slope "
        "-1 once e^C is larger than n.",
        [
            Panel(
                "Averaging two values",
                "C",
                "weight lost to the other keys",
                [
                    Line(axis, [(n - 2) / (n - 2 + 2 * math.exp(c)) for c in axis], f"n = {n}")
                    for n in (4, 16, 64, 1024)
                ],
                log_y=True,
            )
        ],
    )
    measures = [
        Measure("largest |a_a - e^C/(n - 2 + 2e^C)|", worst_weight, "<=", 1e-12),
        Measure("largest |c - average| - weight lost x reach", worst_output, "<=", 1e-12),
    ]
    finding = (
        "The formula is exact for orthonormal keys, and the error of c is at most the weight lost, "
        "(n - 2)/(n - 2 + 2e^C), times the distance of the furthest value: C = log(50 n) is "
        "enough for one per cent."
    )
    return judge(measures, samples, finding, figure=figure)


CLAIMS = [
    Claim(
        "copy-1",
        GROUP,
        "The weights a are a categorical distribution: n categories, a_i >= 0, sum 1.",
        SOURCE,
        categorical,
    ),
    Claim(
        "copy-2",
        GROUP,
        "a_j is much larger than the sum of the others if and only if k_j.q is much larger than "
        "every other k_i.q; then c ~ v_j.",
        SOURCE,
        copying,
    ),
    Claim(
        "avg-1",
        GROUP,
        "M = A A^T (A: orthonormal basis of v_a's subspace, as columns) extracts v_a from v_a + "
        "v_b.",
        SOURCE,
        separating,
    ),
    Claim(
        "avg-2", GROUP, "M = A^T extracts v_a from v_a + v_b.", "one written answer", coordinates
    ),
    Claim(
        "avg-3",
        GROUP,
        "With orthonormal keys q = C(k_a + k_b), C >> 0, gives c ~ (v_a + v_b)/2, with "
        "a_a = e^C/(n - 2 + 2e^C).",
        SOURCE,
        averaging,
    ),
]
