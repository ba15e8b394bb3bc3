"""What a claim is, and what running one gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whence.lab.svg import Figure

if TYPE_CHECKING:
    import torch

# quick: seconds, and the same numbers on every run. timed: seconds, but measures the clock.
# expensive: trains models, minutes. unchecked: no run can decide it.
Cost = Literal["quick", "timed", "expensive", "unchecked"]
Relation = Literal["<=", ">=", "~", ""]

# Below this a float64 result is rounding, and which digits come out depends on the machine.
ROUNDING = 1e-11


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured number, and what it was held against.

    relation "<=" or ">=": `value` must stay on that side of `bound`; "~": within `tolerance` of it;
    "": told, not judged.
    """

    name: str
    value: float
    relation: Relation = ""
    bound: float = math.nan
    tolerance: float = 0.0

    @property
    def kept(self) -> bool:
        if self.relation == "<=":
            return self.value <= self.bound
        if self.relation == ">=":
            return self.value >= self.bound
        if self.relation == "~":
            return abs(self.value - self.bound) <= self.tolerance
        return True

    def __str__(self) -> str:
        if not self.relation:
            return f"{self.name}: {number(self.value)}"
        bound = f"{self.bound:.3g}"
        if self.relation == "~":
            bound += f" +- {number(self.tolerance)}"
        return f"{self.name}: {number(self.value)} ({self.relation} {bound})"


def number(value: float) -> str:
    """Three significant digits; what is only rounding is called that."""
    if value != value:
        return "not a number"
    if math.isinf(value):
        return "infinite"
    if 0 < abs(value) < ROUNDING:
        return "rounding"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check: holds, fails, or holds if ...; with the numbers that show it.

    `holds` is None where no run can decide. `condition` completes the sentence "holds if ...". A
    verdict of "holds" is only given when every judged measure is kept: see `judge`.
    """

    holds: bool | None
    measures: tuple[Measure, ...] = ()
    samples: int = 0
    condition: str = ""
    finding: str = ""
    figure: Figure | None = None

    @property
    def label(self) -> str:
        if self.holds is None:
            return "not checkable by running"
        if not self.holds:
            return "fails"
        return f"holds if {self.condition}" if self.condition else "holds"

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.label,
            "holds": self.holds,
            "condition": self.condition,
            "measured": [
                {
                    "name": measure.name,
                    "value": _plain(measure.value),
                    "relation": measure.relation,
                    "bound": _plain(measure.bound),
                    "kept": measure.kept,
                }
                for measure in self.measures
            ],
            "samples": self.samples,
            "finding": self.finding,
        }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(
    measures: list[Measure],
    samples: int,
    finding: str,
    *,
    expected: bool = True,
    condition: str = "",
    figure: Figure | None = None,
) -> Verdict:
    """A verdict from its measures: the claim comes out as `expected` if every bound was kept.

    A check writes down what it expects to see as bounds. If all are kept, the claim holds (or,
    where the bounds describe the failure, fails); if one is broken, it is the other way round.
    """
    kept = all(measure.kept for measure in measures)
    holds = expected if kept else not expected
    return Verdict(holds, tuple(measures), samples, condition if holds else "", finding, figure)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the claims about training look for data, and where they keep what they computed."""

    corpus: str = "world"
    seed: int = 0
    cache: Path | None = None  # None: the user's cache folder
    report: Callable[[str], None] = field(default=lambda line: None)  # progress, one line each


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that a program can check.

    claim = CLAIMS["one-2"]
    verdict = claim.check(torch.Generator().manual_seed(0))
    verdict.label, verdict.measures
    """

    id: str
    group: str
    statement: str
    source: str
    run: Callable[[torch.Generator, Setting], Verdict]
    cost: Cost = "quick"

    def check(self, generator: torch.Generator, setting: Setting | None = None) -> Verdict:
        return self.run(generator, setting or Setting())
