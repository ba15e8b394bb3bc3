"""What an experiment is, and a store that remembers every result under the settings it had."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whence.files import write_json
from whence.lab.svg import Figure, Line

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".bench" / "papers"

SINCE = "WHENCE_PAPERS_SINCE"  # results older than this (seconds) are made again
Result = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One claim of a paper: how to measure it, and how to show what came out.

    `settings` are all that the result depends on besides the code; changing one measures anew.
    `measure` gets the settings and the number of processes it may use.
    """

    name: str
    title: str
    settings: Result
    measure: Callable[[Result, int], Result]
    table: Callable[[Result], str]
    figure: Callable[[Result], Figure]


def remembered(name: str, settings: Result, make: Callable[[], Result], fresh: bool) -> Result:
    """The stored result of these settings, or a new one, stored before it is returned."""
    key = {"settings": settings, "torch": torch.__version__}
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=6).hexdigest()
    path = FOLDER / f"{name}-{digest}.json"
    since = float(os.environ.get(SINCE, 0))  # also in the processes that train
    if path.exists() and not fresh and path.stat().st_mtime >= since:
        stored: Result = json.loads(path.read_text(encoding="utf-8"))
        return stored
    began = time.monotonic()
    result = make()
    machine = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    seconds = round(time.monotonic() - began, 1)
    record = {"name": name, **key, "machine": machine, "seconds": seconds, "result": result}
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return record


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers are the caller's to round."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def doublings(lengths: Sequence[float]) -> list[float]:
    """Lengths as powers of two, for an axis whose ticks are then the lengths measured."""
    return [math.log2(length) for length in lengths]


def headroom(marks: Sequence[Line], times: float = 6.0) -> Line:
    """A line of one point, which draws nothing: it lifts the axis, and lines miss the legend."""
    top = max(value for mark in marks for value in mark.y)
    return Line([marks[0].x[0]], [top * times])


def late(curve: Sequence[float], label: str, skip: int = 60) -> Line:
    """A loss smoothed by a running mean, without the first steps, where all are the same."""
    shown, level = [], curve[0]
    for value in curve:
        level = 0.95 * level + 0.05 * value
        shown.append(level)
    return Line(list(range(skip + 1, len(curve) + 1)), shown[skip:], label)
