"""`whence ls`: the runs of a folder with state, score and cost, read from their files."""

from __future__ import annotations

from pathlib import Path

from whence.course.record import course_record
from whence.errors import WhenceError
from whence.files import is_held, read_fields, read_lines
from whence.progress import clock


def list_folder(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise WhenceError(f"{folder} is not a folder")
    runs = sorted(config.parent for config in folder.rglob("config.toml"))
    if not runs:
        return [f"no runs in {folder}"]
    rows = [("run", "state", "dev", "training", "steps")]
    remarks = []
    for run in runs:
        name = str(run.relative_to(folder)) if run != folder else run.resolve().name
        try:
            rows.append((name, *_columns(run)))
        except (WhenceError, KeyError, TypeError) as error:  # the others are still worth listing
            rows.append((name, "damaged", "-", "-", "-"))
            remarks.append(f"{error}" if isinstance(error, WhenceError) else f"{run} is damaged")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return lines + remarks


def _columns(run: Path) -> tuple[str, str, str, str]:
    """State, score, time and steps of a run."""
    if (run / "evaluation.json").exists():
        result = read_fields(run / "evaluation.json", "accuracy", "seconds", "steps")
        score = f"{result['accuracy']:.1f} %"
        return "finished", score, clock(result["seconds"]), str(result["steps"])
    metrics = read_lines(run / "metrics.jsonl")
    scores = [record["accuracy"] for record in metrics if "accuracy" in record]
    last = metrics[-1] if metrics else {"seconds": 0.0, "step": 0}
    score = f"{scores[-1]:.1f} %" if scores else "-"
    return _state(run), score, clock(last["seconds"]), str(last["step"])


def _state(run: Path) -> str:
    """A run that nobody holds and that is not finished was interrupted."""
    record = course_record(run)
    if record is not None and record["finished"]:
        return "finished"  # the course scores by a command of its own
    return "running" if is_held(run) else "interrupted"
