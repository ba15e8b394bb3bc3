"""Claims one-* and two-*: one head against two when the keys are random."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.constructions import orthonormal, stretched
from whence.lab.heads import multi_head, sample_keys, single_head, spread, weights
from whence.lab.svg import Bars, Cells, Dots, Figure, Line, Panel

GROUP = "Attention exploration"
SOURCE = "the written answers, attention exploration"
KEYS = 8  # n: two keys that matter and six that do not
ALPHA = 1e-18  # "vanishingly small"


def normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _stretched_keys(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, draws of the keys with k_a = eps mu_a, and eps."""
    means = orthonormal(KEYS, KEYS, generator)[0]
    keys = sample_keys(means, stretched(means, 0, ALPHA), generator, samples)
    return means, keys, keys[:, 0] @ means[0]


def small_noise(generator: torch.Generator, setting: Setting) -> Verdict:
    """The log-odds of a against b are q.(k_a - k_b) ~ N(0, (2 C sqrt(alpha))^2)."""
    means = orthonormal(KEYS, KEYS, generator)[0]
    identity = torch.eye(KEYS, dtype=torch.float64)
    factors = [2.0 ** (step / 2) for step in range(15)]
    noises = [10.0 ** (-4 + step / 4) for step in range(17)]
    noise = torch.randn(400, KEYS, KEYS, generator=generator, dtype=torch.float64)
    errors = torch.zeros(len(noises), len(factors), dtype=torch.float64)
    for row, deviation in enumerate(noises):
        keys = means + deviation * noise
        for column, factor in enumerate(factors):
            c = single_head(factor * (means[0] + means[1]), keys, identity)
            middle = identity[:2].mean(0)
            errors[row, column] = (c - middle).norm(dim=-1).mean() / math.sqrt(0.5)
    inside, outside = [], []
    for row, deviation in enumerate(noises):
        for column, factor in enumerate(factors):
            if factor >= 11:
                if factor * deviation <= 0.02:
                    inside.append(float(errors[row, column]))
                if factor * deviation >= 2:
                    outside.append(float(errors[row, column]))
    line = [noise for noise in noises if 0.1 / noise <= max(factors) and 0.1 / noise >= 1]
    figure = Figure(
        "Mean distance of c from the average (dark: the whole way to v_a or v_b). Left of C = 8 "
        "the other keys still count; above the dashed line, C sqrt(alpha) = 0.1, the noise "
        "decides.",
        [
            Panel(
                "Where one head averages",
                "C",
                "sqrt(alpha)",
                [
                    Cells(factors, noises, errors.tolist()),
                    Line([0.1 / noise for noise in line], line, "", dashed=True),
                ],
                log_x=True,
                log_y=True,
            )
        ],
    )
    measures = [
        Measure("largest mean error with C sqrt(alpha) <= 0.02, C >= 11", max(inside), "<=", 0.03),
        Measure("smallest mean error with C sqrt(alpha) >= 2, C >= 11", min(outside), ">=", 0.5),
    ]
    finding = (
        "The log-odds of a against b are normal with deviation 2 C sqrt(alpha), so C must be large "
        "against log n and small against 1/sqrt(alpha): 'vanishing alpha' has to mean that."
    )
    condition = "C sqrt(alpha) is small (below about 0.02) while e^C is large against n"
    samples = 400 * errors.numel()
    return judge(measures, samples, finding, condition=condition, figure=figure)


