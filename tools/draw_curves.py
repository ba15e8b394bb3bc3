"""Draw accuracy against seconds and against exposures, from run directories, as one SVG.

    python tools/draw_curves.py docs/figures/knowledge.svg TITLE LABEL=RUN [RUN ...] LABEL=RUN ...

Runs after one label are seeds of one system, and its line is their mean. Exposures are passes over
the documents: how often each person was asked about.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

from whence.files import read_lines
from whence.lab.svg import Figure, Line, Panel, render

AXES = {"seconds": "seconds of training", "epochs": "exposures per document"}
Points = list[dict[str, float]]


def main(target: Path, title: str, arguments: list[str]) -> None:
    systems: dict[str, list[Points]] = {}
    label = ""
    for argument in arguments:
        name, separator, run = argument.partition("=")
        label, run = (name, run) if separator else (label, argument)
        systems.setdefault(label, []).append(points(Path(run)))
    panels = [
        Panel(
            f"against {axis}",
            axis,
            "dev, % right",
            [mean_line(label, seeds, key) for label, seeds in systems.items()],
            log_x=True,
        )
        for key, axis in AXES.items()
    ]
    target.write_text(render(Figure(title, panels)), encoding="utf-8")


def points(run: Path) -> Points:
    return [line for line in read_lines(run / "metrics.jsonl") if "accuracy" in line]


def mean_line(label: str, seeds: list[Points], key: str) -> Line:
    """The seeds' n-th evaluations belong together, being evenly spread."""
    rows = list(zip(*seeds, strict=True))
    x = [mean(point[key] for point in row) for row in rows]
    return Line(x, [mean(point["accuracy"] for point in row) for row in rows], label)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
