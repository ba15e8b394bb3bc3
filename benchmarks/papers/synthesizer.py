"""Synthesizer (arXiv:2005.00743): which of its forms comes how near to softmax."""

from __future__ import annotations

from typing import Any

from papers.results import Experiment, Result, late, markdown
from papers.training import Training, summary, train_all
from whence.lab.svg import Figure, Panel

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("synthesizer", {"form": "fixed"}),
    "random": ("synthesizer", {"form": "random"}),
    "dense": ("synthesizer", {"form": "dense"}),
    "softmax": ("softmax", {}),
    "random + softmax": ("synthesizer", {"form": "mixture", "members": ["random", "softmax"]}),
    "dense + softmax": ("synthesizer", {"form": "mixture", "members": ["dense", "softmax"]}),
}


def measure_order(settings: Result, jobs: int) -> Result:
    trainings = [
        Training(*FORMS[form], seed=seed, steps=settings["steps"], context=128, sequences=8)
        for form in settings["forms"]
        for seed in settings["seeds"]
    ]
    results, each = train_all(trainings, jobs), len(settings["seeds"])
    return {
        "rows": [
            {"form": form, "runs": results[number * each : (number + 1) * each]}
            for number, form in enumerate(settings["forms"])
        ]
    }


def order_table(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        loss, spread = summary(row["runs"])
        right, _ = summary(row["runs"], "accuracy")
        parameters = f"{row['runs'][0]['parameters']:,}"
        lines.append([row["form"], f"{loss:.3f} ± {spread:.3f}", f"{right:.1f} %", parameters])
    return markdown(["form", "held-out loss, nats a character", "right", "parameters"], lines)


def order_figure(result: Result) -> Figure:
    lines = [late(row["runs"][0]["curve"], row["form"]) for row in result["rows"]]
    panel = Panel("training loss, first seed", "step", "nats a character", lines)
    return Figure("Training loss of the Synthesizer's forms, beside softmax", [panel])


EXPERIMENTS = [
    Experiment(
        "synthesizer-order",
        "fixed, random, dense, softmax and mixtures on next-character prediction",
        {"forms": list(FORMS), "seeds": [0, 1], "steps": 400},
        measure_order,
        order_table,
        order_figure,
    ),
]
