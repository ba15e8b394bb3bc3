"""Performer (arXiv:2009.14794): the error of its features, and what trigonometric ones do in
training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from papers.results import Experiment, Result, late, markdown
from papers.training import Training, build, fit, text, train_all
from whence.attention import Performer
from whence.attention.performer import draw_directions
from whence.lab.svg import Figure, Line, Panel
from whence.model import GPT

KINDS = ("trig", "positive", "hyperbolic")


# The error of an estimate of exp(x.y) ----------------------------------------------------------


def directions(draw: str, width: int, features: int, draws: int, seed: int) -> Tensor:
    """(draws x features, width); each draw's directions belong together."""
    if draw == "iid":
        return draw_directions(features * draws, width, draw, seed)
    whole = draw_directions(width * draws, width, draw, seed).view(draws, width, width)
    return whole[:, :features].flatten(0, 1)


def estimates(kind: str, drawn: Tensor, x: Tensor, y: Tensor, features: int) -> Tensor:
    """Independent estimates of exp(x.y) from `features` directions each, by the layer's own phi."""
    width = len(x)
    attention = Performer(width, 1, 1, kind=kind).double()
    attention.directions = drawn
    scale = width**0.25  # the layer divides by it
    q, k = (vector.view(1, 1, 1, -1) * scale for vector in (x, y))
    a, b, query_log, key_log = attention.phi(q, k, None)
    assert query_log is not None and key_log is not None
    each = (query_log + key_log).exp()
    if a is not None and b is not None:
        each = each * a * b
    # A factor of the query that cancels in attention, and that phi leaves out.
    each = each * math.exp((0.5 if kind == "trig" else -0.5) * float(x @ x))
    both = each.view(-1, len(drawn)).sum(0)  # sin and cos, or + and -
    return both.view(-1, features).sum(1) / (features * (2 if kind == "hyperbolic" else 1))


def formula(kind: str, x: Tensor, y: Tensor, features: int) -> float:
    """The paper's mean squared error for independent directions."""
    plus, minus = float((x + y).square().sum()), float((x - y).square().sum())
    kernel = math.exp(float(x @ y))
    if kind == "trig":
        return math.exp(plus) * kernel**-2 * (1 - math.exp(-minus)) ** 2 / (2 * features)
    positive = math.exp(plus) * kernel**2 * (1 - math.exp(-plus)) / features
    return positive if kind == "positive" else positive * (1 - math.exp(-plus)) / 2


def bound(x: Tensor, y: Tensor, features: int) -> float:
    """The paper's upper bound for orthogonal positive features, as many as dimensions at most."""
    gap = math.exp(float(x @ y)) - math.exp(-float(x @ x + y @ y) / 2)
    saved = 2 * (features - 1) / (features * (len(x) + 2)) * gap**2
    return formula("positive", x, y, features) - saved


def measure_error(settings: Result, jobs: int) -> Result:
    width, norm, features = settings["width"], settings["norm"], settings["features"]
    drawn = {
        draw: directions(draw, width, features, settings["draws"], settings["seed"])
        for draw in ("iid", "orthogonal")
    }
    rows = []
    for degrees in settings["degrees"]:
        x, y = torch.zeros(2, width, dtype=torch.float64)
        x[0] = norm
        y[0] = norm * math.cos(math.radians(degrees))
        y[1] = norm * math.sin(math.radians(degrees))
        kernel = math.exp(float(x @ y))
        row: Result = {"degrees": degrees, "kernel": kernel, "bound": bound(x, y, features)}
        for kind in KINDS:
            for draw in drawn:
                squared = (estimates(kind, drawn[draw], x, y, features) - kernel).square()
                row[f"{kind}-{draw}"] = float(squared.mean())
                row[f"{kind}-{draw}-doubt"] = float(squared.std()) / math.sqrt(len(squared))
            row[f"{kind}-formula"] = formula(kind, x, y, features)
        rows.append(row)
    return {"rows": rows}


def error_table(result: Result) -> str:
    head = ["angle", "e^x·y"]
    head += [f"{kind}: formula, measured (iid)" for kind in KINDS]
    head += ["positive, orthogonal: bound, measured"]
    lines = []
    for row in result["rows"]:
        line = [f"{row['degrees']}°", f"{row['kernel']:.3f}"]
        for kind in KINDS:
            doubt = row[f"{kind}-iid-doubt"]
            line.append(f"{row[f'{kind}-formula']:.2e}, {row[f'{kind}-iid']:.2e} ± {doubt:.0e}")
        doubt = row["positive-orthogonal-doubt"]
        line.append(f"{row['bound']:.2e}, {row['positive-orthogonal']:.2e} ± {doubt:.0e}")
        lines.append(line)
    return markdown(head, lines)


