"""Judge of cost formulas: equal up to constant factors, in every direction in which sizes can grow.

Two positive functions are of the same order if their ratio stays bounded. Along a ray on which
every size grows as a power of the same number, the logarithm of the ratio of two such formulas is a
straight line in the end; it has to be level on every ray. The rays are many and random, and the
axes are among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from whence.lab.grader.finding import Answers, Batch, Finding, column, plain, value_of
from whence.lab.grader.values import Array

RAYS = 600
NEAR, FAR = 8.0, 30.0  # doublings of the fastest growing size
CONSTANT = 2.0  # of what does not grow: little, or "T*m + T*d" would look like T where m is small
LEVEL = 1.5  # doublings that the ratio may drift between the two


@dataclass(frozen=True, slots=True)
class Growth:
    """`count` is what the program really does; `limits` keeps the sizes possible (in doublings)."""

    answer: str
    sizes: tuple[str, ...]
    count: Callable[[dict[str, Array]], Array]
    limits: Callable[[dict[str, Array]], None]
    constant: tuple[str, ...] = ()  # may stand in the answer, but does not grow
    hint: str = "Write down the size of every matrix that is multiplied, block by block."

    def __call__(self, answers: Answers) -> Finding:
        near, far = self._points(NEAR), self._points(FAR)
        instances = 2 * RAYS
        ratios = []
        for sizes in (near, far):
            names = {name: column(values) for name, values in sizes.items()}
            batch = Batch({}, names, {}, RAYS)
            value = value_of(answers, self.answer, batch, (1, 1), instances)[:, 0, 0]
            if not (np.isfinite(value) & (value > 0)).all():
                index = int(np.argmin(np.isfinite(value) & (value > 0)))
                shown = f"yours is {plain(float(value[index]))} operations"
                hint = "A number of operations is positive, and a power of the sizes."
                example = _told(sizes, self.sizes, index)
                return Finding("wrong", "", example, shown, hint, instances, "no count")
            ratios.append(np.log2(value) - np.log2(self.count(sizes)))
        drift = ratios[1] - ratios[0]
        if np.abs(drift).max() <= LEVEL:
            return Finding("right", instances=instances)
        low, high = int(np.argmin(drift)), int(np.argmax(drift))
        if drift[low] >= -LEVEL and drift[high] <= FAR - NEAR + LEVEL:
            where = _told(far, self.sizes, high)
            text = f"read as an upper bound: at {where} it is {_times(drift[high])} too much"
            return Finding("right if", text, instances=instances)
        if drift[low] >= -LEVEL:
            shown = f"yours is {_times(drift[high])} too much"
            hint = "An upper bound, but far from what is done. " + self.hint
            example = _told(far, self.sizes, high)
            return Finding("wrong", "", example, shown, hint, instances, "too large")
        shown = (
            f"from {_told(near, self.sizes, low)} the real number of operations grows "
            f"{_times(-drift[low])} faster than yours"
        )
        example = _told(far, self.sizes, low)
        return Finding("wrong", "", example, shown, self.hint, instances, "too small")

    def _points(self, doublings: float) -> dict[str, Array]:
        generator = np.random.default_rng(31)
        rays = generator.uniform(0, 1, (RAYS, len(self.sizes)))
        rays[rays < 0.25] = 0.0
        rays[: len(self.sizes)] = np.eye(len(self.sizes))
        rays[len(self.sizes)] = 1.0
        levels = {name: rays[:, place] for place, name in enumerate(self.sizes)}
        self.limits(levels)
        sizes = {name: np.ceil(2.0 ** (level * doublings)) for name, level in levels.items()}
        if "L" in sizes:
            sizes["L"] = sizes["L"] + 2  # the first and the last layer are there in any case
        return sizes | {name: np.full(RAYS, CONSTANT) for name in self.constant}


def _told(sizes: dict[str, Array], names: tuple[str, ...], index: int) -> str:
    return ", ".join(f"{name} = {plain(float(sizes[name][index]))}" for name in names)


def _times(doublings: float) -> str:
    return f"{plain(float(2.0**doublings))} times"
