"""Judges of matrices: the projection that separates two vectors, and keys, queries and values."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from whence.lab.grader.finding import (
    Answers,
    Batch,
    Finding,
    Flags,
    Wrong,
    column,
    orthonormal,
    plain,
    softmax,
    value_of,
)
from whence.lab.grader.values import Array, Misfit, evaluate, number, shape, told

COUNT = 200
SHARPEST = 1e10  # as in pointing.py: larger scores lose their last digits
TOLERANCE = 0.01


@lru_cache
def separations() -> list[Batch]:
    """v_a in the span of A (d x m), v_b in the span of B (d x p), the spans orthogonal."""
    generator = np.random.default_rng(21)
    batches = []
    for d, m, p in ((2, 1, 1), (3, 1, 1), (3, 2, 1), (5, 2, 2), (8, 3, 5), (16, 6, 4)):
        rows = orthonormal(generator, COUNT, m + p, d)
        a, b = rows[:, :m].transpose(0, 2, 1), rows[:, m:].transpose(0, 2, 1)
        inside = generator.standard_normal((COUNT, m, 1))
        outside = generator.standard_normal((COUNT, p, 1))
        inside[0], outside[0] = 1.0, 2.0
        names = {
            "A": a,
            "B": b,
            "d": number(d),
            "m": number(m),
            "p": number(p),
            "I": np.eye(d)[None],
        }
        hidden = {"wanted": a @ inside, "both": a @ inside + b @ outside, "inside": inside}
        batches.append(Batch({"d": d, "m": m, "p": p}, names, hidden, COUNT))
    return batches


def select(answers: Answers) -> Finding:
    """M with M(v_a + v_b) = v_a."""
    batches = separations()
    instances = COUNT * len(batches)
    passed, worst = [], None
    for batch in batches:
        _same_kind(answers, batch, instances)
        matrix = value_of(answers, "M", batch, (batch.sizes["d"],) * 2, instances)
        with np.errstate(all="ignore"):
            result = matrix @ batch.hidden["both"]
        error = np.linalg.norm(result - batch.hidden["wanted"], axis=(1, 2))
        ok = error <= 1e-9 * (1 + np.linalg.norm(batch.hidden["wanted"], axis=(1, 2)))
        if not ok.all() and worst is None:
            index = int(np.argmin(ok))
            worst = batch, index, result[index, :, 0], batch.hidden["wanted"][index, :, 0]
        passed.append(bool(ok.all()))
    if worst is None:
        return Finding("right", instances=instances)
    for text, among in (
        ("m = 1, a line", [batch.sizes["m"] == 1 for batch in batches]),
        (
            "m + p = d",
            [batch.sizes["m"] + batch.sizes["p"] == batch.sizes["d"] for batch in batches],
        ),
    ):
        if all(ok for ok, chosen in zip(passed, among, strict=True) if chosen):
            return Finding("right if", text, instances=instances)
    batch, index, result, wanted = worst
    shown = f"M(v_a + v_b) = {_vector(result)}, v_a = {_vector(wanted)}"
    hint = "Let M work on v_a and on v_b separately: which one should it keep, which one remove?"
    return Finding("wrong", "", batch.told(index), shown, hint, instances)


def _same_kind(answers: Answers, batch: Batch, instances: int) -> None:
    """A^T and its like give the coordinates of v_a and not v_a: say so, whatever the spelling."""
    try:
        matrix = evaluate(answers["M"], batch.names)
    except Misfit:
        return  # value_of tells what does not fit
    if (
        shape(matrix) != (batch.sizes["m"], batch.sizes["d"])
        or batch.sizes["m"] == batch.sizes["d"]
    ):
        return
    result = matrix @ batch.hidden["both"]
    if np.allclose(result, batch.hidden["inside"], atol=1e-8):
        shown = f"M(v_a + v_b) is {told(result)}, {_vector(result[0, :, 0])}; "
        shown += f"v_a has {batch.sizes['d']} numbers"
        hint = "These numbers say where v_a lies in the basis A. What turns them into the vector?"
        raise Wrong(Finding("wrong", "", batch.told(0), shown, hint, instances, "coordinates"))


def _vector(values: Array) -> str:
    return "(" + ", ".join(plain(round(float(value), 3)) for value in values) + ")"


@lru_cache
def sentences() -> list[Batch]:
    """x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b on rungs of growing beta."""
    generator = np.random.default_rng(22)
    batches = []
    for d in (4, 5, 6, 8, 10, 12):
        rung = np.arange(COUNT) % 4
        beta = np.array([3.0, 5.0, 8.0, 14.0])[rung]
        u = orthonormal(generator, COUNT, 4, d)
        u[:4] = np.eye(4, d)
        u = u * beta[:, None, None]
        names = {f"u_{letter}": column(u[:, place]) for place, letter in enumerate("abcd")}
        names |= {"beta": column(beta), "d": number(d), "I": np.eye(d)[None]}
        x = np.stack([u[:, 3] + u[:, 1], u[:, 0], u[:, 2] + u[:, 1]], axis=1)
        hidden = {
            "x": x,
            "rung": rung.astype(np.float64),
            "wanted_2": u[:, 1],
            "wanted_1": u[:, 1] - u[:, 2],
        }
        batches.append(Batch({"d": d}, names, hidden, COUNT))
    return batches


def key_query_value(answers: Answers) -> Finding:
    """V, K, Q with c_2 ~ u_b and c_1 ~ u_b - u_c for large beta."""
    batches = sentences()
    instances = COUNT * len(batches)
    looks = [_look(answers, batch, instances) for batch in batches]
    valid = [
        rung
        for rung in range(4)
        if max(sharp[batch.hidden["rung"] == rung].max() for batch, _, _, sharp, _ in looks)
        <= SHARPEST
    ]
    if not valid:
        hint = "The scores overflow. How large do they have to be?"
        shown = f"largest score {plain(float(looks[0][3].max()))}"
        example = batches[0].told(0, ["beta"])
        return Finding("wrong", "", example, shown, hint, instances, "overflow")
    failing = []  # rungs that fail together with all above them
    for rung in reversed(valid):
        bad = [~ok & (batch.hidden["rung"] == rung) for batch, _, ok, _, _ in looks]
        if not any(bool(flags.any()) for flags in bad):
            break
        failing.append((rung, bad))
    if not failing:
        return Finding("right", instances=instances)
    _, bad = failing[-1]
    place = next(number for number, flags in enumerate(bad) if flags.any())
    batch, weights, _, _, outputs = looks[place]
    return _explain(batch, int(np.argmax(bad[place])), weights, outputs, instances)


Seen = tuple[Batch, Array, Flags, Array, Array]


def _look(answers: Answers, batch: Batch, instances: int) -> Seen:
    """The batch, weights of rows 1 and 2, which pass, largest score, outputs of rows 1 and 2."""
    d, x = batch.sizes["d"], batch.hidden["x"]
    value, key, query = (value_of(answers, name, batch, (d, d), instances) for name in "VKQ")
    with np.errstate(all="ignore"):
        asked = x[:, :2] @ query.transpose(0, 2, 1)
        scores = asked @ (x @ key.transpose(0, 2, 1)).transpose(0, 2, 1)
        weights = softmax(scores)
        outputs = weights @ (x @ value.transpose(0, 2, 1))
    wanted = np.stack([batch.hidden["wanted_1"], batch.hidden["wanted_2"]], axis=1)
    beta = batch.names["beta"][:, :, 0]
    error = np.linalg.norm(outputs - wanted, axis=2) / beta
    sharp = np.abs(scores).max(axis=(1, 2))
    sharp = np.where(np.isfinite(sharp), sharp, np.inf)
    return batch, weights, (error <= TOLERANCE).all(axis=1), sharp, outputs


def _explain(batch: Batch, index: int, weights: Array, outputs: Array, instances: int) -> Finding:
    example = batch.told(index, ["beta"])
    for row, wanted in ((1, "wanted_2"), (0, "wanted_1")):
        target, output = batch.hidden[wanted][index], outputs[index, row]
        off = float(np.linalg.norm(output - target) / batch.names["beta"][index, 0, 0])
        if off <= TOLERANCE:
            continue
        shares = weights[index, row]
        shown = f"x_{row + 1} has the weights {_vector(shares)}, "
        shown += f"and c_{row + 1} is {plain(off)} beta off"
        if shares.max() < 0.99:
            hint = f"x_{row + 1} does not decide for one word: which scores does it give the three?"
            return Finding("wrong", "", example, shown, hint, instances, "flat")
        word = int(np.argmax(shares)) + 1
        hint = (
            f"x_{row + 1} points at x_{word}. Is that where its answer can be found, and what "
            f"does V make of x_{word}?"
        )
        return Finding("wrong", "", example, shown, hint, instances, "elsewhere")
    return Finding("wrong", "", example, "the outputs are not finite", "", instances)
