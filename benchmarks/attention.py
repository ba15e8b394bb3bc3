"""Attention layers against their peers: time, memory, exponents, crossover, error, causality.

8 heads of 32, batch 1, 128 features / projected positions / latents, blocks of 64 with 2 global,
3 window and 3 random; float32, two threads. Peers come from PyPI into `.bench/` (once). Layers are
measured in turns in processes of their own, medians over rounds; `ratio` is how much faster the
causal performer is than performer-pytorch at T = 4096, forward + backward.

    python benchmarks/attention.py [--json] [--quick] [--only performer bigbird ...]
    python benchmarks/attention.py --parts memory
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attention_environment
from attention_table import print_tables
from contest import HERE, ROOT, Row, machine

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
GROUPS = {
    "softmax": {
        "whence softmax": ("torch sdpa", "x-transformers"),
        "whence rope": ("torch sdpa + rope", "x-transformers + rope"),
    },
    "performer": {
        "whence performer": ("performer-pytorch",),
        "whence performer, both ways": ("performer-pytorch, both ways",),
    },
    "linformer": {
        "whence linformer": ("linformer-pytorch",),
        "whence linformer, both ways": ("linformer, both ways",),
    },
    "bigbird": {
        "whence bigbird": ("transformers bigbird, both ways",),
        "whence bigbird, both ways": ("transformers bigbird, both ways",),
    },
    "perceiver": {
        "whence perceiver": ("perceiver-ar-pytorch",),
        "whence perceiver, both ways": ("perceiver-pytorch, both ways",),
    },
}
EXACT = "torch sdpa"
PARTS = ("time", "memory", "error")


class Bench:
    """Two processes, ours and the peers', that measure one layer at a time."""

    def __init__(self, threads: int, folder: Path) -> None:
        theirs = str(attention_environment.prepare())
        row = str(HERE / "peers" / "attention_row.py")
        self.rows = {
            "whence": Row("whence", [sys.executable, row, "whence"], folder / "whence", threads),
            "peers": Row("peers", [theirs, row, "peers"], folder / "peers", threads),
        }

    def ask(self, layer: str, **request: Any) -> dict[str, Any]:
        row = self.rows["whence" if layer.startswith(("whence", "torch")) else "peers"]
        assert row.process.stdin
        row.process.stdin.write(json.dumps({"layer": layer, **request}) + "\n")
        row.process.stdin.flush()
        return row.read()

    def forget(self) -> None:
        for layer in ("whence", "x-transformers"):
            self.ask(layer, forget=True)

    def close(self) -> None:
        for row in self.rows.values():
            row.close()


def layers_of(group: str) -> list[str]:
    names = [EXACT]
    for ours, peers in GROUPS[group].items():
        names += [name for name in (ours, *peers) if name not in names]
    return names


