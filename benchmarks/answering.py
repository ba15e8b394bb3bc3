"""How fast the 500 dev questions are answered, against what else the course's users would take.

Every row has the course's 4x256x8 shape with random weights whose head never chooses ⁇ or □: so
every row decodes exactly 32 characters for every question and none may stop early. The textbook is
measured on a part of the questions and scaled (its time a question does not depend on the others);
Whence answers all of them at once. `ratio` is Whence over the textbook.

    python benchmarks/answering.py [--json] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import environment
from contest import HERE, ROOT, compete, machine, material, paired

ROWS = {
    "textbook": "one at a time, the whole sequence again for every character",
    "transformers": "GPT2LMHeadModel.generate, one at a time with its cache",
    "x-transformers": "AutoregressiveWrapper.generate, one at a time with its cache",
    "whence": "whence.answer, all questions at once with its cache",
}
PARTS = {"textbook": 20, "transformers": 40, "x-transformers": 20, "whence": 0}  # 0: all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="slices of every row (5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every row (2)")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()

    theirs = str(environment.prepare()) if set(arguments.only) - {"textbook", "whence"} else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = material(folder)
        count = len((folder / "questions.txt").read_text(encoding="utf-8").splitlines())
        scripts = {
            "textbook": (sys.executable, "textbook_row.py"),
            "transformers": (theirs, "gpt2_row.py"),
            "x-transformers": (theirs, "xtransformers_row.py"),
            "whence": (sys.executable, "whence_row.py"),
        }
        commands = {
            row: [python, str(HERE / "peers" / script), "answering", name, str(PARTS[row] or count)]
            for row, (python, script) in scripts.items()
            if row in arguments.only
        }
        rows = compete(commands, arguments.rounds, arguments.threads, folder)

    seconds = {name: count / row.median() for name, row in rows.items()}
    result = {
        "benchmark": "answering",
        "text": text,
        "questions": count,
        "unit": "seconds for all questions, median of slices, scaled from the part measured",
        "questions_a_slice": {name: PARTS[name] or count for name in rows},
        "decoding": "exactly 32 characters a question in every row",
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "machine": machine(),
        "rows": {name: round(value, 3) for name, value in seconds.items()},
    }
    if {"whence", "textbook"} <= set(rows):
        result["ratio"] = round(paired(rows["whence"], rows["textbook"]), 1)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{text}; {arguments.rounds} rounds in turns, {arguments.threads} threads")
    for name, value in seconds.items():
        print(f"{name:16} {value:9.2f} s for {count} questions   {ROWS[name]}")
    if "ratio" in result:
        print(f"{'ratio':16} {result['ratio']:9.1f}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
