"""What a user waits for before anything happens, and what a course training takes of the memory.

python benchmarks/startup.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contest import ROOT, machine, material

WHENCE = [str(Path(sys.executable).with_name("whence"))]


def seconds_of(command: list[str], repeats: int = 9) -> float:
    """The median wall time of a whole process."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_memory_of(command: list[str], folder: Path) -> float:
    """The largest resident size of one process and its children, in MiB."""
    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    # wait4 gives the peak of this child alone; RUSAGE_CHILDREN would mix in earlier ones.
    assert child.stderr
    progress = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{progress[-2000:]}")
    return usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=40, help="steps of the training (40)")
    arguments = parser.parse_args()
    result: dict[str, object] = {"benchmark": "startup", "machine": machine()}
    result["help_seconds"] = round(seconds_of([*WHENCE, "--help"]), 3)
    result["course_help_seconds"] = round(seconds_of([*WHENCE, "course", "--help"]), 3)
    with tempfile.TemporaryDirectory() as name:
        result["text"] = material(Path(name))
        training = [*WHENCE, "course", "pretrain", "vanilla", "documents.txt"]
        training += ["--writing_params_path", "vanilla.params", "--steps", str(arguments.steps)]
        peak = peak_memory_of(training, Path(name))
    result["course_training_peak_mib"] = round(peak)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"whence --help            {result['help_seconds']} s")
    print(f"whence course --help     {result['course_help_seconds']} s")
    print(f"peak memory of a course training ({result['text']}): {peak:.0f} MiB")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
