"""BigBird (arXiv:2007.14062): what its three kinds of edges give, and how far memory reaches."""

from __future__ import annotations

import math
from typing import Any

from papers.memory import peak
from papers.results import Experiment, Result, doublings, headroom, late, markdown
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
    # With learned positions even full attention finds its neighbours late: 400 steps then rank
    # the graphs by how local they are (2.20 nats full, 1.65 window alone).
    plan = [(graph, settings["steps"], seed) for graph in GRAPHS for seed in settings["seeds"]]
    plan += [(graph, settings["longer"], settings["seeds"][0]) for graph in ("W", "full")]
    trainings = [
        Training(*GRAPHS[graph], seed=seed, steps=steps, positions="rope")
        for graph, steps, seed in plan
    ]
    rows: dict[str, Result] = {graph: {"graph": graph, "runs": []} for graph in GRAPHS}
    for (graph, steps, _), result in zip(plan, train_all(trainings, jobs), strict=True):
        if steps == settings["longer"]:
            rows[graph]["longer"] = result
        else:
            rows[graph]["runs"].append(result)
    return {"rows": list(rows.values()), "steps": settings["steps"], "longer": settings["longer"]}


def ablation_table(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        (loss, spread), (right, _) = summary(row["runs"]), summary(row["runs"], "accuracy")
        graph, several = row["graph"], len(row["runs"]) > 1
        found = f"{loss:.3f} ± {spread:.3f}" if several else f"{loss:.3f}"
        late = row.get("longer")
        after = f"{late['loss']:.3f}, {late['accuracy']:.1f} %" if late else "-"
        paper = f"{PAPER[graph]} %" if PAPER[graph] else "-"
        lines.append([graph, SEEN[graph], found, f"{right:.1f} %", after, paper])
    head = ["graph", "blocks of 8 seen", f"held-out loss, {result['steps']} steps", "right"]
    head += [f"after {result['longer']} steps", "paper (masked LM, 512 tokens)"]
    return markdown(head, lines)


def ablation_figure(result: Result) -> Figure:
    lines = [late(row["runs"][0]["curve"], row["graph"], 100) for row in result["rows"]]
    panel = Panel("training loss, first seed", "step", "nats a character", lines)
    return Figure("Training loss with parts of BigBird's graph", [panel])


# The longest sequence ---------------------------------------------------------------------------

RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax, weights written out": ("written-out", {}),
    "softmax, torch's kernel": ("kernel", {}),
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
        while low < settings["stop"] and high - low > high // 8:
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
    marks = []
    for row in result["rows"]:
        lengths, mebibytes = zip(*row["points"], strict=True)
        marks.append(Line(doublings(lengths), mebibytes, row["name"]))
    dots = [Dots(mark.x, mark.y) for mark in marks]
    panel = Panel(
        "peak memory, forward + backward",
        "log2 T",
        "MiB",
        [*marks, headroom(marks), *dots],
        log_y=True,
    )
    return Figure("Peak memory of one layer, forward and backward, against the length", [panel])


EXPERIMENTS = [
    Experiment(
        "bigbird-ablation",
        "random, window and global edges on next-character prediction",
        {"seeds": [0], "steps": 800, "longer": 2400, "positions": "rope"},
        measure_ablation,
        ablation_table,
        ablation_figure,
    ),
    Experiment(
        "bigbird-longest",
        "the longest sequence in a fixed memory",
        {"rivals": list(RIVALS), "budget": 128, "stop": 16384},
        measure_longest,
        longest_table,
        longest_figure,
    ),
]
