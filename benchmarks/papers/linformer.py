"""Linformer (arXiv:2006.04768): speed, memory, and whether attention is of low rank."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from papers import size
from papers.memory import Kernel, WrittenOut, peak
from papers.results import Experiment, Result, doublings, headroom, markdown, remembered
from papers.timing import medians
from papers.training import Training, fit, text
from whence.attention import Linformer
from whence.lab.svg import Figure, Line, Panel
from whence.model import GPT

PAPER_SPEED = {512: 1.5, 1024: 1.7, 2048: 2.6, 4096: 3.4, 8192: 5.5}
PAPER_MEMORY = {512: 1.7, 1024: 3.0, 2048: 6.1, 4096: 14, 8192: 28}
NAMES = {"written-out": "softmax, weights written out", "kernel": "softmax, torch's kernel"}


# Speed and memory -------------------------------------------------------------------------------


def measure_speed(settings: Result, jobs: int) -> Result:
    rows, width = [], settings["width"]
    for T in settings["lengths"]:
        torch.manual_seed(0)
        x = torch.randn(max(settings["lengths"]) // T, T, width)
        layers = {
            "written-out": WrittenOut(width, settings["heads"], T, False),
            "kernel": Kernel(width, settings["heads"], T, False),
            "linformer": Linformer(
                width, settings["heads"], T, False, projected=settings["projected"]
            ),
        }
        work: dict[str, Callable[[], object]] = {
            name: functools.partial(layer.eval(), x) for name, layer in layers.items()
        }
        rows.append({"T": T, **medians(work, settings["rounds"])})
    return {"rows": rows}


def measure_memory(settings: Result, jobs: int) -> Result:
    rows = []
    for T in settings["lengths"]:
        row: Result = {"T": T}
        for name in ("written-out", "kernel", "linformer"):
            options = {"projected": settings["projected"]} if name == "linformer" else {}
            sizes = {"T": T, "width": settings["width"], "heads": settings["heads"]}
            row[name] = peak(name, options, **sizes, causal=False, backward=False)
        rows.append(row)
    return {"rows": rows}


def against(unit: str, paper: dict[int, float]) -> Callable[[Result], str]:
    def table(result: Result) -> str:
        lines = []
        for row in result["rows"]:
            own = row["linformer"]
            lines.append(
                [
                    row["T"],
                    *(f"{row[name]:.1f}" for name in ("written-out", "kernel", "linformer")),
                    *(f"{row[name] / own:.1f}x" for name in ("written-out", "kernel")),
                    f"{paper[row['T']]}x",
                ]
            )
        head = ["T", *(f"{name}, {unit}" for name in (*NAMES.values(), "linformer"))]
        return markdown([*head, "less than written out", "less than torch's", "paper"], lines)

    return table


def against_figure(title: str, paper: dict[int, float]) -> Callable[[Result], Figure]:
    def figure(result: Result) -> Figure:
        rows = result["rows"]
        lengths = [row["T"] for row in rows]
        marks = [
            Line(doublings(lengths), [row[name] / row["linformer"] for row in rows], label)
            for name, label in NAMES.items()
        ]
        marks.append(Line(doublings(lengths), [paper[T] for T in lengths], "paper", dashed=True))
        panel = Panel(title, "log2 T", "times", [*marks, headroom(marks)], log_y=True)
        return Figure(f"{title}: softmax divided by Linformer with m = 128", [panel])

    return figure


# The spectrum of trained attention --------------------------------------------------------------


def look(training: Training) -> Result:
    """What a model has learned to do, and how well it learned."""
    model, result = fit(training)
    return {**spectrum(model, training), "loss": result["loss"], "accuracy": result["accuracy"]}


@torch.no_grad()
def spectrum(model: GPT, training: Training) -> Result:
    """Singular values of the trained patterns, and how well random projections replace them."""
    _, _, source = text()
    T = training.context
    x = model.embed(torch.stack([source[n * T : (n + 1) * T] for n in range(4)]))
    energies, patterns, values = [], [], []
    for block in model.layers():
        inner = block.norm1(x)
        pattern = block.attention.pattern(inner).double()
        shares = torch.linalg.svdvals(pattern)
        energies.append((shares.cumsum(-1) / shares.sum(-1, keepdim=True)).mean((0, 1)))
        patterns.append(pattern)
        values.append(block.attention.values(inner).double())
        x = block(x)
    ranks = [m for m in (1, 2, 4, 8, 16, 32, 64, 128, 256) if m <= T]
    pattern, value = torch.stack(patterns), torch.stack(values)
    return {
        "ranks": ranks,
        "energy": [[round(float(layer[m - 1]), 4) for m in ranks] for layer in energies],
        "errors": {
            "random projection": [replaced(pattern, value, m) for m in ranks],
            "best of rank m": [truncated(pattern, value, m) for m in ranks],
        },
    }


def replaced(pattern: Tensor, value: Tensor, m: int) -> float:
    """The relative error of P R^T R V, R random with m rows: the paper's first theorem."""
    T = pattern.shape[-1]
    generator = torch.Generator().manual_seed(m)
    turn = torch.randn(m, T, generator=generator, dtype=torch.float64) / m**0.5
    return relative((pattern @ turn.mT) @ (turn @ value), pattern @ value)