def swinging(generator: torch.Generator, setting: Setting) -> Verdict:
    means, keys, eps = _stretched_keys(generator, 20000)
    panels, measures = [], []
    for factor in (1.0, 4.0, 12.0, 40.0):
        a = weights(factor * (means[0] + means[1]), keys)[:, 0]
        formula = 1 / (1 + torch.exp((1 - eps) * factor))
        worst = float((a - formula).abs().max())
        if factor == 12:
            bound = (KEYS - 2) * math.exp(-factor)
            measures.append(Measure("largest |a_a - formula|, C = 12", worst, "<=", bound))
        middle = float(((a > 0.1) & (a < 0.9)).double().mean())
        if factor > 1:
            expected = 2 * normal_cdf(math.log(9) / (factor * math.sqrt(0.5))) - 1
            name = f"share of draws with 0.1 < a_a < 0.9, C = {factor:g}"
            measures.append(Measure(name, middle, "~", expected, 0.03))
        counts = torch.histc(a, bins=25, min=0, max=1) / len(a)
        edges = [step / 25 for step in range(26)]
        panels.append(Panel(f"C = {factor:g}", "a_a", "share", [Bars(edges, counts.tolist())]))
    figure = Figure(
        "The weight of k_a over draws of its length: one hump for a small C, two peaks at 0 and 1 "
        "for a large one.",
        panels,
    )
    finding = (
        "The formula leaves out the n - 2 other keys, which is worth at most (n - 2)e^-C. The "
        "output is rarely an average: at C = 40 it is v_a or v_b in all but about six draws of a "
        "hundred."
    )
    return judge(measures, 80000, finding, figure=figure)


def missing_one(generator: torch.Generator, setting: Setting) -> Verdict:
    means, keys, eps = _stretched_keys(generator, 5000)
    factor = 12.0
    a = weights(factor * (means[0] + means[1]), keys)[:, 0]
    written = torch.exp(-(eps - 1) * factor)
    mended = 1 / (1 + torch.exp((eps - 1) * factor))
    right = 1 / (1 + torch.exp((1 - eps) * factor))
    measures = [
        Measure(
            "share of draws with a 'weight' above one",
            float((written > 1).double().mean()),
            ">=",
            0.4,
        ),
        Measure("largest 'weight'", float(written.max()), ">=", 1e6),
        Measure("mean error with only '1 +' added", float((mended - a).abs().mean()), ">=", 0.5),
        Measure(
            "mean error with '1 +' and the sign turned", float((right - a).abs().mean()), "<=", 1e-4
        ),
    ]
    finding = (
        "Half of the draws get a weight above one. Adding the '1 +' is not enough: with eps_a - "
        "eps_b in the exponent it is the weight of b; the sign has to be turned as well."
    )
    return judge(measures, 5000, finding, expected=False)


def two_heads(generator: torch.Generator, setting: Setting) -> Verdict:
    means, keys, eps = _stretched_keys(generator, 20000)
    values = torch.eye(KEYS, dtype=torch.float64)
    middle = values[:2].mean(0)
    factors = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    single, double = [], []
    for factor in factors:
        one = single_head(factor * (means[0] + means[1]), keys, values)
        two = multi_head([factor * means[0], factor * means[1]], keys, values)
        single.append(spread(one))
        double.append(spread(two))
    found = eps * factors[-1] >= 10
    error = (two - middle).norm(dim=-1)
    lost = float((eps <= 0).double().mean())
    cloud = slice(0, 300)
    figure = Figure(
        "Left: the variance of the output over draws of k_a's length. Right: 300 outputs at C = "
        "64 in the plane of v_a and v_b; one head runs along the edge between them, two stay in "
        "the middle but for the draws in which k_a points backwards.",
        [
            Panel(
                "Variance of the output",
                "C",
                "E|c - E c|^2",
                [Line(factors, single, "one head"), Line(factors, double, "two heads")],
                log_x=True,
            ),
            Panel(
                "Outputs in the plane",
                "share of v_a",
                "share of v_b",
                [
                    Dots(one[cloud, 0].tolist(), one[cloud, 1].tolist(), "one head"),
                    Dots(two[cloud, 0].tolist(), two[cloud, 1].tolist(), "two heads"),
                ],
            ),
        ],
    )
    measures = [
        Measure("largest |c - average| where C eps >= 10", float(error[found].max()), "<=", 1e-3),
        Measure("variance, one head / two heads, C = 64", single[-1] / double[-1], ">=", 10.0),
        Measure("variance of one head, C = 64", single[-1]),
        Measure("variance of two heads, C = 64", double[-1]),
        Measure("share of draws with eps <= 0", lost, "~", normal_cdf(-math.sqrt(2)), 0.01),
    ]
    finding = (
        "Two heads keep the average whatever the length of k_a, as long as it points forwards. "
        "With eps ~ N(1, 1/2) it points backwards in 7.9 % of the draws: then head 1 loses k_a, "
        "and that is nearly all of the variance that remains."
    )
    condition = "C eps is large; eps <= 0 (7.9 % of the draws) loses v_a"
    return judge(measures, 20000 * len(factors), finding, condition=condition, figure=figure)


