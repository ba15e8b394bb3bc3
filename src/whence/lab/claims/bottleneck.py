"""Claim know-7: what the course's perceiver answers, and how its time grows with the length."""

from __future__ import annotations

import torch

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.claims.knowledge import GROUP, SOURCE, known, percent
from whence.lab.claims.runs import answers
from whence.lab.claims.scaling import least_seconds, slope
from whence.lab.svg import Figure, Line, Panel

LENGTHS = [1024, 2048, 4096, 8192]
LAYERS, LATENTS = 4, 32


def seconds(bottleneck: int, seed: int) -> list[float]:
    """Forward times of a narrow model, whose attention is not hidden by its matrices."""
    from whence.config import ModelConfig
    from whence.model import GPT

    config = ModelConfig(
        layers=LAYERS, heads=2, width=32, context=LENGTHS[-1], dropout=0.0, bottleneck=bottleneck
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(config, 32).eval()
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randint(2, 32, (4, length), generator=generator) for length in LENGTHS]
    return least_seconds(model.hidden, batches)


def exponents(seed: int) -> tuple[list[Measure], Figure]:
    plain, narrow = seconds(0, seed), seconds(LATENTS, seed)
    figure = Figure(
        f"Forward time of {LAYERS} layers of width 32 on one thread: plain, and with a "
        f"bottleneck of {LATENTS} latents.",
        [
            Panel(
                "The course's perceiver",
                "l",
                "seconds",
                [Line(LENGTHS, plain, "plain"), Line(LENGTHS, narrow, "perceiver")],
                log_x=True,
                log_y=True,
                floor=1e-6,
            )
        ],
    )
    measures = [
        Measure(
            "perceiver: exponent of time in l, 2,048 to 8,192",
            slope(LENGTHS[1:], narrow[1:]),
            "<=",
            1.35,
        ),
        Measure("plain: exponent of time in l", slope(LENGTHS[1:], plain[1:]), ">=", 1.5),
        Measure("plain / perceiver, time at l = 8,192", plain[-1] / narrow[-1], ">=", 2.0),
    ]
    return measures, figure


def perceiver(generator: torch.Generator, setting: Setting) -> Verdict:
    records = answers("perceiver", setting)
    found, figure = exponents(setting.seed)
    measures = [
        Measure(
            "perceiver, per cent of the people in the text", percent(known(records)), ">=", 5.0
        ),
        *found,
    ]
    finding = (
        "The bottleneck of the course answers above the bar. Its attention costs l m twice and "
        "m^2 in between: linear in l where the plain model's is quadratic; the projections, "
        "linear for both, hide that at short lengths."
    )
    return judge(measures, len(records), finding, figure=figure)


CLAIMS = [
    Claim(
        "know-7",
        GROUP,
        "The perceiver reaches 5 %; its time is O(l m + (L-2) m^2) against O(L l^2).",
        SOURCE,
        perceiver,
        "expensive",
    ),
]
