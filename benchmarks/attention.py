"""Attention layers against their peers: time, memory, exponents, crossover, error, causality.

8 heads of 32, batch 1, 128 features / projected positions / latents, blocks of 64 with 2 global,
3 window and 3 random; float32, two threads. Peers come from PyPI into `.bench/` (once). Layers are
measured in turns in processes of their own, medians over rounds; `ratio` is how much faster the
causal performer's core (no projections) is than performer-pytorch's, T = 4096, forward + backward.

    python benchmarks/attention.py [--json] [--quick] [--only performer bigbird ...]
    python benchmarks/attention.py --parts memory
    python benchmarks/attention.py --docs        # measures, then writes the tables of the document

What was measured is kept part by part in `.bench/attention.json`, from which `--docs` writes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attention_environment
from attention_figures import crossover, exponent, milliseconds, quartiles, ratio
from attention_kept import keep
from attention_table import all_tables, write_document
from contest import HERE, ROOT, Row, machine

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "performer core": {
        "whence performer, core": ("performer-pytorch, core",),
        "whence performer, core, both ways": ("performer-pytorch, core, both ways",),
    },
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
PARTS = ("memory", "time", "fine", "growth", "compiled", "error")
# What is close to its target, very short slices in turns: (ours, other, ((length, rounds), ...)).
BARE = ((256, 101), (1024, 51), (4096, 41))
SHORT = ((256, 101), (512, 51), (1024, 31))
FINE = (
    ("whence softmax", "torch sdpa", BARE),
    ("whence rope", "torch sdpa + rope", BARE),
    ("whence performer, core", "performer-pytorch, core", ((4096, 21),)),
    ("whence linformer, both ways", "linformer, both ways", SHORT),
    ("whence bigbird, both ways", "transformers bigbird, both ways", SHORT),
    ("whence perceiver, both ways", "perceiver-pytorch, both ways", SHORT),
    ("whence linformer", "torch sdpa", ((2048, 21),)),
    ("whence bigbird", "torch sdpa", ((2048, 21),)),
    ("whence perceiver", "torch sdpa", ((2048, 21),)),
)
BRIEF = 0.005  # seconds of their slices: a few calls of what takes a millisecond
GROWTH = (2048, 4096, 8192, 16384)
# The compiler unrolls their loop over chunks, a minute or two for each length and direction.
UNROLLED = ("performer-pytorch, core", "performer-pytorch")
FEW = {8192: 3, 16384: 2}  # rounds at most, of what takes minutes


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


def exact(group: str) -> str:
    return "torch sdpa, core" if "core" in group else "torch sdpa"


def layers_of(group: str) -> list[str]:
    names = [exact(group)]
    for ours, peers in GROUPS[group].items():
        names += [name for name in (ours, *peers) if name not in names]
    return names


def in_turns(
    bench: Bench, names: list[str], rounds: int, slice_: float, **request: Any
) -> dict[str, list[float]]:
    """Seconds a call of every layer, round by round; every other round in reverse order."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(bench.ask(name, seconds=slice_, **request)["seconds"])
    bench.forget()
    return found


def rounds_at(length: int, rounds: int) -> int:
    return min(FEW.get(length, rounds), rounds)


def all_layers(groups: list[str]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in layers_of(group)))


