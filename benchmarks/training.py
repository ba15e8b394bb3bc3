"""How fast the course's 4x256x8 model is trained, against what else its users would take.

Span corruption, forward + backward + optimiser, data preparation included; useful characters
(targets that are not padding) a second. `ratio` is Whence over the textbook, both in float32. The
machine's float32 matrix-product rate is measured in the same turns, as torch's `@` has it and as
the quicker of torch's two libraries does (`whence.attention.linear`): Whence's shares of both are
the rest of the story. Where bfloat16 works and pays, it has its own row, and `ratio_bfloat16`.
Memory is what each process had at its highest.

    python benchmarks/training.py [--json] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import environment
from contest import HERE, ROOT, compete, machine, material, paired

LOW = "whence, bfloat16"
ROWS = {
    "textbook": "padded to 127 positions, explicit mask and softmax, eager",
    "transformers": "GPT2LMHeadModel with Trainer, padded to the longest of the batch",
    "x-transformers": "its README's loop, flash attention, padded to the longest of the batch",
    "whence": "whence.train as `whence course pretrain vanilla` runs it",
    LOW: "the same with --precision auto, where that takes bfloat16",
}

PEERS = {"transformers", "x-transformers"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="slices of every row (5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every row (2)")
    parser.add_argument(
        "--compile", choices=("off", "auto"), default="off", help="whence's train.compile (off)"
    )
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()

    from whence.precision import try_bfloat16

    theirs = str(environment.prepare()) if set(arguments.only) & PEERS else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = material(folder)
        peers = HERE / "peers"
        commands = {
            "textbook": [sys.executable, str(peers / "textbook_row.py"), "training", name, "1"],
            "transformers": [theirs, str(peers / "gpt2_row.py"), "training", name, "1"],
            "x-transformers": [theirs, str(peers / "xtransformers_row.py"), "training", name, "1"],
        }
        ours = [sys.executable, str(peers / "whence_row.py"), "training", name, "6"]
        commands["whence"] = [*ours, arguments.compile, "float32"]
        if try_bfloat16(arguments.threads).pays:
            commands[LOW] = [*ours, arguments.compile, "bfloat16"]
        chosen = {row: commands[row] for row in commands if row in arguments.only}
        bare = [sys.executable, str(peers / "sgemm_row.py")]
        chosen |= {"matrix product": bare, "quickest product": [*bare, "quickest"]}
        rows = compete(chosen, arguments.rounds, arguments.threads, folder)

    bounds = {name: rows.pop(name) for name in ("matrix product", "quickest product")}
    result = {
        "benchmark": "training",
        "text": text,
        "unit": "useful characters a second, median of slices",
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "machine": machine(),
        "compile": arguments.compile,
        **{
            f"{name.replace(' ', '_')}_gflops": round(row.median() / 1e9, 1)
            for name, row in bounds.items()
        },
        "rows": {name: round(row.median()) for name, row in rows.items()},
        "peak_memory_mib": {name: round(row.peak_mib) for name, row in rows.items()},
        "slices": {name: [round(rate) for rate in row.rates()] for name, row in rows.items()},
    }
    if "whence" in rows:
        whence = rows["whence"]
        if "textbook" in rows:
            result["ratio"] = round(paired(whence, rows["textbook"]), 2)
            if LOW in rows:
                result["ratio_bfloat16"] = round(paired(rows[LOW], rows["textbook"]), 2)
        for name, row in bounds.items():
            share = f"share_of_{name.replace(' ', '_')}"
            result[share] = round(paired(whence, row, "flops"), 3)
        result["useful_share_of_positions"] = round(whence.median() / whence.median("positions"), 3)
        result["flops_counted"] = "6 x matrix parameters a position + 12 x layers x width x T/2"
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{text}; {arguments.rounds} rounds in turns, {arguments.threads} threads")
    for name, row in rows.items():
        said = f"{row.median():10,.0f} useful characters/s {row.peak_mib:8,.0f} MiB at most"
        print(f"{name:16} {said}   {ROWS[name]}")
    for name, row in bounds.items():
        print(f"{name:16} {row.median() / 1e9:10.1f} GFLOP/s, float32, 2048 x 2048")
    for key, value in result.items():
        if key.startswith(("ratio", "share", "useful")):
            print(f"{key:30} {value}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