def truncated(pattern: Tensor, value: Tensor, m: int) -> float:
    left, middle, right = torch.linalg.svd(pattern)
    cut = (left[..., :m] * middle[..., None, :m]) @ right[..., :m, :]
    return relative(cut @ value, pattern @ value)


def relative(found: Tensor, right: Tensor) -> float:
    return round(float((found - right).norm() / right.norm()), 5)


MODES = {"causal": False, "both sides": True}


def measure_spectrum(settings: Result, jobs: int) -> Result:
    found = {}
    for name, masked in MODES.items():
        training = Training(
            "rope", seed=0, masked=masked, steps=settings["steps"], positions="auto"
        )
        asked = {"masked": masked, "steps": settings["steps"], "attention": "rope"}
        make = functools.partial(look, training)
        found[name] = remembered("linformer-look", asked, make, fresh=False)["result"]
    return found


def spectrum_table(result: Result) -> str:
    ranks = result["causal"]["ranks"]
    lines = []
    for name in MODES:
        for number, layer in enumerate(result[name]["energy"], 1):
            lines.append(
                [
                    f"{name}, layer {number}: share of the singular values",
                    *map("{:.2f}".format, layer),
                ]
            )
        for kind, errors in result[name]["errors"].items():
            lines.append([f"{name}: relative error, {kind}", *map("{:.2f}".format, errors)])
    return markdown(["m", *map(str, ranks)], lines)


def spectrum_figure(result: Result) -> Figure:
    ranks = doublings(result["causal"]["ranks"])
    energies = [
        Line(ranks, layer, f"{name}, layer {number}")
        for name in MODES
        for number, layer in enumerate(result[name]["energy"], 1)
    ]
    errors = [
        Line(ranks, values, f"{name}, {kind}")
        for name in MODES
        for kind, values in result[name]["errors"].items()
    ]
    return Figure(
        "Trained softmax attention of length 256: share of the singular values in the first m, "
        "and the error of replacing the pattern by one of rank m",
        [
            Panel(
                "cumulative singular values",
                "log2 m",
                "share",
                [*energies, headroom(energies, 1.5)],
            ),
            Panel(
                "error of the output",
                "log2 m",
                "relative",
                [*errors, headroom(errors, 30.0)],
                log_y=True,
                floor=1e-3,
            ),
        ],
    )


SIZES: Result = {"lengths": list(PAPER_SPEED), "projected": 128, "width": 256, "heads": 4}

EXPERIMENTS = [
    Experiment(
        "linformer-speed",
        "inference time of one layer over both sides, m = 128",
        {**SIZES, "rounds": 7},
        measure_speed,
        against("ms", PAPER_SPEED),
        against_figure("speed-up", PAPER_SPEED),
    ),
    Experiment(
        "linformer-memory",
        "peak memory of the same layer",
        SIZES,
        measure_memory,
        against("MiB", PAPER_MEMORY),
        against_figure("memory saved", PAPER_MEMORY),
    ),
    Experiment(
        "linformer-spectrum",
        "the spectrum of trained attention",
        {"steps": 400, "attention": "rope"},
        measure_spectrum,
        spectrum_table,
        spectrum_figure,
    ),
    Experiment(
        "linformer-loss",
        "loss against the number of slots",
        {"projected": [4, 16, 64], "seeds": [0], "steps": 400},
        functools.partial(size.measure, "linformer", "projected"),
        functools.partial(size.table, "projected", "slots m (causal)"),
        functools.partial(size.figure, "projected", "linformer, causal", "slots"),
    ),
]
