"""Judges of queries: does attention point where the question asks, as the factor C grows?

An answer is judged by the weights that it gives, since c ~ the wanted mixture for all values
exactly when the weights are the wanted ones. "C large" is a limit: the instances stand on rungs of
growing C, and an answer is right if from some rung on all of them pass. Rungs where the scores are
beyond what float64 can tell apart decide nothing.

The instances have few keys. That an answer serves any number of them is seen from the gap between
wanted and other scores: it has to grow with C, or with n, or be large enough for a million keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from whence.lab.grader.values import Array, number

RUNGS = np.array([12.0, 40.0, 1e4, 1e8])
# Noise that vanishes against 1/C, which is what "vanishingly small" has to mean.
NOISES = np.array([1e-14, 1e-16, 1e-22, 1e-30])
SIZES = ((3, 3), (4, 4), (5, 8), (8, 8), (16, 16), (24, 32))
COUNT = 200
TOLERANCE = 0.01  # of the weight may be elsewhere
SHARPEST = 1e12  # scores above this lose digits to rounding that weights would show
MANY = 1e6  # an answer that serves so many keys serves any number
GROWS = 1.05  # times as large a gap at the largest C as at the least: it grows with C


def _batches(seed: int, fill: Callable[[np.random.Generator, Array, Array], Array]) -> list[Batch]:
    """Keys around orthonormal means; `fill(generator, means, noise)` draws them."""
    generator = np.random.default_rng(seed)
    batches = []
    for n, d in SIZES:
        rung = np.arange(COUNT) % len(RUNGS)
        means = orthonormal(generator, COUNT, n, d)
        means[: 2 * len(RUNGS)] = np.eye(n, d)
        noise = NOISES[rung]
        keys = fill(generator, means, noise)
        names = {
            "C": column(RUNGS[rung]),
            "alpha": column(noise),
            "n": number(n),
            "d": number(d),
            "mu_a": column(means[:, 0]),
            "mu_b": column(means[:, 1]),
            "k_a": column(keys[:, 0]),
            "k_b": column(keys[:, 1]),
            "k_j": column(keys[:, 0]),
        }
        hidden = {"keys": keys, "rung": rung.astype(np.float64), "means": means}
        batches.append(Batch({"n": n, "d": d}, names, hidden, COUNT))
    return batches


@lru_cache
def exact_keys() -> list[Batch]:
    """Orthonormal keys without noise."""
    return _batches(1, lambda generator, means, noise: means.copy())


@lru_cache
def noisy_keys() -> list[Batch]:
    """k_i ~ N(mu_i, alpha I)."""

    def fill(generator: np.random.Generator, means: Array, noise: Array) -> Array:
        return means + np.sqrt(noise)[:, None, None] * generator.standard_normal(means.shape)

    return _batches(2, fill)


@lru_cache
def stretched_keys() -> list[Batch]:
    """The same, and in every second block of rungs k_a is longer or shorter than its mean.

    Lengths stay between 0.4 and 2.5: a key that has all but vanished or points backwards cannot be
    found by any query, and is not held against the answer.
    """

    def fill(generator: np.random.Generator, means: Array, noise: Array) -> Array:
        keys = means + np.sqrt(noise)[:, None, None] * generator.standard_normal(means.shape)
        length = np.exp(generator.uniform(np.log(0.4), np.log(2.5), len(means)))
        length[: 2 * len(RUNGS)] = 2.0
        length[(np.arange(len(means)) // len(RUNGS)) % 2 == 0] = 1.0
        keys[:, 0] = length[:, None] * means[:, 0]
        return keys

    return _batches(3, fill)


@dataclass(frozen=True, slots=True)
class Look:
    """What the answers do on one batch: weights per head, their mean, errors, sharpness."""

    batch: Batch
    heads: list[Array]
    weights: Array
    error: Array
    sharp: Array  # largest |score|; infinite where a score is no number
    gap: Array  # least score of a wanted key minus largest of the others, least over heads


@dataclass(frozen=True, slots=True)
class Pointing:
    """A judge for queries `keys` whose mean weights should be `target` (over a, b, ...)."""

    answers: tuple[str, ...]
    batches: Callable[[], list[Batch]]
    target: tuple[float, ...]

    def __call__(self, answers: Answers) -> Finding:
        batches = self.batches()
        instances = sum(batch.count for batch in batches)
        looks = [self._look(answers, batch, instances) for batch in batches]
        passed = [look.error <= TOLERANCE for look in looks]
        if self._rung_reached(looks, passed) is not None:
            return self._served(answers, looks, instances)
        condition = self._condition(looks, passed)
        if condition:
            return Finding("right if", condition, instances=instances)
        return self._wrong(answers, looks, passed, instances)

    def _look(self, answers: Answers, batch: Batch, instances: int) -> Look:
        keys = batch.hidden["keys"]
        heads, sharp, gap = [], np.zeros(batch.count), np.full(batch.count, np.inf)
        wanted = len(self.target)
        for key in self.answers:
            query = value_of(answers, key, batch, (batch.sizes["d"], 1), instances)
            with np.errstate(all="ignore"):
                scores = (keys @ query)[:, :, 0]
            heads.append(softmax(scores))
            sharp = np.maximum(sharp, np.abs(scores).max(axis=1))
            aim = scores[:, :wanted].min(1) if len(self.answers) == 1 else scores[:, :wanted].max(1)
            gap = np.minimum(gap, aim - scores[:, wanted:].max(axis=1))
        weights = np.mean(heads, axis=0)
        target = np.zeros(weights.shape[1])
        target[:wanted] = self.target
        error = 0.5 * np.abs(weights - target).sum(axis=1)
        error = np.where(np.isfinite(error), error, np.inf)
        sharp = np.where(np.isfinite(sharp), sharp, np.inf)
        return Look(batch, heads, weights, error, sharp, gap)

    @staticmethod
    def _valid(looks: Sequence[Look]) -> list[int]:
        """Rungs at which all scores can be trusted."""
        valid = []
        for rung in range(len(RUNGS)):
            scores = [look.sharp[look.batch.hidden["rung"] == rung].max() for look in looks]
            if max(scores) <= SHARPEST:
                valid.append(rung)
        return valid

    def _rung_reached(self, looks: Sequence[Look], passed: Sequence[Flags]) -> int | None:
        """The first rung from which on every trusted instance passes.

        Where no rung can be trusted, digits are lost: they were spare if all weights are right.
        """
        reached = None
        for rung in reversed(self._valid(looks) or range(len(RUNGS))):
            at = [
                ok[look.batch.hidden["rung"] == rung]
                for look, ok in zip(looks, passed, strict=True)
            ]
            if not all(bool(ok.all()) for ok in at):
                break
            reached = rung
        return reached

    def _served(self, answers: Answers, looks: Sequence[Look], instances: int) -> Finding:
        """Right for the few keys of the instances; up to how many is it?"""
        valid = self._valid(looks) or [len(RUNGS) - 1]
        least, last = (_gap(looks, rung) for rung in (valid[0], valid[-1]))
        if last > GROWS * least:
            return Finding("right", instances=instances)
        names = set().union(*(answers[key].names for key in self.answers))
        varies = bool(names & {"n", "d"})
        most = self._serves(last)
        if varies:
            most = self._most(answers, looks, valid[-1], instances)
        if most >= MANY:
            return Finding("right", instances=instances)
        reason = (
            "does not grow with n as it has to" if varies else "is fixed and does not grow with n"
        )
        condition = f"n is at most about {int(most)}: the factor {reason}"
        return Finding("right if", condition, instances=instances)

    def _serves(self, gap: float) -> float:
        """Among how many keys the wanted ones keep their weight with such a gap."""
        return len(self.target) * (1 + TOLERANCE * float(np.exp(min(gap, 700.0))))

    def _most(self, answers: Answers, looks: Sequence[Look], rung: int, instances: int) -> float:
        """The same where n or d stands in the answer: they are given the values of larger sizes.

        The keys stay the few that they are: how many others there are does not change their scores.
        """
        most = float(max(look.batch.sizes["n"] for look in looks))
        spread = not any("eye" in answers[key].text for key in self.answers)  # d may be a size
        while most < MANY:
            many = number(2 * most)
            changed = {"n": many, "d": many} if spread else {"n": many}
            batches = [replace(k.batch, names={**k.batch.names, **changed}) for k in looks]
            larger = [self._look(answers, batch, instances) for batch in batches]
            if self._serves(_gap(larger, rung)) < 2 * most:
                return most
            most *= 2
        return most

    def _condition(self, looks: Sequence[Look], passed: Sequence[Flags]) -> str:
        """Right for all sizes from one on, or up to one; three sizes at least, or it is chance."""
        valid = self._valid(looks)
        if not valid:
            return ""
        sizes = [look.batch.sizes["n"] for look in looks]
        top = [
            bool(ok[look.batch.hidden["rung"] == valid[-1]].all())
            for look, ok in zip(looks, passed, strict=True)
        ]
        if sum(top) >= 3 and top == sorted(top):
            return f"n is at least {sizes[top.index(True)]}"
        if sum(top) >= 3 and top == sorted(top, reverse=True):
            return f"n is at most {sizes[sum(top) - 1]}"
        return ""

    def _wrong(
        self, answers: Answers, looks: Sequence[Look], passed: Sequence[Flags], instances: int
    ) -> Finding:
        used = [
            name for name in ("C", "alpha") if any(name in answers[k].names for k in self.answers)
        ]
        valid = self._valid(looks)
        if not valid:
            look = looks[0]
            example = self._told(look.batch, 0, used)
            hint = "The scores overflow. How large do they have to be, and how fast do yours grow?"
            shown = f"largest score {plain(float(look.sharp[0]))}"
            return Finding("wrong", "", example, shown, hint, instances, "overflow")
        rung = self._lowest_failing(looks, passed, valid)
        look, index = looks[0], 0
        for look, ok in zip(looks, passed, strict=True):
            bad = ~ok & (look.batch.hidden["rung"] == rung)
            if bad.any():
                index = int(np.argmax(bad))
                break
        pattern, hint = self._pattern(looks, rung)
        shown = self._shown(look, index)
        if pattern == "equal heads":
            shown += "; c_1 and c_2 are the same vector in every draw (variance: that of one head)"
        example = self._told(look.batch, index, used)
        return Finding("wrong", "", example, shown, hint, instances, pattern)

    @staticmethod
    def _lowest_failing(
        looks: Sequence[Look], passed: Sequence[Flags], valid: Sequence[int]
    ) -> int:
        """The lowest rung that fails with all above it: the counter-example with the least C."""
        lowest = valid[-1]
        for rung in reversed(valid):
            fails = any(
                bool((~ok & (look.batch.hidden["rung"] == rung)).any())
                for look, ok in zip(looks, passed, strict=True)
            )
            if not fails:
                break
            lowest = rung
        return lowest

    @staticmethod
    def _told(batch: Batch, index: int, used: Sequence[str]) -> str:
        text = batch.told(index, used)
        length = float(np.linalg.norm(batch.hidden["keys"][index, 0]))
        if abs(length - 1) > 1e-3:
            text += f", k_a of length {plain(length)}"
        return text

    def _shown(self, look: Look, index: int) -> str:
        weights, names = look.weights[index], "ab" if len(self.target) == 2 else "j"
        wanted = [
            f"a_{name} = {plain(float(weights[place]))} (wanted {plain(self.target[place])})"
            for place, name in enumerate(names)
        ]
        rest = float(weights[len(self.target) :].sum())
        return ", ".join([*wanted, f"the other keys together {plain(rest)}"])

    def _pattern(self, looks: Sequence[Look], rung: int) -> tuple[str, str]:
        """Which known mistake this behaves like: found from the weights, never from the text."""
        rows = [look.batch.hidden["rung"] == rung for look in looks]
        bad = [row & (look.error > TOLERANCE) for row, look in zip(rows, looks, strict=True)]
        weights = [look.weights[row][:, :2] for row, look in zip(bad, looks, strict=True)]
        pairs = np.concatenate(weights)
        rest = np.concatenate(
            [
                look.weights[row][:, len(self.target) :].sum(1)
                for row, look in zip(bad, looks, strict=True)
            ]
        )
        if len(self.answers) == 2 and all(
            np.allclose(look.heads[0], look.heads[1], atol=1e-9) for look in looks
        ):
            return "equal heads", (
                "Work out c_1 and c_2 for one draw of the keys. How do they differ, and what can "
                "their mean then change?"
            )
        if len(self.target) == 2 and (pairs > 0.99).any(axis=0).all():
            return "swing", (
                "In some draws a takes everything, in others b. What happens to the difference of "
                "the two scores when a key changes a little?"
            )
        if (rest > 0.99).all():
            return "away", "The wanted keys get less than all the others: look at their scores."
        if len(self.target) == 2 and (pairs > 0.99).any():
            return "one key", "One key takes everything: compare k_a.q with k_b.q."
        if np.median(rest) > TOLERANCE:
            return "flat", (
                "The wanted keys are favoured, but the others keep a share that grows with n. "
                "What decides how sharply a softmax decides?"
            )
        return "uneven", "Work out the score of every key, and what the softmax makes of them."


def _gap(looks: Sequence[Look], rung: int) -> float:
    """The least gap of a rung's instances."""
    return min(float(look.gap[look.batch.hidden["rung"] == rung].min()) for look in looks)
