"""Perceiver (arXiv:2103.03206): time against length and latents, loss against latents."""

from __future__ import annotations

import functools
import math

import torch

from papers import size
from papers.results import Experiment, Result, doublings, headroom, markdown
from papers.timing import medians
from whence.attention import Perceiver, Softmax
from whence.lab.svg import Figure, Line, Panel


def measure_time(settings: Result, jobs: int) -> Result:
    rows = []
    for T in settings["lengths"]:
        torch.manual_seed(0)
        x = torch.randn(1, T, settings["width"])
        layers: dict[str, torch.nn.Module] = {"softmax": Softmax(settings["width"], 4, T).eval()}
        for m in settings["latents"]:
            layers[f"{m}"] = Perceiver(settings["width"], 4, T, latents=m).eval()
            whole = Perceiver(settings["width"], 4, T, causal=False, latents=m)
            layers[f"{m} both sides"] = whole.eval()
        work = {name: functools.partial(layer, x) for name, layer in layers.items()}
        rows.append({"T": T, **medians(work, settings["rounds"])})
    return {"rows": rows, "latents": settings["latents"]}


def exponent(lengths: list[float], times: list[float]) -> float:
    """The slope of log time over log length, by least squares."""
    xs, ys = [math.log(value) for value in lengths], [math.log(value) for value in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return over / sum((a - x) ** 2 for a in xs)


def time_table(result: Result) -> str:
    rows, late = result["rows"], [row for row in result["rows"] if row["T"] >= 1024]
    names = [name for name in rows[0] if name != "T"]
    head = ["T", *(name if name == "softmax" else f"m = {name}" for name in names)]
    lines = [[row["T"], *(f"{row[name]:.2f}" for name in names)] for row in rows]
    lengths = [row["T"] for row in late]
    slopes = [exponent(lengths, [row[name] for row in late]) for name in names]
    lines.append(["exponent of T", *(f"{slope:.2f}" for slope in slopes)])
    return markdown(head, lines)


def time_figure(result: Result) -> Figure:
    rows = result["rows"]
    lengths = doublings([row["T"] for row in rows])
    panels = []
    for title, ending in (("causal (prefix form)", ""), ("both sides", " both sides")):
        names = [f"{m}{ending}" for m in result["latents"]]
        marks = [Line(lengths, [row[n] for row in rows], f"m = {n.split()[0]}") for n in names]
        if not ending:
            marks.append(Line(lengths, [row["softmax"] for row in rows], "softmax", dashed=True))
        marks.append(headroom(marks, 10.0))
        panels.append(Panel(title, "log2 T", "milliseconds", marks, log_y=True))
    return Figure("Time of one Perceiver layer, forward, against the length", panels)


EXPERIMENTS = [
    Experiment(
        "perceiver-time",
        "time of one layer against length and latents",
        {
            "lengths": [256, 512, 1024, 2048, 4096, 8192],
            "latents": [16, 64, 128],
            "width": 256,
            "rounds": 5,
        },
        measure_time,
        time_table,
        time_figure,
    ),
    Experiment(
        "perceiver-loss",
        "loss against the number of latents",
        {"latents": [1, 4, 16, 64], "seeds": [0, 1], "steps": 400},
        functools.partial(size.measure, "perceiver", "latents"),
        functools.partial(size.table, "latents", "latents m"),
        functools.partial(size.figure, "latents", "perceiver", "latents"),
    ),
]
