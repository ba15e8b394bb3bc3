"""In which numbers the matrix products of a training are made.

float32 everywhere is the default. Products of bfloat16 numbers, summed in float32, are twice as
fast on processors that have instructions for them, many times slower on those that have not, and
on some that only claim to have them they end the process. So they are tried first, in a process
of their own. Weights, what a product sums, norms, losses and all evaluation stay in float32.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from whence.errors import WhenceError

PAYS = 1.2  # times as fast as float32, at least, to be worth the rounding
PATIENCE = 120.0  # seconds that the trial may take, the import of torch included

# What a layer's matrix products are, forward and backward, in turns; the answer is one line.
TRIAL = """
import json, sys, time, torch
from whence.attention.linear import linear
torch.set_num_threads(int(sys.argv[1]))
a, b = torch.randn(1024, 256), torch.randn(1024, 256)
low = a.bfloat16(), b.bfloat16()
times = {"float32": [], "bfloat16": []}
for turn in range(12):
    for name, (x, y) in (("float32", (a, b)), ("bfloat16", low)):
        began = time.perf_counter()
        for _ in range(3):
            linear(x, y), linear(y.t(), x.t()), linear(x.t(), x.t())
        times[name].append(time.perf_counter() - began)
best = {name: min(taken[2:]) for name, taken in times.items()}
right = linear(a, b)
wrong = float((linear(*low).float() - right).norm() / right.norm())
print(json.dumps({"gain": best["float32"] / best["bfloat16"], "wrong": wrong}))
"""


@dataclass(frozen=True)
class Trial:
    """What came of trying bfloat16: how many times as fast it is, or why it is not used."""

    gain: float = 0.0
    failure: str = ""

    @property
    def pays(self) -> bool:
        return not self.failure and self.gain >= PAYS


@cache
def try_bfloat16(threads: int) -> Trial:
    """Make some products in a process of its own, which may die of them."""
    # -P: a file called torch.py where the user happens to stand is not torch.
    command = [sys.executable, "-P", "-c", TRIAL, str(threads)]
    places = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    ours = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=ours
        )
    except subprocess.TimeoutExpired:
        return Trial(failure=f"the trial took more than {PATIENCE:.0f} s")
    except OSError as error:
        return Trial(failure=f"the trial could not be started: {error.strerror or error}")
    if ended.returncode < 0:
        return Trial(failure=f"the trial ended with {signal.Signals(-ended.returncode).name}")
    try:
        found = json.loads(ended.stdout)
        gain, wrong = float(found["gain"]), float(found["wrong"])
    except (ValueError, KeyError, TypeError):
        last = (ended.stderr.strip() or "nothing").splitlines()[-1]
        return Trial(failure=f"the trial said {last[:120]!r}")
    if not wrong < 0.02:  # rounding alone is some 0.003
        return Trial(failure=f"its products are wrong by {wrong:.1%}")
    return Trial(gain=gain)


def refuse_unusable(asked: str, begun: str = "") -> None:
    """Refuse bfloat16 where it does not work, if it was asked for or a training began in it."""
    if "bfloat16" not in (asked, begun) or asked == "float32":
        return
    trial = try_bfloat16(torch.get_num_threads())
    if not trial.failure:
        return
    wrong = f"products in bfloat16 do not work on this machine: {trial.failure}"
    if begun:
        raise WhenceError(f"{wrong}; this training began in them and cannot go on here")
    raise WhenceError(f'{wrong}; precision "float32" does, and "auto" finds out by itself')


def confirm(asked: str, begun: str, say: Callable[[str], None]) -> str:
    """The precision that runs: as asked for, or as an interrupted training began, if it can."""
    if "float32" in (asked, begun):
        return "float32"
    if "bfloat16" in (asked, begun):
        refuse_unusable(asked, begun)
        return "bfloat16"
    trial = try_bfloat16(torch.get_num_threads())
    if trial.pays:
        say(f"products in bfloat16: {trial.gain:.1f} times as fast as float32 here")
        return "bfloat16"
    reason = trial.failure or f"only {trial.gain:.1f} times as fast"
    say(f"products in float32, not in bfloat16: {reason}")
    return "float32"


def products(precision: str) -> AbstractContextManager[object]:
    """Inside it matrix products are made in this precision."""
    if precision == "float32":
        return nullcontext()
    # A rounded weight is used once, and torch's cache of them is shared by all threads.
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
