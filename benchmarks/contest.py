"""Runs the rows of a benchmark in turns: every row is a process of its own, one works at a time.

A row says "ready" on stdout once it is warm, then does one slice of work for every line that it
reads and answers with one JSON object. Interleaving the slices gives all rows the same machine,
also when its speed drifts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Row:
    """The parent's end of one contestant."""

    def __init__(self, name: str, command: Sequence[str], log: Path, threads: int) -> None:
        self.name, self.log = name, log
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=environment,
        )
        self.slices: list[dict[str, float]] = []
        self.peak_mib = 0.0  # of its memory, where the system says
        print(f"{name}: starting", file=sys.stderr)
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):  # a library may print what it likes in between
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"{self.name} stopped:\n{self.log.read_text()[-2000:]}")

    def work(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self.read()
        self.slices.append(answer)
        rate = answer["amount"] / answer["seconds"]
        print(f"{self.name}: {rate:,.1f} a second", file=sys.stderr)

    def rates(self, what: str = "amount") -> list[float]:
        """A second's worth of `what`, slice by slice."""
        return [answer[what] / answer["seconds"] for answer in self.slices]

    def median(self, what: str = "amount") -> float:
        return statistics.median(self.rates(what))

    def close(self) -> None:
        assert self.process.stdin
        status = Path(f"/proc/{self.process.pid}/status")
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("VmHWM:"):
                self.peak_mib = int(line.split()[1]) / 1024
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def compete(
    commands: Mapping[str, Sequence[str]], rounds: int, threads: int, folder: Path
) -> dict[str, Row]:
    """Warm all rows up one after the other, then let them work in turns."""
    rows: list[Row] = []
    try:
        for name, command in commands.items():
            rows.append(Row(name, command, folder / f"{len(rows)}.log", threads))
        for number in range(rounds):
            # Every other round backwards, so that no row always follows the same neighbour.
            for row in rows if number % 2 == 0 else reversed(rows):
                row.work()
    finally:
        for row in rows:
            row.close()
    return {row.name: row for row in rows}


def paired(row: Row, other: Row, what: str = "amount") -> float:
    """The median over the rounds of one row's rate over another's in the same round."""
    pairs = zip(row.rates(what), other.rates(), strict=True)
    return statistics.median(one / two for one, two in pairs)


def serve(work: Callable[[], float | dict[str, float]], *, warm_up: int = 1) -> None:
    """A row's end: `work` does one slice and returns how much it did (`amount`, and more)."""
    for _ in range(warm_up):
        work()
    say({"ready": True})
    for _ in sys.stdin:
        start = time.perf_counter()
        done = work()
        seconds = time.perf_counter() - start
        say({**(done if isinstance(done, dict) else {"amount": done}), "seconds": seconds})


def say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def course_folder() -> Path | None:
    """The course data, which is never part of the repository."""
    folder = Path(os.environ.get("WHENCE_COURSE", ROOT.parent / "shared" / "course"))
    return folder if (folder / "wiki.txt").exists() else None


def material(folder: Path) -> str:
    """Write documents and questions where all rows read them; says which they are."""
    course = course_folder()
    if course:
        documents = (course / "wiki.txt").read_text(encoding="utf-8")
        lines = (course / "birth_dev.tsv").read_text(encoding="utf-8").splitlines()
        questions = [line.split("\t")[0] for line in lines if line]
        train = (course / "birth_places_train.tsv").read_text(encoding="utf-8")
        name = "the course's wiki.txt and birth_dev.tsv"
    else:
        from whence.corpus import load_corpus

        corpus = load_corpus("world", people=3000, seed=0)
        documents = "".join(document.text + "\n" for document in corpus.documents())
        questions = [question.text for question in corpus.questions("dev")][:500]
        pairs = [f"{question.text}\t{question.answer}" for question in corpus.questions("train")]
        train = "\n".join(pairs[:2000]) + "\n"
        name = "the world, 3,000 people (no course data on this machine)"
    (folder / "documents.txt").write_text(documents, encoding="utf-8")
    (folder / "train.tsv").write_text(train, encoding="utf-8")
    (folder / "questions.txt").write_text("\n".join(questions) + "\n", encoding="utf-8")
    return name


def machine() -> dict[str, Any]:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
    return {"cpu": model, "cores": os.cpu_count()}
