"""How fast the 500 dev questions are answered, against what else the course's users would take.

Every row has the course's 4x256x8 shape. `--weights random`: the head never chooses ⁇ or □, so
every row decodes exactly 32 characters for every question and none may stop early. `--weights
trained`: a short finetuning (made once, kept in .bench); the course's program decodes 32 characters
all the same, the others stop after the closing mask, and textbook and Whence are checked to give
the same answers from the same checkpoint. The one-at-a-time rows are measured on a part of the
questions and scaled; Whence answers all of them at once. `ratio` is Whence over the textbook.

    python benchmarks/answering.py [--json] [--rounds 5] [--weights trained]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
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


def trained_weights(folder: Path) -> None:
    """A course checkpoint finetuned until its answers end, and those answers."""
    kept = environment.FOLDER / "answering.params"
    corpus, questions = folder / "documents.txt", folder / "questions.txt"
    whence = str(Path(sys.executable).with_name("whence"))
    if not kept.exists():
        train = [whence, "course", "finetune", "vanilla", str(corpus), "--steps", "60"]
        train += ["--finetune_corpus_path", str(folder / "train.tsv")]
        train += ["--writing_params_path", str(kept)]
        subprocess.run(train, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    shutil.copy(kept, folder / "weights.params")
    ask = [whence, "course", "evaluate", "vanilla", str(corpus)]
    ask += ["--reading_params_path", str(kept), "--eval_corpus_path", str(questions)]
    ask += ["--outputs_path", str(folder / "answers.txt")]
    subprocess.run(ask, check=True, cwd=folder, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="slices of every row (5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every row (2)")
    parser.add_argument("--weights", choices=("random", "trained"), default="random")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()

    theirs = str(environment.prepare()) if set(arguments.only) - {"textbook", "whence"} else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = material(folder)
        count = len((folder / "questions.txt").read_text(encoding="utf-8").splitlines())
        (folder / "answers.txt").write_text("", encoding="utf-8")
        if arguments.weights == "trained":
            trained_weights(folder)
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
        "weights": arguments.weights,
        "decoding": "exactly 32 characters a question in every row"
        if arguments.weights == "random"
        else "32 characters in the textbook, up to the closing mask in the others",
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
