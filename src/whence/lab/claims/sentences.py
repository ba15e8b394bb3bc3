"""Claims kqv-*, perm-1 and rope-1: self-attention over a short sentence, and over positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.constructions import (
    Words,
    pointing_first,
    pointing_second,
    self_attention,
    value_keeping_b,
    words,
)
from whence.lab.positions import rotate, rotate_complex, sinusoids
from whence.lab.svg import Figure, Line, Panel

GROUP = "Attention exploration"
SOURCE = "the written answers, attention exploration"
DRAWS = 250
BETAS = (1.0, 1.5, 2.0, 3.0, 4.0)


def _identity(u: Words) -> Tensor:
    return torch.eye(len(u.a), dtype=torch.float64)


def _relative(output: Tensor, wanted: Tensor) -> float:
    return float((output - wanted).norm() / wanted.norm())


def copying_itself(generator: torch.Generator, setting: Setting) -> Verdict:
    worst = []
    for beta in BETAS:
        errors = []
        for _ in range(DRAWS):
            u = words(beta, 6, generator)
            one = _identity(u)
            errors.append(_relative(self_attention(u.sentence(), one, one, one)[1], u.a))
        worst.append(max(errors))
    figure = Figure(
        "Relative error of c_2 ~ u_a: the score beta^2 in the exponent makes it vanish quickly.",
        [Panel("c_2 ~ u_a", "beta", "relative error", [Line(BETAS, worst)], log_y=True)],
    )
    measures = [
        Measure("relative error, beta = 1", worst[0], ">=", 0.1),
        Measure("relative error, beta = 3", worst[3], "<=", 1e-3),
        Measure("relative error, beta = 4", worst[4], "<=", 1e-6),
    ]
    finding = (
        "x_2 scores beta^2 with itself and 0 with the others, so it keeps the weight "
        "e^{beta^2}/(e^{beta^2} + 2): sure from beta = 3 on, not at beta = 1."
    )
    condition = "beta is large (from 3 on the error is below 0.1 %)"
    return judge(measures, DRAWS * len(BETAS), finding, condition=condition, figure=figure)


def adding_does_not_help(generator: torch.Generator, setting: Setting) -> Verdict:
    near, right = math.inf, 0.0
    for _ in range(DRAWS):
        u = words(4.0, 6, generator)
        one = _identity(u)
        for added in (u.d, u.c):
            c = self_attention(u.sentence(added), one, one, one)[1]
            right = max(right, _relative(c, u.a + added))
        # However the scores fall out, c_2 is a convex combination of the three words.
        mixtures = _mixtures(200, generator) @ u.sentence(u.d)
        near = min(near, float((mixtures - u.b).norm(dim=-1).min() / u.beta))
    measures = [
        Measure("largest relative error of c_2 ~ u_a + u_d (or u_a + u_c)", right, "<=", 1e-5),
        Measure("least |mixture - u_b| / beta over all mixtures tried", near, ">=", math.sqrt(0.5)),
    ]
    finding = (
        "c_2 is u_a + u_d. And no weights at all can give u_b: it only occurs together with u_d "
        "or u_c, so every mixture of the three words stays beta/sqrt(2) away from it."
    )
    return judge(measures, DRAWS * 202, finding)


def _mixtures(count: int, generator: torch.Generator) -> Tensor:
    """Random weights of three words; squares of normals also come close to the corners."""
    squares = torch.randn(count, 3, generator=generator, dtype=torch.float64).square()
    return squares / squares.sum(-1, keepdim=True)


def _pointing(generator: torch.Generator, second: bool) -> tuple[list[float], float]:
    """Worst relative error for each beta, and the largest deviation of a score from its formula."""
    worst, deviation = [], 0.0
    for beta in BETAS:
        errors = []
        for _ in range(DRAWS):
            u = words(beta, 6, generator)
            x = u.sentence()
            key, query = (pointing_second if second else pointing_first)(u)
            value = value_keeping_b(u)
            c = self_attention(x, key, query, value)
            errors.append(max(_relative(c[1], u.b), _relative(c[0], u.b - u.c)))
            scores = (x @ query.T) @ (x @ key.T).T
            sixth, fourth = beta**6, beta**4
            rows = (
                [[0, 0, sixth], [2 * sixth, 0, 0]] if second else [[0, 0, fourth], [fourth, 0, 0]]
            )
            told = torch.tensor(rows, dtype=torch.float64)
            deviation = max(deviation, float((scores[:2] - told).abs().max() / beta**6))
        worst.append(max(errors))
    return worst, deviation


def first_construction(generator: torch.Generator, setting: Setting) -> Verdict:
    worst, deviation = _pointing(generator, second=False)
    measures = [
        Measure("relative error of c_1 and c_2, beta = 2", worst[2], "<=", 1e-5),
        Measure("relative error of c_1 and c_2, beta = 3", worst[3], "<=", 1e-12),
        Measure("largest deviation of a score from 0 or beta^4", deviation, "<=", 1e-12),
    ]
    finding = (
        "x_2 asks for u_d and finds word 1, x_1 asks for u_c and finds word 3, with a score of "
        "beta^4 against 0; V turns word 1 into u_b and word 3 into u_b - u_c. beta = 2 is enough."
    )
    return judge(measures, DRAWS * len(BETAS), finding)


def second_construction(generator: torch.Generator, setting: Setting) -> Verdict:
    worst, deviation = _pointing(generator, second=True)
    first, _ = _pointing(generator, second=False)
    figure = Figure(
        "Both constructions point at the same words; the second one's scores grow as beta^6, so it "
        "gets there with shorter vectors.",
        [
            Panel(
                "Two ways to point",
                "beta",
                "largest relative error",
                [Line(BETAS, first, "kqv-3"), Line(BETAS, worst, "kqv-4")],
                log_y=True,
            )
        ],
    )
    measures = [
        Measure(
            "largest deviation from the scores 2 beta^6, 0, 0 and 0, 0, beta^6",
            deviation,
            "<=",
            1e-12,
        ),
        Measure("relative error of c_1 and c_2, beta = 2", worst[2], "<=", 1e-12),
    ]
    finding = (
        "Every step holds: k_1 = 2 beta^2 u_a, k_2 = 0, k_3 = beta^2(u_a - u_c); q_1 = -beta^2 "
        "u_c, q_2 = beta^2(u_a + u_c); x_2 scores 2 beta^6, 0, 0 and x_1 scores 0, 0, beta^6."
    )
    return judge(measures, DRAWS * len(BETAS), finding, figure=figure)


def permuting(generator: torch.Generator, setting: Setting) -> Verdict:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    plain, positioned, masked = 0.0, 0, 0
    for length in (2, 5, 17):
        for _ in range(100):
            x, key, query, value, layer = draw(length, 8), *draw(4, 8, 8)
            order = torch.randperm(length, generator=generator)
            if bool((order == torch.arange(length)).all()):
                order = order.flip(0)

            def block(x: Tensor, causal: bool = False) -> Tensor:
                mixed = self_attention(x, key, query, value, causal)  # noqa: B023 - used at once
                return torch.relu(mixed @ layer)  # noqa: B023

            plain = max(plain, float((block(x[order]) - block(x)[order]).abs().max()))
            place = sinusoids(torch.arange(length), 8)
            moved = block(x[order] + place) - block(x + place)[order]
            positioned += bool(moved.abs().max() > 1e-6)
            triangle = block(x[order], causal=True) - block(x, causal=True)[order]
            masked += bool(triangle.abs().max() > 1e-6)
    nearest, apart = _nearest(2, 4096)
    wider, _ = _nearest(64, 4096)
    figure = Figure(
        "Distance between the embeddings of two positions against how far apart they are: never "
        "0, and with 32 pairs never small; a single pair comes close every 44 and every 710.",
        [
            Panel(
                f"width {width}",
                "positions apart",
                "distance",
                [Line(list(range(1, 801)), _distances(width, 800).tolist())],
                log_y=True,
            )
            for width in (2, 64)
        ],
    )
    half = sinusoids(torch.arange(1420), 2).to(torch.float16)
    equal = float((half[:710] == half[710:]).all(-1).double().mean())
    measures = [
        Measure("no positions: largest |f(PX) - P f(X)|", plain, "<=", 1e-12),
        Measure("sinusoids: share of draws where the two differ", positioned / 300, ">=", 0.99),
        Measure("causal mask alone: the same share", masked / 300, ">=", 0.95),
        Measure("width 2: least distance of two of 4,096 positions", nearest, ">=", 1e-5),
        Measure("width 2: how far apart these are", apart, "~", 710, 0),
        Measure("width 64: least distance", wider, ">=", 0.5),
        Measure("width 2 in float16: share of equal pairs t, t + 710", equal, ">=", 0.5),
    ]
    finding = (
        "Equivariant, not invariant: the outputs move with the words, so order is invisible. "
        "Sinusoids break that (so does the causal mask by itself). No two positions coincide, "
        "since that needs a whole number of radians to be a whole number of turns; but with one "
        "pair, 0 and 710 are 6e-5 apart, and in half precision most such pairs are equal."
    )
    return judge(measures, 300, finding, figure=figure)


def _distances(width: int, count: int) -> Tensor:
    """|p_0 - p_t| for t = 1 ... count; the distance depends on the difference of positions only."""
    places = sinusoids(torch.arange(count + 1), width)
    distances: Tensor = (places[1:] - places[0]).norm(dim=-1)
    return distances


def _nearest(width: int, count: int) -> tuple[float, float]:
    distance, index = _distances(width, count - 1).min(0)
    return float(distance), float(index + 1)


def rotating(generator: torch.Generator, setting: Setting) -> Verdict:
    same, shift, length, still = 0.0, 0.0, 0.0, 0.0
    for width in (2, 8, 64):
        q = torch.randn(400, 1, width, generator=generator, dtype=torch.float64)
        k = torch.randn(400, 1, width, generator=generator, dtype=torch.float64)
        t, s, by = (int(torch.randint(0, 500, (1,), generator=generator)) for _ in range(3))
        here, there = torch.tensor([t]), torch.tensor([s])
        same = max(same, float((rotate(q, here) - rotate_complex(q, here)).abs().max()))
        score = (rotate(q, here) * rotate(k, there)).sum(-1)
        moved = (rotate(q, here + by) * rotate(k, there + by)).sum(-1)
        shift = max(shift, float((score - moved).abs().max()))
        length = max(length, float((rotate(q, here).norm(dim=-1) - q.norm(dim=-1)).abs().max()))
        still = max(still, float((rotate(q, torch.tensor([0])) - q).abs().max()))
    measures = [
        Measure("largest |rotation - complex product|", same, "<=", 1e-12),
        Measure("largest change of a score when both positions move", shift, "<=", 1e-10),
        Measure("largest change of a length", length, "<=", 1e-12),
        Measure("change at position 0", still, "<=", 0.0),
    ]
    finding = (
        "(x_1 + i x_2)e^{i t theta} is the rotation, and <R_t q, R_s k> = <q, R_{s-t} k>: moving "
        "both words moves no score."
    )
    return judge(measures, 1200, finding)


CLAIMS = [
    Claim(
        "kqv-1",
        GROUP,
        "x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b with orthogonal u of norm beta and K = Q = V "
        "= I: c_2 ~ u_a.",
        SOURCE,
        copying_itself,
    ),
    Claim(
        "kqv-2",
        GROUP,
        "Adding u_d (or u_c) to x_2 cannot make c_2 ~ u_b; it gives u_a + u_d (u_a + u_c).",
        SOURCE,
        adding_does_not_help,
    ),
    Claim(
        "kqv-3",
        GROUP,
        "V = (u_b u_b^T - u_c u_c^T)/beta^2, K = I, Q = u_d u_a^T + u_c u_d^T give c_2 ~ u_b and "
        "c_1 ~ u_b - u_c.",
        SOURCE,
        first_construction,
    ),
    Claim(
        "kqv-4",
        GROUP,
        "The same V with K = u_a u_b^T + u_a u_d^T - u_c u_c^T, Q = u_a u_a^T - u_c u_b^T + u_c "
        "u_a^T does it too, with scores 2 beta^6, 0 and beta^6, 0.",
        "another written answer",
        second_construction,
    ),
    Claim(
        "perm-1",
        GROUP,
        "Self-attention without positions is equivariant, f(PX) = P f(X); sinusoids break that; "
        "no two positions have the same sinusoid.",
        "later years' questions",
        permuting,
    ),
    Claim(
        "rope-1",
        GROUP,
        "Rotary positions multiply complex pairs; scores depend on the difference of positions "
        "only.",
        "later years' questions",
        rotating,
    ),
]
