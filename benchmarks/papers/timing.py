"""Times of single layers, taken in turns so that a drifting machine is the same for all."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def medians(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, median over the rounds; every round runs all of them once."""
    torch.set_num_threads(os.cpu_count() or 1)
    taken: dict[str, list[float]] = {name: [] for name in work}
    with torch.no_grad():
        for name in work:
            work[name]()
        for _ in range(rounds):
            for name in work:
                began = time.perf_counter()
                work[name]()
                taken[name].append(1000 * (time.perf_counter() - began))
    return {name: round(statistics.median(times), 4) for name, times in taken.items()}
