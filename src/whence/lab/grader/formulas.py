"""Judges of formulas: the answer must equal what attention really gives, instance by instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from whence.lab.grader.finding import (
    Answers,
    Batch,
    Finding,
    Flags,
    column,
    orthonormal,
    plain,
    softmax,
    value_of,
)
from whence.lab.grader.values import Array, number, shape

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Mistake:
    """A known wrong answer, known by what it does: `is_it(value, batch)` over a whole batch."""

    pattern: str
    is_it: Callable[[Array, Batch], bool]
    hint: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Instances among which a part of the wrong answers is right."""

    text: str
    among: Callable[[Batch], Flags]


@dataclass(frozen=True, slots=True)
class Formula:
    """A judge for one formula. Batches hold `truth` (N, rows, columns) and `slack` (N,), hidden."""

    answer: str
    batches: Callable[[], list[Batch]]
    told: tuple[str, ...]
    hint: str
    mistakes: tuple[Mistake, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __call__(self, answers: Answers) -> Finding:
        batches = self.batches()
        instances = sum(batch.count for batch in batches)
        values, passed = [], []
        for batch in batches:
            truth = batch.hidden["truth"]
            value = value_of(answers, self.answer, batch, shape(truth), instances)
            with np.errstate(all="ignore"):
                error = np.abs(value - truth).max(axis=(1, 2))
                allowed = batch.hidden["slack"] + ROUNDING * (1 + np.abs(truth).max(axis=(1, 2)))
                passed.append(error <= allowed)
            values.append(value)
        if all(bool(ok.all()) for ok in passed):
            return Finding("right", instances=instances)
        for condition in self.conditions:
            chosen = np.concatenate(
                [ok[condition.among(batch)] for ok, batch in zip(passed, batches, strict=True)]
            )
            if len(chosen) and bool(chosen.all()):
                return Finding("right if", condition.text, instances=instances)
        return self._wrong(batches, values, passed, instances)

    def _wrong(
        self, batches: list[Batch], values: list[Array], passed: list[Flags], instances: int
    ) -> Finding:
        pattern, hint = "", self.hint
        for mistake in self.mistakes:
            if all(
                mistake.is_it(value, batch) for value, batch in zip(values, batches, strict=True)
            ):
                pattern, hint = mistake.pattern, mistake.hint
                break
        place = next(index for index, ok in enumerate(passed) if not ok.all())
        batch, value, index = batches[place], values[place], int(np.argmin(passed[place]))
        truth = batch.hidden["truth"][index]
        entry = int(np.argmax(np.abs(np.nan_to_num(value[index] - truth, nan=np.inf))))
        shown = f"yours gives {plain(float(value[index].flat[entry]))}, "
        shown += f"attention gives {plain(float(truth.flat[entry]))}"
        if truth.size > 1:
            row, place = divmod(entry, truth.shape[1])
            shown += f" (row {row + 1}, column {place + 1})"
        example = batch.told(index, self.told)
        return Finding("wrong", "", example, shown, hint, instances, pattern)


def equals(value: Array, other: Array, slack: float = 1e-6) -> bool:
    return value.shape == other.shape and bool(np.allclose(value, other, atol=slack, rtol=1e-6))


@lru_cache
def lengths() -> list[Batch]:
    """k_a = eps mu_a, the other keys at their orthonormal means, q = C(mu_a + mu_b)."""
    generator = np.random.default_rng(11)
    batches = []
    for n in (3, 5, 8, 16):
        eps = generator.normal(1, np.sqrt(0.5), 300)
        factor = generator.choice([8.0, 16.0, 40.0], 300)
        eps[:3], factor[:3] = (0.5, 2.0, 1.0), 8.0
        scores = np.zeros((300, n))
        scores[:, 0], scores[:, 1] = eps * factor, factor
        names = {
            "eps": column(eps),
            "eps_a": column(eps),
            "eps_b": number(1.0),
            "C": column(factor),
            "n": number(n),
        }
        hidden = {
            "truth": column(softmax(scores)[:, 0]),
            "other": column(softmax(scores)[:, 1]),
            # The usual formula leaves the n - 2 other keys out; that is worth at most this.
            "slack": 1.01 * (n - 2) * np.exp(-factor),
        }
        batches.append(Batch({"n": n}, names, hidden, 300))
    return batches


def above_one(value: Array, batch: Batch) -> bool:
    return bool((value > 1 + 1e-6).any())


def weight_of_b(value: Array, batch: Batch) -> bool:
    off = np.abs(value - batch.hidden["other"])[:, 0, 0]
    return bool((off <= batch.hidden["slack"] + ROUNDING).all())


def without_eps(value: Array, batch: Batch) -> bool:
    factor = batch.names["C"][:, 0, 0]
    return all(float(np.ptp(value[factor == one])) < 1e-9 for one in np.unique(factor))


@lru_cache
def words() -> list[Batch]:
    """c_2 for x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b and K = Q = V = I."""
    return _sentence(12, added=False)


@lru_cache
def words_added() -> list[Batch]:
    """The same with x_2 = u_a + u_d."""
    return _sentence(13, added=True)


def _sentence(seed: int, added: bool) -> list[Batch]:
    generator = np.random.default_rng(seed)
    batches = []
    for d in (4, 6, 9, 12):
        beta = generator.choice([3.0, 5.0, 8.0], 300)
        beta[0] = 3.0
        u = orthonormal(generator, 300, 4, d) * beta[:, None, None]
        second = u[:, 0] + u[:, 3] if added else u[:, 0]
        x = np.stack([u[:, 3] + u[:, 1], second, u[:, 2] + u[:, 1]], axis=1)
        weights = softmax((x @ x[:, 1][:, :, None])[:, :, 0])
        output = (weights[:, None, :] @ x)[:, 0]
        names = {f"u_{letter}": column(u[:, place]) for place, letter in enumerate("abcd")}
        names |= {"beta": column(beta), "d": number(d)}
        hidden = {"truth": column(output), "slack": 0.01 * beta}
        batches.append(Batch({"d": d}, names, hidden, 300))
    return batches


def hoped_for_b(value: Array, batch: Batch) -> bool:
    return equals(value, batch.names["u_b"])


@lru_cache
def permutations() -> list[Batch]:
    """Self-attention on X and on PX; half of the permutations are their own inverse."""
    generator = np.random.default_rng(14)
    batches = []
    for length, d in ((2, 3), (3, 3), (4, 5), (7, 4)):
        x = generator.standard_normal((300, length, d))
        key, query, value = generator.standard_normal((3, 300, d, d))
        orders = np.argsort(generator.random((300, length)), axis=1)
        swap = np.arange(length)
        swap[:2] = 1, 0
        orders[::2] = swap
        if length > 2:
            orders[1] = np.roll(np.arange(length), 1)
        p = np.eye(length)[orders]
        scores = (x @ query) @ (x @ key).transpose(0, 2, 1)
        output = softmax(scores) @ (x @ value)
        moved = p @ x
        names = {"P": p, "X": x, "S": scores, "Z": output, "T": number(length), "d": number(d)}
        hidden = {
            "scores": (moved @ query) @ (moved @ key).transpose(0, 2, 1),
            "slack": np.full(300, 1e-8),
        }
        hidden["output"] = softmax(hidden["scores"]) @ (moved @ value)
        batches.append(Batch({"T": length, "d": d}, names, hidden, 300))
    return batches


@lru_cache
def permuted_scores() -> list[Batch]:
    return [
        Batch(b.sizes, b.names, {**b.hidden, "truth": b.hidden["scores"]}, b.count)
        for b in permutations()
    ]


@lru_cache
def permuted_outputs() -> list[Batch]:
    return [
        Batch(b.sizes, b.names, {**b.hidden, "truth": b.hidden["output"]}, b.count)
        for b in permutations()
    ]


def own_inverse(batch: Batch) -> Flags:
    p = batch.names["P"]
    return np.asarray((p == p.transpose(0, 2, 1)).all(axis=(1, 2)))


@lru_cache
def rotations(wanted: str) -> list[Batch]:
    """One pair turned by t theta; `wanted` is first, second, score or distance."""
    generator = np.random.default_rng(15)
    count = 1200
    t, s = generator.integers(0, 60, (2, count)).astype(np.float64)
    theta = generator.uniform(0.01, 1, count)
    x1, x2, q1, q2, k1, k2 = generator.standard_normal((6, count))
    for values in (t, theta, x1, q1, k1):
        values[0] = 1.0
    x2[0], q2[0], k2[0], s[0] = 2.0, 2.0, 3.0, 0.0
    query, key = (q1 + 1j * q2) * np.exp(1j * t * theta), (k1 + 1j * k2) * np.exp(1j * s * theta)
    turned = (x1 + 1j * x2) * np.exp(1j * t * theta)
    back = (x1 + 1j * x2) * np.exp(-1j * t * theta)
    distance = np.abs(np.exp(1j * t * theta) - np.exp(1j * s * theta))
    truth = {
        "first": (turned.real, back.real),
        "second": (turned.imag, back.imag),
        "score": ((query * key.conj()).real, (query * key).real),
        "distance": (distance**2, distance),
    }[wanted]
    numbers = {"t": t, "s": s, "theta": theta, "x1": x1, "x2": x2, "q1": q1, "q2": q2}
    names = {name: column(values) for name, values in (numbers | {"k1": k1, "k2": k2}).items()}
    hidden = {"truth": column(truth[0]), "other": column(truth[1]), "slack": np.full(count, 1e-8)}
    return [Batch({}, names, hidden, count)]


def is_other(value: Array, batch: Batch) -> bool:
    return equals(value, batch.hidden["other"])


def gap(answers: Answers) -> Finding:
    """How far ahead k_j must be so that the other keys keep at most delta, however they stand.

    Exactly log((n - 1)(1 - delta)/delta); what is a little more is also right, what is much more is
    sufficient but not what is needed.
    """
    generator = np.random.default_rng(16)
    count = 1200
    n = np.sort(np.floor(np.exp(generator.uniform(np.log(2), np.log(1e4), count))))
    delta = np.exp(generator.uniform(np.log(1e-8), np.log(0.4), count))
    n[0], delta[0] = 3.0, 0.01
    batch = Batch({}, {"n": column(n), "delta": column(delta)}, {}, count)
    value = value_of(answers, "gap", batch, (1, 1), count)[:, 0, 0]
    needed = np.log((n - 1) * (1 - delta) / delta)
    short = ~(value >= needed - 1e-9)
    if short.any():
        index = int(np.argmax(short))
        kept = (n[index] - 1) / (n[index] - 1 + np.exp(np.minimum(value[index], 700)))
        shown = f"with your gap of {plain(float(value[index]))} the others keep up to {plain(kept)}"
        hint = "Let all other keys be exactly that far behind: what do their weights come to?"
        return Finding(
            "wrong", "", batch.told(index, ["n", "delta"]), shown, hint, count, "too small"
        )
    index = int(np.argmax(value - needed))
    where = batch.told(index, ["n", "delta"])
    more = f"{plain(float(value[index]))} where {plain(float(needed[index]))} would do"
    if (value > 10 * needed + 30).any():
        hint = (
            "It is enough, but it does not say what is needed: how does that depend on n and delta?"
        )
        return Finding("wrong", "", where, more, hint, count, "too large")
    if (value > needed + 1.5).any():
        return Finding(
            "right if", f"any gap that suffices will do ({where}: {more})", instances=count
        )
    return Finding("right", instances=count)