def equal_heads(generator: torch.Generator, setting: Setting) -> Verdict:
    means, keys, _ = _stretched_keys(generator, 5000)
    values = torch.eye(KEYS, dtype=torch.float64)
    apart, ratios = 0.0, []
    for factor in (2.0, 8.0, 32.0):
        query = factor * (means[0] + means[1])
        one = single_head(query, keys, values)
        two = multi_head([query, query], keys, values)
        apart = max(apart, float((one - two).abs().max()))
        ratios.append(spread(two) / spread(one))
    measures = [
        Measure("largest |two equal heads - one head|", apart, "<=", 1e-15),
        Measure("smallest variance, two heads / one head", min(ratios), ">=", 1 - 1e-12),
    ]
    finding = (
        "Equal queries on the same keys give equal outputs, draw by draw: there is nothing to "
        "average out, and the variance is that of one head. Heads help by asking different things."
    )
    return judge(measures, 15000, finding, expected=False)


def small_queries(generator: torch.Generator, setting: Setting) -> Verdict:
    factors = [0.5 * step for step in range(1, 41)]
    curves, at_one = [], []
    for n in (3, 8, 32, 128):
        means = orthonormal(n, n, generator)[0]
        values = torch.eye(n, dtype=torch.float64)
        middle = values[:2].mean(0)
        errors = []
        for factor in factors:
            c = multi_head([factor * means[0], factor * means[1]], means, values)
            errors.append(float((c - middle).norm() / middle.norm()))
        curves.append(Line(factors, errors, f"n = {n}"))
        at_one.append(errors[1])
    figure = Figure(
        "Relative error of the average against the factor in front of the queries: the written "
        "answer stands at C = 1.",
        [Panel("Two heads", "C", "relative error", curves, log_y=True)],
    )
    large = [line.y[-1] for line in curves]
    measures = [
        Measure("relative error, C = 1, n = 3", at_one[0], ">=", 0.1),
        Measure("relative error, C = 1, n = 8", at_one[1], ">=", 0.1),
        Measure("relative error, C = 1, n = 128", at_one[3], ">=", 0.1),
        Measure("largest relative error, C = 20", max(large), "<=", 1e-5),
    ]
    finding = (
        "With C = 1 head 1 gives v_a the weight e/(e + n - 1): 0.58 of three keys, 0.02 of 128. "
        "The softmax is only peaked when C is large against log n."
    )
    return judge(measures, 160, finding, expected=False, figure=figure)


CLAIMS = [
    Claim(
        "one-1",
        GROUP,
        "Keys N(mu_i, alpha I) with vanishing alpha: q = C(mu_a + mu_b) gives c ~ the average.",
        SOURCE,
        small_noise,
    ),
    Claim(
        "one-2",
        GROUP,
        "With Sigma_a = alpha I + mu_a mu_a^T/2: a_a = 1/(1 + e^{(1-eps)C}), and c swings between "
        "v_a and v_b.",
        SOURCE,
        swinging,
    ),
    Claim(
        "one-3",
        GROUP,
        "The weight is a_a = 1/e^{(eps_a - eps_b)C}.",
        "a written answer",
        missing_one,
    ),
    Claim(
        "two-1",
        GROUP,
        "q1 = C mu_a, q2 = C mu_b: (c1 + c2)/2 ~ the average, and stays so when |k_a| varies.",
        SOURCE,
        two_heads,
    ),
    Claim(
        "two-2",
        GROUP,
        "q1 = q2 = C(mu_a + mu_b): two heads reduce the variance.",
        "two written answers",
        equal_heads,
    ),
    Claim(
        "two-3",
        GROUP,
        "q1 = mu_a, q2 = mu_b, without a large factor, give the average.",
        "a written answer",
        small_queries,
    ),
]
