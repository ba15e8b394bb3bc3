"""What a judge finds about one part, and the random instances that it looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from whence.lab.grader.grammar import Expression
from whence.lab.grader.values import Array, Misfit, evaluate, shape, told

Outcome = Literal["right", "right if", "wrong", "refused", "missing"]
Answers = Mapping[str, Expression]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Finding:
    """right; right if `condition`; or wrong, with a counter-example, the number and a hint."""

    outcome: Outcome
    condition: str = ""
    example: str = ""  # the smallest counter-example found
    shown: str = ""  # the number that shows it
    hint: str = ""
    instances: int = 0
    pattern: str = ""  # which known wrong answer this behaves like


@dataclass(frozen=True, slots=True)
class Batch:
    """Instances of one size: the names a student may use, and what only the judge knows.

    The first instance of a batch is a plain one (unit vectors, small whole numbers), so that a
    counter-example can be read.
    """

    sizes: Mapping[str, int]
    names: Mapping[str, Array]
    hidden: Mapping[str, Array] = field(default_factory=dict)
    count: int = 0

    def told(self, index: int, names: Sequence[str] = ()) -> str:
        """The instance in words: sizes first, then the numbers asked for."""
        parts = [f"{name} = {size}" for name, size in self.sizes.items()]
        for name in names:
            value = self.names[name]
            parts.append(f"{name} = {plain(float(value[min(index, len(value) - 1)].flat[0]))}")
        return ", ".join(parts)


class Wrong(Exception):
    """Thrown by `vector` and `matrix` when an answer cannot even be of the right kind."""

    def __init__(self, finding: Finding):
        super().__init__(finding.shown)
        self.finding = finding


def value_of(
    answers: Answers, key: str, batch: Batch, wanted: tuple[int, int], instances: int
) -> Array:
    """The answer's value for each instance of the batch, with the wanted shape; raises `Wrong`."""
    try:
        value = evaluate(answers[key], batch.names)
    except Misfit as misfit:
        shown = f"in {key} = {answers[key].text}: {misfit}"
        hint = "Check the shapes: vectors are columns, .T turns them, @ multiplies."
        raise Wrong(Finding("wrong", "", batch.told(0), shown, hint, instances)) from None
    if shape(value) != wanted:
        rows, columns = wanted
        expected = told(np.empty((1, rows, columns)))
        shown = f"{key} is {told(value)} and should be {expected}"
        hint = f"What kind of thing should {key} be, and how many numbers does it have?"
        raise Wrong(Finding("wrong", "", batch.told(0), shown, hint, instances, "shape"))
    return np.broadcast_to(value, (batch.count, *wanted))


def softmax(scores: Array) -> Array:
    """Over the last axis; a row that is not finite gives NaN and not a warning."""
    with np.errstate(all="ignore"):
        raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return cast(Array, raised / raised.sum(axis=-1, keepdims=True))


def plain(value: float) -> str:
    """A number as a reader writes it."""
    if value != value:
        return "undefined"
    if np.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def orthonormal(generator: np.random.Generator, batch: int, count: int, width: int) -> Array:
    """(batch, count, width) orthonormal rows, uniformly drawn; the first draw is the unit
    vectors."""
    basis, upper = np.linalg.qr(generator.standard_normal((batch, width, count)))
    basis = basis * np.sign(np.diagonal(upper, axis1=1, axis2=2))[:, None, :]
    basis[0] = np.eye(width, count)
    return np.ascontiguousarray(basis.transpose(0, 2, 1))


def column(values: Array) -> Array:
    """(N, d) -> (N, d, 1) and (N,) -> (N, 1, 1)."""
    return values.reshape(len(values), -1, 1)
