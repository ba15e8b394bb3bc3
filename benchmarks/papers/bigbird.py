"""BigBird (arXiv:2007.14062): what its three kinds of edges give, and how far memory reaches."""

from __future__ import annotations

import math
from typing import Any

from papers.memory import peak
from papers.results import Experiment, Result, markdown
from papers.synthesizer import smooth
from papers.training import Training, summary, train_all
from whence.lab.svg import Dots, Figure, Line, Panel

BLOCK = 8
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "R": ("bigbird", {"block": BLOCK, "window": 1, "random": 2, "leading": 0}),
    "W": ("bigbird", {"block": BLOCK, "window": 3, "random": 0, "leading": 0}),
    "R+W": ("bigbird", {"block": BLOCK, "window": 3, "random": 2, "leading": 0}),
    "R+W+G": ("bigbird", {"block": BLOCK, "window": 3, "random": 2, "leading": 2}),
    "full": ("softmax", {}),
}
SEEN = {"R": "own + 2 random", "W": "own + 2 left", "R+W": "own + 2 left + 2 random"}
SEEN |= {"R+W+G": "own + 2 left + 2 random + first 2", "full": "all"}
PAPER = {"R": 60.1, "W": 58.3, "R+W": 62.7, "R+W+G": None, "full": 64.2}


def measure_ablation(settings: Result, jobs: int) -> Result:
    trainings = [
        # With learned positions even full attention finds its neighbours late: 400 steps then
        # rank the graphs by how local they are (2.20 nats full, 1.65 window alone).
        Training(*GRAPHS[graph], seed=seed, steps=settings["steps"], positions="rope")
        for graph in settings["graphs"]
        for seed in settings["seeds"]
    ]
    results, each = train_all(trainings, jobs), len(settings["seeds"])
    return {
        "rows": [
            {"graph": graph, "runs": results[number * each : (number + 1) * each]}
            for number, graph in enumerate(settings["graphs"])
        ]
    }


def ablation_table(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        loss, spread = summary(row["runs"])
        right, around = summary(row["runs"], "accuracy")
        graph = row["graph"]
        cells = [graph, SEEN[graph], f"{loss:.3f} ± {spread:.3f}", f"{right:.1f} ± {around:.1f} %"]
        lines.append([*cells, f"{PAPER[graph]} %" if PAPER[graph] else "-"])
    head = ["graph", "blocks of 8 seen", "held-out loss, nats a character", "right"]
    return markdown([*head, "paper (masked LM, 512 tokens)"], lines)


def ablation_figure(result: Result) -> Figure:
    lines = []
    for row in result["rows"]:
        curve = smooth(row["runs"][0]["curve"])
        lines.append(Line(list(range(1, len(curve) + 1)), curve, row["graph"]))
    panel = Panel("training loss, first seed", "step", "nats a character", lines)
    return Figure("Training loss with parts of BigBird's graph", [panel])


# The longest sequence ---------------------------------------------------------------------------

RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax, weights written out": ("written-out", {}),
    "softmax, torch's kernel": ("softmax", {}),
    "bigbird": ("bigbird", {"block": 64, "window": 3, "random": 3, "leading": 2}),
}


def measure_longest(settings: Result, jobs: int) -> Result:
    """Double the length until the budget breaks, then halve the gap."""
    rows = []
    for name in settings["rivals"]:
        mechanism, options = RIVALS[name]
        tried: dict[int, float] = {}

        def fits(T: int, m: str = mechanism, o: dict[str, Any] = options, t: Any = tried) -> bool:
            t[T] = peak(m, o, T=T, width=256, heads=4, causal=False, backward=True)
            return bool(t[T] <= settings["budget"])

        low = 512
        while low < settings["stop"] and fits(2 * low):
            low *= 2
        high = 2 * low
        while low < settings["stop"] and high - low > high // 16:
            middle = (low + high) // 2 // 64 * 64
            low, high = (middle, high) if fits(middle) else (low, middle)
        points = [[T, mib] for T, mib in sorted(tried.items()) if math.isfinite(mib)]
        rows.append({"name": name, "longest": low, "points": points})
    return {"rows": rows, "budget": settings["budget"], "stop": settings["stop"]}


def longest_table(result: Result) -> str:
    first = result["rows"][0]["longest"]
    lines = []
    for row in result["rows"]:
        more = ">= " if row["longest"] >= result["stop"] else ""
        share = f"{more}{row['longest'] / first:.1f}x"
        lines.append([row["name"], f"{more}{row['longest']:,}", share])
    head = ["layer", f"longest T in {result['budget']} MiB", "against the first row"]
    return markdown(head, lines)


def longest_figure(result: Result) -> Figure:
    marks: list[Any] = []
    for row in result["rows"]:
        lengths, mebibytes = zip(*row["points"], strict=True)
        marks.append(Line(lengths, mebibytes, row["name"]))
    marks += [Dots(mark.x, mark.y) for mark in marks]
    panel = Panel("peak memory, forward + backward", "T", "MiB", marks, log_x=True, log_y=True)
    return Figure("Peak memory of one layer, forward and backward, against the length", [panel])


EXPERIMENTS = [
    Experiment(
        "bigbird-ablation",
        "random, window and global edges on next-character prediction",
        {"graphs": list(GRAPHS), "seeds": [0, 1], "steps": 800, "positions": "rope"},
        measure_ablation,
        ablation_table,
        ablation_figure,
    ),
    Experiment(
        "bigbird-longest",
        "the longest sequence in a fixed memory",
        {"rivals": list(RIVALS), "budget": 256, "stop": 32768},
        measure_longest,
        longest_table,
        longest_figure,
    ),
]