def times(bench: Bench, arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Length by length, one row for each layer and mode; all layers of a length take turns."""
    names = all_layers(arguments.only)
    for length in arguments.lengths:
        rows = []
        for backward in (False, True):
            request = {"length": length, "backward": backward}
            few = rounds_at(length, arguments.rounds)
            found = in_turns(bench, names, few, arguments.slice, **request)
            rows += [
                {
                    "group": group,
                    "layer": name,
                    "length": length,
                    "backward": backward,
                    "milliseconds": round(statistics.median(found[name]) * 1e3, 3),
                    "rounds": [round(seconds * 1e3, 3) for seconds in found[name]],
                }
                for group in arguments.only
                for name in layers_of(group)
                if name in found
            ]
        print(f"length {length} done", file=sys.stderr)
        yield rows


def fine(bench: Bench, groups: list[str]) -> list[dict[str, Any]]:
    """Ours over the other: quartiles of the ratio of neighbours in time."""
    rows = []
    wanted = all_layers(groups)
    for ours, other, lengths in (pair for pair in FINE if pair[0] in wanted):
        for length, rounds in lengths:
            for backward in (False, True):
                request = {"length": length, "backward": backward}
                found = in_turns(bench, [other, ours], rounds, BRIEF, **request)
                ratios = [b / a for a, b in zip(found[ours], found[other], strict=True)][1:]
                rows.append(
                    {
                        "layer": ours,
                        "bare": other,
                        "length": length,
                        "backward": backward,
                        "rounds": len(ratios),
                        "times_faster": quartiles(ratios),
                    }
                )
    return rows


def growth(bench: Bench, groups: list[str], rounds: int) -> list[dict[str, Any]]:
    """Exponents of our linear layers: the slope of every round, whose lengths are neighbours."""
    rows = []
    for layer in (name for group in groups if group != "softmax" for name in GROUPS[group]):
        for backward in (False, True):
            slopes = []
            for _ in range(rounds):
                request = {"seconds": 0, "backward": backward}
                points = {T: bench.ask(layer, length=T, **request)["seconds"] for T in GROWTH}
                slopes.append(exponent(points))
            bench.forget()
            rows.append(
                {
                    "layer": layer,
                    "backward": backward,
                    "rounds": rounds,
                    "exponent": quartiles(slopes),
                }
            )
    return rows


def compiled(bench: Bench, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The layers of a group, eager and compiled, in turns; a row says how far compiling helps."""
    for group in arguments.only:
        # Where the compiler lost its way at one length, it is not asked about the longer ones.
        lost: dict[tuple[str, bool], str] = {}
        for length in arguments.lengths:
            for backward in (False, True):
                request = {"length": length, "backward": backward, "seconds": arguments.slice}
                ways = [(name, how) for name in layers_of(group) for how in (False, True)]
                found: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
                failed = {name: why for (name, way), why in lost.items() if way == backward}
                failed |= {name: "not tried" for name in UNROLLED}
                for _ in range(rounds_at(length, arguments.rounds)):
                    for name, how in ways:
                        if how and name in failed:
                            continue
                        answer = bench.ask(name, compiled=how, **request)
                        if "failed" in answer:
                            failed[name] = lost[name, backward] = answer["failed"]
                        else:
                            found[name, how].append(answer["seconds"])
                bench.forget()
                yield from (
                    {
                        "group": group,
                        "layer": name,
                        "length": length,
                        "backward": backward,
                        "eager": milliseconds(found[name, False]),
                        "compiled": milliseconds(found[name, True]),
                        "failed": failed.get(name),
                        "times_faster_than": {
                            peer: ratio(found[name, True], found[peer, True])
                            for peer in GROUPS[group].get(name, ())
                        },
                    }
                    for name in layers_of(group)
                )
            print(f"{group}, length {length} compiled", file=sys.stderr)


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


def conclude(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each of our layers and modes: crossover, and the ratio to each peer."""
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
        points = medians((group, layer, backward))
        reference = medians((group, exact(group), backward))
        ratios = {}
        for peer in GROUPS[group][layer]:
            theirs = found[group, peer, backward]
            ratios[peer] = {
                str(length): ratio(times[length], other) for length, other in theirs.items()
            }
        results.append(
            {
                "layer": layer,
                "backward": backward,
                "crossover": crossover(points, reference),
                "times_faster_than": ratios,
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a minute: fewer, shorter rounds")
    parser.add_argument("--docs", action="store_true", help="write the document's tables")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=5, help="slices of a layer (5; long ones 2)")
    parser.add_argument("--slice", type=float, default=0.05, help="seconds of a slice (0.05)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every row (2)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.slice = 3, 0.02
        arguments.lengths = [length for length in arguments.lengths if length in (1024, 4096)]
        arguments.parts = [part for part in arguments.parts if part in ("time", "error")]

    partial = set(arguments.only) < set(GROUPS) or set(arguments.lengths) < set(LENGTHS)
    if arguments.docs and partial:
        parser.error("the document's tables hold all groups and lengths: leave out --docs")
    if arguments.quick and arguments.docs:
        parser.error("--quick is too rough for the document: leave out --docs")
    result: dict[str, Any] = {
        "benchmark": "attention",
        "machine": machine(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
    }

    def save() -> None:
        """As it comes: a run that is cut off loses only what it was about."""
        if not arguments.quick:
            keep(result, all_layers(list(GROUPS)))

    with tempfile.TemporaryDirectory() as name:
        # Memory first: these processes have computed nothing yet when they are forked.
        bench = Bench(arguments.threads, Path(name))
        try:
            if "memory" in arguments.parts:
                result["memory"] = [r for g in arguments.only for r in memory(bench, g, arguments)]
                save()
            if arguments.parts:
                result["moved"] = leaks(bench, arguments.only)
            if "time" in arguments.parts:
                result["rows"] = []
                for rows in times(bench, arguments):
                    result["rows"] += rows
                    result["conclusions"] = conclude(result["rows"])
                    save()
            if "fine" in arguments.parts:
                result["fine"] = fine(bench, arguments.only)
                save()
            if "growth" in arguments.parts:
                result["growth"] = growth(bench, arguments.only, arguments.rounds)
                save()
            if "compiled" in arguments.parts:
                result["compiled"] = []
                for row in compiled(bench, arguments):
                    result["compiled"].append(row)
                    save()
        finally:
            bench.close()
    if "error" in arguments.parts and "performer" in arguments.only:
        result["error"] = error(10 if arguments.quick else 100)
    for row in result.get("conclusions", []):
        if row["layer"] == "whence performer, core" and row["backward"]:
            result["ratio"] = row["times_faster_than"]["performer-pytorch, core"].get("4096")
    if not arguments.quick:
        result = keep(result, all_layers(list(GROUPS)))
    if arguments.docs:
        write_document(result, ROOT / "docs" / "benchmarks-attention.md")
    print(json.dumps(result) if arguments.json else all_tables(result))


if __name__ == "__main__":
    main()
