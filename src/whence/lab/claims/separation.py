"""Claim know-6: what one layer of queries and keys can do and one layer of a synthesizer cannot."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whence.attention import MECHANISMS
from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.svg import Figure, Line, Panel

PAIRS, SYMBOLS = 8, 8


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight (name, value) pairs in random order, then a name: the answer is that name's value.

    Returns (count, 9, 16) one-hot names beside one-hot values, and the answers (count,).
    """
    names = torch.rand(count, PAIRS, generator=generator).argsort(1)
    values = torch.randint(0, SYMBOLS, (count, PAIRS), generator=generator)
    asked = torch.randint(0, PAIRS, (count,), generator=generator)
    rows = torch.arange(count)
    x = torch.zeros(count, PAIRS + 1, PAIRS + SYMBOLS)
    x[rows[:, None], torch.arange(PAIRS), names] = 1
    x[rows[:, None], torch.arange(PAIRS), PAIRS + values] = 1
    x[rows, PAIRS, names[rows, asked]] = 1
    return x, values[rows, asked]


def best_without_looking(generator: torch.Generator) -> float:
    """The best accuracy for whoever cannot see which place holds the name: the commonest value."""
    values = torch.randint(0, SYMBOLS, (20_000, PAIRS), generator=generator)
    counts = nn.functional.one_hot(values, SYMBOLS).sum(1)
    return float(counts.max(1).values.double().mean() / PAIRS)


def learn(name: str, seed: int, steps: int) -> list[float]:
    """Accuracy on fresh sentences while one layer of attention learns the task."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = nn.Linear(PAIRS + SYMBOLS, 32)
        place = nn.Parameter(0.1 * torch.randn(PAIRS + 1, 32))
        layer = MECHANISMS[name](32, 2, PAIRS + 1)
        head = nn.Linear(32, SYMBOLS)
    parameters = [*start.parameters(), place, *layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)

    def answer(x: Tensor) -> Tensor:
        result: Tensor = head(layer(start(x) + place)[:, -1])
        return result

    curve = []
    for step in range(steps):
        x, wanted = sentences(256, generator)
        loss = nn.functional.cross_entropy(answer(x), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) % (steps // 10) == 0:
            with torch.no_grad():
                x, wanted = sentences(2000, generator)
                curve.append(float((answer(x).argmax(1) == wanted).double().mean()))
    return curve


def one_layer(generator: torch.Generator, setting: Setting) -> Verdict:
    steps = 800
    bound = best_without_looking(generator)
    curves = {name: learn(name, setting.seed, steps) for name in ("softmax", "synthesizer")}
    axis = [steps * (number + 1) // 10 for number in range(10)]
    figure = Figure(
        "One layer learns to look a name up among eight pairs. Dashed: the best that can be done "
        "without knowing where the name stands.",
        [
            Panel(
                "Looking a name up",
                "step",
                "accuracy",
                [
                    Line(axis, curves["softmax"], "queries and keys"),
                    Line(axis, curves["synthesizer"], "synthesizer"),
                    Line(axis, [bound] * 10, dashed=True),
                ],
            )
        ],
    )
    measures = [
        Measure("accuracy, queries and keys", curves["softmax"][-1], ">=", 0.95),
        Measure("accuracy, synthesizer", curves["synthesizer"][-1], "<=", bound + 0.04),
        Measure("best possible without seeing where the name stands", bound),
    ]
    finding = (
        "The synthesizer's pattern at the asking position is a function of the name asked for, "
        "and the order of the pairs is random: whatever it learns, it cannot do better than name "
        "the commonest value. Queries and keys find the pair."
    )
    return judge(measures, 2000, finding, figure=figure)


CLAIMS = [
    Claim(
        "know-6",
        "Pretraining and knowledge",
        "One synthesizer layer cannot do what one key-query-value layer does: its pattern for "
        "position i looks at x_i alone.",
        "the written answers, pretraining and knowledge",
        one_layer,
        "timed",
    ),
]
