"""Claims lin-1 and big-3: about attention that was trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.claims.knowledge import difference, known, percent
from whence.lab.claims.runs import answers, corpus, trained
from whence.lab.svg import Figure, Line, Panel

GROUP = "Efficient attention"
ENERGY = 0.9


def patterns(system: str, setting: Setting, length: int, texts: int) -> Tensor:
    """Weights (matrices, length, length) of all layers and heads over documents of that length."""
    run = trained(system, setting)
    model, vocab = run.model(), run.vocab()
    joined = " ".join(document.text for document in corpus(setting).documents())
    ids = vocab.encode(joined[: texts * length])
    tokens = torch.tensor(ids).view(texts, length)
    found = []
    with torch.inference_mode():
        x = model.embed(tokens)
        for block in model.layers():
            found.append(block.attention.pattern(block.norm1(x)).flatten(0, 1))
            x = block(x)
    return torch.cat(found).double()


def energy_rank(matrices: Tensor) -> Tensor:
    """How many singular values hold 90 % of the energy (the sum of squares), for each matrix."""
    squares = torch.linalg.svdvals(matrices).square()
    share = squares.cumsum(-1) / squares.sum(-1, keepdim=True)
    ranks: Tensor = (share < ENERGY).sum(-1) + 1
    return ranks


def low_rank(generator: torch.Generator, setting: Setting) -> Verdict:
    lengths = [16, 32, 64, 128]
    medians, most, spectra = [], [], []
    for length in lengths:
        found = patterns("softmax", setting, length, texts=24)
        ranks = energy_rank(found).double()
        medians.append(float(ranks.median()))
        most.append(float(ranks.quantile(0.9)))
        if length == lengths[-1]:
            values = torch.linalg.svdvals(found)
            spectra = (values / values[:, :1]).mean(0).tolist()
            samples = len(ranks)
    triangle = torch.softmax(
        torch.randn(64, 128, 128, generator=generator, dtype=torch.float64).masked_fill(
            torch.ones(128, 128, dtype=torch.bool).triu(1), float("-inf")
        ),
        -1,
    )
    untrained = float(energy_rank(triangle).double().median())
    figure = Figure(
        "Left: singular values of the trained weights at T = 128, mean over heads and texts, the "
        "largest set to one. Right: how many of them hold 90 % of the energy, against T.",
        [
            Panel(
                "Spectrum",
                "number",
                "singular value",
                [Line(list(range(1, 129)), spectra)],
                log_y=True,
                floor=1e-6,
            ),
            Panel(
                "Rank for 90 % of the energy",
                "T",
                "rank",
                [
                    Line(lengths, medians, "median"),
                    Line(lengths, most, "nine of ten"),
                    Line(lengths, [float(length) for length in lengths], "T", dashed=True),
                ],
            ),
        ],
    )
    measures = [
        Measure("median rank for 90 % of the energy, T = 128", medians[-1], "<=", 32.0),
        Measure("nine of ten heads are below, T = 128", most[-1]),
        Measure("median rank / T at T = 16", medians[0] / 16),
        Measure("median rank / T at T = 128", medians[-1] / 128, "<=", medians[0] / 16),
        Measure("random scores, not trained: median rank at T = 128", untrained),
    ]
    finding = (
        "The energy of the trained weights sits in a part of the spectrum, and the part shrinks "
        "as T grows. Some of that is the causal softmax itself: random scores give a low rank too. "
        "It is not as small as the theorem's log T: a causal head that looks at the character "
        "before is a shifted identity, and that has full rank."
    )
    return judge(measures, samples, finding, figure=figure)


def ingredients(generator: torch.Generator, setting: Setting) -> Verdict:
    systems = ["full", "window", "random", "window-random", "all-three"]
    seeds = [setting.seed, setting.seed + 1]
    found = {
        system: [
            record
            for seed in seeds
            for record in known(answers(system, replace(setting, seed=seed)))
        ]
        for system in systems
    }
    measures = [
        Measure(f"{system}, per cent of the people in the text", percent(found[system]))
        for system in systems
    ]
    helped: list[str] = []
    idle: list[str] = []
    for part, more, less in (
        ("the window", "window-random", "random"),
        ("random blocks", "window-random", "window"),
        ("the global block", "all-three", "window-random"),
    ):
        gain = percent(found[more]) - percent(found[less])
        _, chance = difference(found[more], found[less])
        measures += [
            Measure(f"what {part} added, points", gain, ">=", 0.0),
            Measure(f"chance of that between equals, at most, {part}", chance),
        ]
        (helped if gain > 0 and chance <= 0.05 else idle).append(part)
    lost = percent(found["all-three"]) - percent(found["full"])
    _, chance = difference(found["all-three"], found["full"])
    measures += [
        Measure("all three against full attention, points", lost, ">=", -5.0),
        Measure("chance of that between equals, at most, all three and full", chance),
    ]
    finding = (
        f"Two layers, blocks of 8, texts of up to 128 characters, rotary positions, seeds "
        f"{seeds[0]} and {seeds[1]}. Helped beyond chance: {', '.join(helped) or 'nothing'}; "
        f"did not: {', '.join(idle) or 'nothing'}. The name stands at the start of a text and of a "
        "question, so what matters is whether the answer's position can reach it: through the "
        "global block directly, through window and random blocks by luck or by several layers; "
        "full attention always does."
    )
    return judge(measures, len(found["full"]), finding)


CLAIMS = [
    Claim(
        "lin-1",
        GROUP,
        "Trained attention matrices are close to low rank: 90 % of the energy in few singular "
        "values.",
        "the reading questions; Wang et al. 2020, arXiv:2006.04768",
        low_rank,
        "expensive",
    ),
    Claim(
        "big-3",
        GROUP,
        "BigBird is as good as full attention on the task, and each of its three ingredients "
        "helps.",
        "the reading questions; Zaheer et al. 2020, arXiv:2007.14062",
        ingredients,
        "expensive",
    ),
]