def error_figure(result: Result) -> Figure:
    rows = result["rows"]
    angles = [row["degrees"] for row in rows]
    iid, orthogonal = [], []
    for kind in KINDS:
        iid.append(Line(angles, [row[f"{kind}-iid"] for row in rows], kind))
        orthogonal.append(Line(angles, [row[f"{kind}-orthogonal"] for row in rows], kind))
    for kind in KINDS:
        iid.append(Line(angles, [row[f"{kind}-formula"] for row in rows], dashed=True))
    orthogonal.append(Line(angles, [row["bound"] for row in rows], "bound, positive", dashed=True))
    return Figure(
        "Mean squared error of the kernel's estimate: measured, and what the paper says (dashed)",
        [
            Panel("independent directions", "angle of x and y", "squared error", iid, log_y=True),
            Panel("orthogonal", "angle of x and y", "squared error", orthogonal, log_y=True),
        ],
    )


# Training ---------------------------------------------------------------------------------------


@torch.no_grad()
def row_sums(model: GPT, training: Training) -> Result:
    """Of the trained model on held-out text: how often weights and row sums are negative."""
    _, _, source = text()
    x = model.embed(source[None, : training.context])
    weights = negative_weights = sums = negative_sums = 0
    for block in model.layers():
        attention = block.attention
        assert isinstance(attention, Performer)
        queries, keys, _ = attention.heads_of(block.norm1(x))
        a, b, query_log, key_log = attention.phi(queries.double(), keys.double(), None)
        assert query_log is not None and key_log is not None
        top = key_log.amax()
        left, right = (query_log - query_log.amax()).exp(), (key_log - top).exp()
        kernel = (left if a is None else a * left) @ (right if b is None else b * right).mT
        seen = torch.ones_like(kernel, dtype=torch.bool).tril()
        weights += int(seen.sum())
        negative_weights += int((kernel < 0)[seen].sum())
        total = kernel.tril().sum(-1)
        sums += total.numel()
        negative_sums += int((total < 0).sum())
        x = block(x)
    return {
        "negative_weights": 100 * negative_weights / weights,
        "negative_sums": 100 * negative_sums / sums,
    }


def trainings(settings: Result) -> list[Training]:
    return [
        Training(
            "performer",
            {"kind": kind, "features": settings["features"]},
            seed=seed,
            steps=settings["steps"],
            clip=0.0,
        )
        for kind in settings["kinds"]
        for seed in settings["seeds"]
    ]


def measure_training(settings: Result, jobs: int) -> Result:
    rows = []
    for training, result in zip(
        trainings(settings), train_all(trainings(settings), jobs), strict=True
    ):
        rows.append({"kind": training.options["kind"], "seed": training.seed, **result})
    before, after = {}, {}
    for kind in settings["kinds"]:
        probe = next(t for t in trainings(settings) if t.options["kind"] == kind)
        before[kind] = row_sums(build(probe), probe)
        # The few steps that every kind survives: later there may be nothing to look at.
        after[kind] = row_sums(fit(short(probe, settings["probe"]))[0], probe)
    return {"rows": rows, "before": before, "after": after, "probe": settings["probe"]}


def short(training: Training, steps: int) -> Training:
    return Training(**{**training.__dict__, "steps": steps})


def training_table(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        kind, curve = row["kind"], row["curve"]
        ended = f"{row['loss']:.3f}" if row["broke"] is None else f"NaN at step {row['broke']}"
        shares = [result["after"][kind][name] for name in ("negative_weights", "negative_sums")]
        lines.append(
            [
                kind,
                row["seed"],
                ended,
                f"{max(curve[50:], default=math.nan):.2f}",
                f"{row['largest_gradient']:.3g}",
                *(f"{share:.1f} %" for share in shares),
            ]
        )
    head = ["features", "seed", "held-out loss", "worst loss after step 50"]
    probe = result["probe"]
    head += ["largest gradient", f"negative weights (step {probe})", "negative row sums"]
    return markdown(head, lines)


def training_figure(result: Result) -> Figure:
    first = result["rows"][0]["seed"]
    rows = [row for row in result["rows"] if row["seed"] == first]
    lines = [late(row["curve"], row["kind"], 40) for row in rows]
    panel = Panel("training loss, first seed", "step", "nats a character", lines)
    return Figure("Training loss of Performers that differ in their features", [panel])


EXPERIMENTS = [
    Experiment(
        "performer-error",
        "mean squared error of the features, against the paper's formulas",
        {
            "width": 16,
            "norm": 0.7,
            "features": 16,
            "degrees": list(range(0, 181, 30)),
            "seed": 0,
            "draws": 20_000,
        },
        measure_error,
        error_table,
        error_figure,
    ),
    Experiment(
        "performer-training",
        "training with trigonometric and with positive features",
        {
            "kinds": ["trig", "positive", "hyperbolic"],
            "features": 64,
            "seeds": [0, 1],
            "steps": 300,
            "probe": 40,
        },
        measure_training,
        training_table,
        training_figure,
    ),
]