def times(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each layer, length and mode; all layers of a length take turns."""
    rows = []
    names = list(dict.fromkeys(name for group in arguments.only for name in layers_of(group)))
    for length in arguments.lengths:
        for backward in (False, True):
            found: dict[str, list[float]] = {name: [] for name in names}
            request = {"length": length, "backward": backward, "compiled": arguments.compiled}
            rounds = arguments.rounds if length < 8192 else min(3, arguments.rounds)
            for number in range(rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    answer = bench.ask(name, seconds=arguments.slice, **request)
                    found[name].append(answer["seconds"])
            for group in arguments.only:
                for name in layers_of(group):
                    rows.append(
                        {
                            "group": group,
                            "layer": name,
                            "length": length,
                            "backward": backward,
                            "milliseconds": round(statistics.median(found[name]) * 1e3, 3),
                            "rounds": [round(seconds * 1e3, 3) for seconds in found[name]],
                        }
                    )
            bench.forget()
        print(f"length {length} done", file=sys.stderr)
    return rows


def memory(bench: Bench, group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for length in arguments.lengths:
        for name in layers_of(group):
            answer = bench.ask(name, length=length, backward=True, memory=True)
            megabytes = round(answer["bytes"] / 2**20, 1)
            rows.append({"group": group, "layer": name, "length": length, "megabytes": megabytes})
    return rows


def leaks(bench: Bench, groups: list[str]) -> dict[str, float]:
    """Of every layer that claims to be causal: how far the past moves when the future does."""
    names = [name for group in groups for name in layers_of(group) if "both ways" not in name]
    return {n: bench.ask(n, length=1024, causality=True)["moved"] for n in dict.fromkeys(names)}


def error(draws: int) -> list[dict[str, Any]]:
    python = str(attention_environment.prepare())
    command = [python, str(HERE / "peers" / "attention_quality.py"), str(draws)]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=path)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(points: dict[int, float]) -> float | None:
    """The slope of log time over log length, least squares over T >= 2048."""
    pairs = [(math.log(T), math.log(time)) for T, time in points.items() if T >= 2048]
    if len(pairs) < 3:
        return None
    x, y = (statistics.mean(column) for column in zip(*pairs, strict=True))
    upper = sum((a - x) * (b - y) for a, b in pairs)
    return round(upper / sum((a - x) ** 2 for a, _ in pairs), 2)


def crossover(ours: dict[int, float], exact: dict[int, float]) -> int | None:
    """The shortest measured length from which on ours is faster than exact attention."""
    first = None
    for length in sorted(ours, reverse=True):
        if ours[length] > exact[length]:
            break
        first = length
    return first


def conclude(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each of our layers and modes: exponent, crossover, and the ratio to each peer."""
    found: dict[tuple[str, str, bool], dict[int, list[float]]] = {}
    for row in rows:
        key = (row["group"], row["layer"], row["backward"])
        found.setdefault(key, {})[row["length"]] = row["rounds"]

    def medians(key: tuple[str, str, bool]) -> dict[int, float]:
        return {length: statistics.median(times) for length, times in found[key].items()}

    results = []
    for (group, layer, backward), times in found.items():
        if layer not in GROUPS[group]:
            continue
        points, exact = medians((group, layer, backward)), medians((group, EXACT, backward))
        ratios = {}
        for peer in GROUPS[group][layer]:
            theirs = found[group, peer, backward]
            # Of neighbours in time, so that a drift of the machine cancels.
            ratios[peer] = {
                length: round(
                    statistics.median(b / a for a, b in zip(times[length], other, strict=True)), 3
                )
                for length, other in theirs.items()
            }
        results.append(
            {
                "layer": layer,
                "backward": backward,
                "exponent": exponent(points),
                "crossover": crossover(points, exact),
                "times_faster_than": ratios,
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer, shorter, rounds")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=7, help="slices of every layer (7)")
    parser.add_argument("--slice", type=float, default=0.06, help="seconds of a slice (0.06)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every row (2)")
    parser.add_argument(
        "--compiled", action="store_true", help="torch.compile every layer (slow: give --lengths)"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.slice = 3, 0.03
        arguments.lengths = [length for length in arguments.lengths if length in (1024, 4096)]

    result: dict[str, Any] = {
        "benchmark": "attention",
        "machine": machine(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "compiled": arguments.compiled,
    }
    with tempfile.TemporaryDirectory() as name:
        # Memory first: these processes have computed nothing yet when they are forked.
        bench = Bench(arguments.threads, Path(name))
        try:
            if "memory" in arguments.parts:
                result["memory"] = [r for g in arguments.only for r in memory(bench, g, arguments)]
            result["moved"] = leaks(bench, arguments.only)
            if "time" in arguments.parts:
                result["rows"] = times(bench, arguments)
                result["conclusions"] = conclude(result["rows"])
        finally:
            bench.close()
    if "error" in arguments.parts and "performer" in arguments.only:
        result["error"] = error(10 if arguments.quick else 40)
    for row in result.get("conclusions", []):
        if row["layer"] == "whence performer" and row["backward"]:
            result["ratio"] = row["times_faster_than"]["performer-pytorch"].get(4096)
    if arguments.json:
        print(json.dumps(result))
    else:
        print_tables(result)


if __name__ == "__main__":
    main()
