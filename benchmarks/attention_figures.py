"""Figures of times that were measured in turns: medians, ratios, exponents, crossovers."""

from __future__ import annotations

import math
import statistics


def quartiles(values: list[float]) -> list[float]:
    if len(values) < 2:  # one round: nothing to spread
        return [round(values[0], 3)] * 3
    return [round(x, 3) for x in statistics.quantiles(values, n=4)]


def milliseconds(seconds: list[float]) -> float | None:
    return round(statistics.median(seconds) * 1e3, 3) if seconds else None


def ratio(ours: list[float], theirs: list[float]) -> float | None:
    """How many times faster, over neighbours in time, so that a drift of the machine cancels."""
    if not (ours and theirs):
        return None
    return round(statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 3)


def exponent(points: dict[int, float]) -> float:
    """The slope of log time over log length, least squares."""
    pairs = [(math.log(T), math.log(time)) for T, time in points.items()]
    x, y = (statistics.mean(column) for column in zip(*pairs, strict=True))
    upper = sum((a - x) * (b - y) for a, b in pairs)
    return upper / sum((a - x) ** 2 for a, _ in pairs)


def crossover(ours: dict[int, float], exact: dict[int, float]) -> int | None:
    """The shortest measured length from which on ours is faster than exact attention."""
    first = None
    for length in sorted(ours, reverse=True):
        if ours[length] > exact[length]:
            break
        first = length
    return first
