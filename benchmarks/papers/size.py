"""Held-out loss against the size of a mechanism's bottleneck, beside softmax."""

from __future__ import annotations

from papers.results import Result, doublings, headroom, markdown
from papers.training import Training, summary, train_all
from whence.lab.svg import Dots, Figure, Line, Panel


def measure(mechanism: str, option: str, settings: Result, jobs: int) -> Result:
    """Trainings for every value of `settings[option]` and of softmax, with every seed."""
    systems = [(mechanism, {option: m}) for m in settings[option]] + [("softmax", {})]
    trainings = [
        Training(*system, seed=seed, steps=settings["steps"], context=128, sequences=8)
        for system in systems
        for seed in settings["seeds"]
    ]
    results, each = train_all(trainings, jobs), len(settings["seeds"])
    rows = []
    for number, (_, options) in enumerate(systems):
        runs = results[number * each : (number + 1) * each]
        rows.append({option: options.get(option), "runs": runs})
    return {"rows": rows}


def table(option: str, head: str, result: Result) -> str:
    lines = []
    for row in result["rows"]:
        loss, spread = summary(row["runs"])
        right, _ = summary(row["runs"], "accuracy")
        name = "softmax" if row[option] is None else row[option]
        found = f"{loss:.3f} ± {spread:.3f}" if len(row["runs"]) > 1 else f"{loss:.3f}"
        lines.append([name, found, f"{right:.1f} %"])
    return markdown([head, "held-out loss, nats a character", "right"], lines)


def figure(option: str, label: str, what: str, result: Result) -> Figure:
    sizes = doublings([row[option] for row in result["rows"] if row[option]])
    losses = [summary(row["runs"])[0] for row in result["rows"]]
    lines = [
        Line(sizes, losses[:-1], label),
        Line([sizes[0], sizes[-1]], [losses[-1]] * 2, "softmax", dashed=True),
    ]
    marks = [*lines, headroom(lines, 1.03), Dots(sizes, losses[:-1])]
    panel = Panel(f"loss against {what}", "log2 m", "nats a character", marks)
    return Figure(f"Held-out loss against the number of {what}", [panel])
