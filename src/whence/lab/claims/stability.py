"""Claim perf-2: what trigonometric features do to the division, and to training."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from whence.attention import Performer
from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.claims.features import GROUP, SOURCE, WIDTH, directions
from whence.lab.svg import Figure, Line, Panel


def denominators(generator: torch.Generator, kind: str, scale: float) -> tuple[float, float]:
    """Shares of rows: weights cancel to a tenth of their absolute sum; they sum to less than 0."""
    features, length, draws = 64, 64, 60
    vanishing, negative, rows = 0, 0, 0
    for _ in range(draws):
        q = scale * torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)
        k = scale * torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)
        w = directions(features, 1, "orthogonal", generator)[0]
        half = k.square().sum(-1) / 2  # a query's own factor cancels in the division
        if kind == "trig":
            cosines = torch.cos(q @ w.T) @ torch.cos(k @ w.T).T
            estimate = (cosines + torch.sin(q @ w.T) @ torch.sin(k @ w.T).T) * torch.exp(half)
        else:
            estimate = torch.exp(q @ w.T) @ torch.exp(k @ w.T - half[:, None]).T
        total = estimate.sum(-1)
        vanishing += int((total.abs() < 0.1 * estimate.abs().sum(-1)).sum())
        negative += int((total < 0).sum())
        rows += length
    return vanishing / rows, negative / rows


def train(kind: str, seed: int, rate: float, steps: int) -> list[float]:
    """Losses of a small model that learns to repeat what followed a symbol's last occurrence."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the modules draw their start from the current generator
        layer = Performer(32, 2, 32, kind=kind, features=16, seed=seed)
        second = Performer(32, 2, 32, kind=kind, features=16, seed=seed + 1)
        embed = torch.nn.Embedding(16, 32)
        place = torch.nn.Parameter(0.1 * torch.randn(32, 32))
        head = torch.nn.Linear(32, 16)
    parameters = [*layer.parameters(), *second.parameters(), *embed.parameters(), place]
    optimizer = torch.optim.Adam([*parameters, *head.parameters()], lr=rate)
    losses: list[float] = []
    for _ in range(steps):
        half = torch.randint(0, 16, (8, 16), generator=generator)
        tokens = torch.cat([half, half], 1)
        x = embed(tokens) + place
        x = x + layer(x)
        x = x + second(x)
        logits = head(x[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses


def trigonometric(generator: torch.Generator, setting: Setting) -> Verdict:
    scales = [0.25, 0.5, 0.75, 1.0, 1.25]
    bad = {
        kind: [denominators(generator, kind, s) for s in scales] for kind in ("trig", "positive")
    }
    runs = {
        kind: [train(kind, setting.seed + number, 3e-3, 200) for number in range(2)]
        for kind in ("trig", "positive")
    }
    spikes = {kind: sum(_spikes(losses) for losses in runs[kind]) for kind in runs}
    ended = sum(not math.isfinite(losses[-1]) for losses in runs["trig"])
    worst = {kind: max(max(losses[20:]) for losses in runs[kind]) for kind in runs}
    figure = Figure(
        "Left: share of rows whose weights cancel to a tenth of their absolute sum or less, "
        "against the size of queries and keys. Right: the loss of the same small model with both "
        "kinds of features.",
        [
            Panel(
                "Vanishing denominators",
                "size of q and k",
                "share of rows",
                [Line(scales, [one for one, _ in bad[kind]], kind) for kind in bad],
            ),
            Panel(
                "Training",
                "step",
                "loss",
                [
                    Line(list(range(0, len(one), 4)), one[::4], kind if not number else "")
                    for kind in ("trig", "positive")
                    for number, one in enumerate(runs[kind][:1])
                ],
                log_y=True,
            ),
        ],
    )
    measures = [
        Measure(
            "size 1: rows whose weights cancel to a tenth, trigonometric",
            bad["trig"][3][0],
            ">=",
            0.03,
        ),
        Measure("size 1: rows with a negative sum, trigonometric", bad["trig"][3][1], ">=", 0.05),
        Measure("size 1: rows with a negative sum, positive", bad["positive"][3][1], "<=", 0.0),
        Measure(
            "largest loss after step 20, trigonometric", worst["trig"], ">=", 2 * worst["positive"]
        ),
        Measure("largest loss after step 20, positive", worst["positive"], "<=", 4.0),
        Measure("steps at which the loss doubled, trigonometric", spikes["trig"], ">=", 3.0),
        Measure("steps at which the loss doubled, positive", spikes["positive"], "<=", 0.0),
        Measure("trigonometric runs that ended in NaN, of 2", ended),
    ]
    finding = (
        "Trigonometric features divide by sums that cancel or change sign as soon as queries and "
        "keys are not small, and in training the loss jumps whenever that happens; positive "
        "features on the same task, start and rate do not jump once. NaN itself takes an "
        "implementation that lets the exponentials overflow: ours keeps logarithms, and shows the "
        "jumps alone."
    )
    return judge(measures, 60 * 64 * 10 + 800, finding, figure=figure)


def _spikes(losses: list[float]) -> int:
    return sum(
        not math.isfinite(after) or after > 2 * before for before, after in pairwise(losses[20:])
    )


CLAIMS = [
    Claim(
        "perf-2",
        GROUP,
        "Trigonometric features are unstable: negative and vanishing denominators, up to NaN in "
        "training.",
        SOURCE,
        trigonometric,
        "timed",
    ),
]
