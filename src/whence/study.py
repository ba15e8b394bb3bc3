"""A table of systems: baselines and trained models side by side, written as one JSON file."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whence.config import Config, SystemConfig
from whence.corpus.base import Corpus, Split
from whence.course.record import course_record
from whence.errors import WhenceError
from whence.evaluate import OPEN_BOOK, baseline, check_answers, check_baseline, score
from whence.files import (
    exclusive,
    is_held,
    is_traceless,
    read_fields,
    read_lines,
    remove_temporary,
    write_json,
    write_text,
)
from whence.pipeline import SCORED, begin, carry_out, check, open_corpus, with_full_path
from whence.progress import Progress, clock
from whence.recipe import change, to_table, to_toml
from whence.run import Run, fingerprint, machine, versions

SPLIT: Split = "dev"


def system_config(config: Config, system: SystemConfig) -> Config:
    """The recipe as one row of the table runs it."""
    if any(key.partition(".")[0] == "study" for key in system.set):
        raise WhenceError(f"system {system.name!r} sets [study], which belongs to all rows")
    table = to_table(change(config, dotted(system.set)))
    names = [stage["name"] for stage in table["stages"]]
    unknown = [name for name in system.skip if name not in names]
    if unknown:
        raise WhenceError(f"system {system.name!r} skips stage {unknown[0]!r}, which is not there")
    kept = [stage for stage in table["stages"] if stage["name"] not in system.skip]
    if kept:
        # The stages that stay keep the time that they had: skipping one must not lengthen them.
        whole = sum(stage["share"] for stage in table["stages"])
        left = sum(stage["share"] for stage in kept)
        table["train"]["seconds"] *= left / whole
        if table["train"]["steps"]:  # a bound that is rounded to zero would be none
            table["train"]["steps"] = max(1, round(table["train"]["steps"] * left / whole))
    table["stages"] = kept
    table["study"] = {}
    return change(config, table)


def dotted(changes: Mapping[str, Any]) -> dict[str, Any]:
    """`set = { model = { width = 64 } }` changes one field, as `"model.width" = 64` does."""
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if isinstance(value, Mapping) and key in ("corpus", "model", "train", "stages"):
            for name, inner in value.items():
                named = key == "stages" and isinstance(inner, Mapping)
                fields = inner.items() if named else [("", inner)]
                flat.update({f"{key}.{name}.{f}".rstrip("."): given for f, given in fields})
        else:
            flat[key] = value
    return flat


def run_study(config: Config, folder: Path, command: str) -> dict[str, Any]:
    """Run every row, going on where an earlier call stopped; returns what `study.json` holds."""
    if not config.study.systems:
        raise WhenceError("the recipe has no [[study.systems]]; `whence train` trains one system")
    config = with_full_path(config)
    names = [system.name for system in config.study.systems]
    if len(set(names)) != len(names):
        raise WhenceError("two systems of the study have the same name")
    rows = {system.name: system_config(config, system) for system in config.study.systems}
    corpus = open_corpus(config.corpus)
    check_answers(corpus.questions(SPLIT), f"{corpus.name}, {SPLIT}")
    for name in config.study.baselines:
        check_baseline(name)
    for row in rows.values():  # all of them now: the last must not fail after hours
        check(row, corpus if row.corpus == config.corpus else None)
    _claim_folder(folder, config)
    with exclusive(folder):
        remove_temporary(folder)
        _refuse_changed(folder, config, corpus)
        began = time.monotonic()
        study = {
            "format": "whence-study/1",
            "title": config.study.title or "Study",
            "recipe": to_toml(config),
            "seed": config.seed,
            "machine": machine(),
            "versions": versions(),
            "corpus": corpus.describe(),
            "split": SPLIT,
            **_earlier(folder, command),
        }
        before = study["seconds"]
        progress = Progress("study")
        systems = [baseline_row(name, corpus) for name in config.study.baselines]

        def keep() -> None:
            study["seconds"] = round(before + time.monotonic() - began, 1)
            write_json(folder / "study.json", {**study, "systems": systems})

        try:
            for number, system in enumerate(config.study.systems, 1):
                keep()
                label = system.label or system.name
                progress.say(f"[{number}/{len(names)}] {label}")
                path = folder / "runs" / system.name
                fresh = not (path / "config.toml").exists()
                run = begin(rows[system.name], path) if fresh else Run.open(path)
                try:
                    carry_out(run, system.name)
                except WhenceError as error:
                    raise WhenceError(f"system {system.name!r}: {error}") from error
                systems.append(run_row(run, system.name, label))
                study |= {key: read_origin(run)[key] for key in ("machine", "versions")}
        finally:
            keep()  # a study that is stopped knows how long it has been at work
        return {**study, "systems": systems}


def _earlier(folder: Path, command: str) -> dict[str, Any]:
    """What the first call began: when, by which command, and the seconds spent since."""
    path = folder / "study.json"
    if not path.exists():
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return {"command": command, "started": started, "seconds": 0.0}
    known = read_fields(path, "command", "started", "seconds")
    return {key: known[key] for key in ("command", "started", "seconds")}


def free_folder(folder: Path, config: Config) -> Path:
    """quick, quick-2, ...: the first that is unused, or holds this very study unfinished."""
    text, number, candidate = to_toml(with_full_path(config)), 1, folder
    while not (_is_unused(candidate) or _is_unfinished(candidate, text, config)):
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def _is_unused(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and all(map(is_traceless, folder.iterdir())))


def _is_unfinished(folder: Path, text: str, config: Config) -> bool:
    recipe = folder / "recipe.toml"
    if not recipe.is_file() or recipe.read_text(encoding="utf-8") != text or is_held(folder):
        return False
    if not (folder / "study.json").exists():
        return True
    rows = len(config.study.baselines) + len(config.study.systems)
    return len(read_fields(folder / "study.json", "systems")["systems"]) < rows


def _claim_folder(folder: Path, config: Config) -> None:
    """A folder belongs to one recipe; going on with another one would mix two studies."""
    recipe = folder / "recipe.toml"
    text = to_toml(config)
    if recipe.exists():
        if recipe.read_text(encoding="utf-8") != text:
            raise WhenceError(f"{folder} holds a study of another recipe; name another --out")
    elif not _is_unused(folder):
        raise WhenceError(f"{folder} is not empty and holds no study; name another --out")
    else:
        write_text(recipe, text)


def _refuse_changed(folder: Path, config: Config, corpus: Corpus) -> None:
    """Rows that are done and rows to come must be about the same texts and questions."""
    for system in config.study.systems:
        path = folder / "runs" / system.name
        if not (path / "evaluation.json").exists():
            continue  # an unfinished run looks for itself
        run = Run.open(path)
        now = corpus if run.config.corpus == config.corpus else open_corpus(run.config.corpus)
        content = run.origin().get("content")
        asked = [(one["question"], one["expected"]) for one in read_lines(path / "answers.jsonl")]
        if (content is not None and content != fingerprint(now)) or asked != [
            (question.text, question.answer) for question in now.questions(SPLIT)
        ]:
            raise WhenceError(
                f"{now.name} is not what {path} was trained and asked with; name another --out"
            )


def baseline_row(name: str, corpus: Corpus) -> dict[str, Any]:
    began = time.monotonic()
    answers = baseline(name, corpus, SPLIT)
    return {
        "name": name,
        "label": name,
        "kind": "baseline",
        "attention": None,
        "pretrained": True if name == OPEN_BOOK else None,  # it reads the documents
        "parameters": 0,
        **score(answers),
        "seconds": round(time.monotonic() - began, 3),
        "characters": 0,
        "characters_per_second": 0.0,
        "run": None,
        "config": None,
        "describe": {},
        "curve": [],
        "loss": [],
        "answers": answers,
    }


def run_row(run: Run, name: str, label: str) -> dict[str, Any]:
    """A finished run as a row: everything comes from the files of its directory."""
    evaluation, origin, metrics = read_evaluation(run), read_origin(run), run.metrics()
    seconds = evaluation["seconds"]
    return {
        "name": name,
        "label": label,
        "kind": "trained",
        "attention": origin["model"]["attention"]["mechanism"],
        "pretrained": reads_documents(run.config),
        "parameters": origin["model"]["parameters"],
        **{key: evaluation[key] for key in ("correct", "total", "accuracy", "interval")},
        "seconds": seconds,
        "characters": evaluation["characters"],
        "characters_per_second": round(evaluation["characters"] / max(seconds, 1e-9), 1),
        "run": f"runs/{run.path.name}",
        "config": to_toml(run.config),
        "describe": {
            **origin["model"],
            "precision": evaluation.get("precision"),
            "commit": origin["versions"].get("commit"),
        },
        "curve": _points(metrics, "accuracy"),
        "loss": _points(metrics, "loss"),
        "answers": read_lines(run.path / "answers.jsonl"),
    }


def reads_documents(config: Config) -> bool:
    """Whether any stage trains on more than the questions, whatever it is called."""
    return any(set(stage.mixture) - {"questions"} for stage in config.stages)


def _points(metrics: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    wanted = ("step", "seconds", "stage", key)
    return [{name: record[name] for name in wanted} for record in metrics if key in record]


def read_evaluation(run: Run) -> dict[str, Any]:
    if course_record(run.path) is not None:
        raise WhenceError(
            f"{run.path} is a training of `whence course`: `whence course evaluate` scores it"
        )
    if not run.finished:
        raise WhenceError(f"{run.path} is not finished: `whence resume {run.path}` goes on with it")
    return read_fields(run.path / "evaluation.json", *SCORED)


def read_origin(run: Run) -> dict[str, Any]:
    origin = run.origin()
    if not origin:
        raise WhenceError(f"{run.path} has no origin.json, which says where it comes from")
    return origin


def study_of_run(path: Path) -> dict[str, Any]:
    """A run as a study with one system, for its report."""
    run = Run.open(path)
    name = path.resolve().name  # of "." as well
    row = run_row(run, name, name)
    origin = read_origin(run)
    row["run"] = "."
    return {
        "format": "whence-study/1",
        "title": f"Run {name}",
        "command": repeating(origin["arguments"]),
        "recipe": to_toml(run.config),
        "seed": run.config.seed,
        "started": datetime.fromtimestamp(
            (run.path / "config.toml").stat().st_mtime, UTC
        ).isoformat(timespec="seconds"),
        "seconds": row["seconds"],
        "machine": origin["machine"],
        "versions": origin["versions"],
        "corpus": origin["corpus"],
        "split": SPLIT,
        "systems": [row],
    }


def table(study: dict[str, Any]) -> str:
    """The table for the terminal: accuracy with its interval, time and cost of every row."""
    rows = [("system", "right", "accuracy", "95 % interval", "parameters", "training", "speed")]
    for system in study["systems"]:
        trained = system["kind"] == "trained"
        low, high = system["interval"]
        rows.append(
            (
                system["label"],
                f"{system['correct']}/{system['total']}",
                f"{system['accuracy']:.1f} %",
                f"{low:.1f} - {high:.1f}",
                f"{system['parameters']:,}" if trained else "-",
                clock(system["seconds"]) if trained else "-",
                f"{system['characters_per_second']:,.0f}/s" if trained else "-",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def repeating(arguments: Sequence[str]) -> str:
    """The command that does the same again: into a folder of its own, not into the one it made."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--out" and not argument.startswith("--out="):
            kept.append(argument)
        skip = not skip and argument == "--out"
    return "whence " + shlex.join(kept)
