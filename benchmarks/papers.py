"""Re-runs what the attention papers claim and two cores can check.

    python benchmarks/papers.py                       # everything, about a quarter of an hour
    python benchmarks/papers.py --only performer      # one paper, or one experiment of it
    python benchmarks/papers.py --only linformer-speed --fresh --json

Results are kept in .bench/papers/ under their settings; a second call only shows them, and an
interrupted one goes on. With --docs the tables and pictures of docs/attention.md are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from papers import bigbird, linformer, perceiver, performer, synthesizer
from papers.results import ROOT, SINCE, Experiment, remembered
from whence.files import write_text
from whence.lab.svg import render

EXPERIMENTS: list[Experiment] = [
    *performer.EXPERIMENTS,
    *linformer.EXPERIMENTS,
    *bigbird.EXPERIMENTS,
    *synthesizer.EXPERIMENTS,
    *perceiver.EXPERIMENTS,
]
DOCUMENT = ROOT / "docs" / "attention.md"
PICTURES = ROOT / "docs" / "figures" / "attention"


def main() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", action="store_true", help="results as JSON instead of tables")
    parser.add_argument(
        "--fresh", action="store_true", help="measure and train again what is known"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--docs", action="store_true", help="rewrite docs/attention.md's results")
    given = parser.parse_args()
    wanted = [e for e in EXPERIMENTS if not given.only or chosen(e.name, given.only)]
    if not wanted:
        parser.error(f"no experiment is called {given.only}; known: {', '.join(names)}")
    records: dict[str, Any] = {}
    if given.fresh:
        os.environ[SINCE] = str(time.time())
    for experiment in wanted:
        print(f"{experiment.name}: {experiment.title}", file=sys.stderr)
        record = remembered(
            experiment.name,
            experiment.settings,
            lambda e=experiment: e.measure(e.settings, given.jobs),  # type: ignore[misc]
            given.fresh,
        )
        records[experiment.name] = record
        if not given.json:
            print(f"## {experiment.name}: {experiment.title} ({record['seconds']:.0f} s)\n")
            print(experiment.table(record["result"]) + "\n")
        if given.docs:
            picture = render(experiment.figure(record["result"]))
            write_text(PICTURES / f"{experiment.name}.svg", picture)
            insert(DOCUMENT, experiment.name, experiment.table(record["result"]))
    if given.json:
        json.dump(records, sys.stdout, indent=1)
        print()


def chosen(name: str, only: list[str]) -> bool:
    return any(name == part or name.startswith(part + "-") for part in only)


def insert(document: Path, name: str, table: str) -> None:
    """Replace what stands between the document's marks of this experiment."""
    content = document.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", "\n<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    changed, count = re.subn(
        pattern, lambda _: begin + table + end, content, count=1, flags=re.DOTALL
    )
    if not count:
        raise SystemExit(f"{document} has no place for {name}: {begin.strip()} ... {end.strip()}")
    write_text(document, changed)


if __name__ == "__main__":
    main()
