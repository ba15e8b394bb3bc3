"""`whence claims` and `whence grade`; numpy and torch are loaded only when a command runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whence.errors import WhenceError
from whence.files import refuse_overwriting

if TYPE_CHECKING:
    from whence.lab.claim import Claim, Setting, Verdict

NEWEST_VERSION = "2026"
CHEAP = ("quick", "unchecked")  # run each time; the others only when asked for


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("ids", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Also those that measure the clock or train models."
)
@click.option("--json", "as_json", is_flag=True, help="Everything that was measured, as JSON.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of all draws.")
@click.option("--corpus", default="world", show_default=True, help="world, lahman, course:FOLDER.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where trained models are kept.")
@click.option("--list", "listing", is_flag=True, help="Only the claims and what they cost.")
@click.option("--write", type=click.Path(path_type=Path), help="Write the document and pictures.")
@click.option("--check", type=click.Path(path_type=Path), help="Fail if that document is stale.")
def claims(
    ids: tuple[str, ...],
    everything: bool,
    as_json: bool,
    seed: int,
    corpus: str,
    cache: Path | None,
    listing: bool,
    write: Path | None,
    check: Path | None,
) -> None:
    """Run the claims about attention and say which hold.

    \b
    whence claims                 all that take seconds
    whence claims one-2 two       one, or all of a kind
    whence claims --all           also those that measure or train (minutes; kept and resumed)
    whence claims --write docs/claims.md

    An id given by name runs whatever it costs.
    """
    from whence.lab.claim import Setting
    from whence.lab.claims import CLAIMS, chosen

    selected = chosen(ids)
    if listing:
        for claim in selected:
            click.echo(f"{claim.id:8} {claim.cost:10} {claim.statement}")
        return
    if check is not None:
        if ids or everything or write is not None:
            raise WhenceError("--check looks at the whole document and takes no other argument")
        _check(check)
        return
    if write is not None and seed != 0:
        raise WhenceError("--write uses seed 0: a document that depends on it could not be checked")
    from whence.train import Interrupted

    setting = Setting(corpus, seed, cache, lambda line: click.echo(line, err=True))
    results: dict[str, Verdict] = {}
    for claim in selected:
        if claim.cost not in CHEAP and not ids and not everything:
            continue
        try:
            results[claim.id] = _run(claim, seed, setting)
        except (Interrupted, KeyboardInterrupt) as stop:
            told = f"{str(stop) or 'stopped'} in {claim.id}; the same command goes on from there"
            click.echo(told, err=True)
            sys.exit(130)
        if not as_json:
            _tell(claim, results[claim.id])
    left = [claim.id for claim in selected if claim.id not in results]
    if left and not as_json:
        told = "not run, because they take longer (--all, or by name):"
        click.echo(f"{told} {' '.join(left)}", err=True)
    if as_json:
        records = [
            {"id": key, "group": CLAIMS[key].group, "statement": CLAIMS[key].statement}
            | {"source": CLAIMS[key].source, "cost": CLAIMS[key].cost, "seed": seed}
            | verdict.as_json()
            for key, verdict in results.items()
        ]
        click.echo(json.dumps(records, ensure_ascii=False, indent=1))
    if write is not None:
        _write_document(write, results, setting)


def _run(claim: Claim, seed: int, setting: Setting) -> Verdict:
    import torch

    from whence.lab.claims import generator_for

    threads = torch.get_num_threads()
    if claim.cost in CHEAP:
        torch.set_num_threads(1)  # thousands of small products: a second thread only waits
    try:
        return claim.check(generator_for(claim.id, seed), setting)
    finally:
        torch.set_num_threads(threads)


def _tell(claim: Claim, verdict: Verdict) -> None:
    click.echo(f"{claim.id}: {verdict.label}")
    click.echo(f"    {claim.statement}")
    for measure in verdict.measures:
        click.echo(f"    - {measure}{'' if measure.kept else '  (not kept)'}")
    if verdict.samples:
        click.echo(f"    - samples: {verdict.samples:,}")
    if verdict.finding:
        click.echo(f"    {verdict.finding}")


def _write_document(path: Path, results: dict[str, Verdict], setting: Setting) -> None:
    """Fresh results go in as they are; those not made each time go into the record as well."""
    from whence.files import write_text
    from whence.lab import document
    from whence.lab.claims import CLAIMS
    from whence.lab.svg import render

    record = document.read_record(path)
    entries = []
    for claim in CLAIMS.values():
        verdict = results.get(claim.id)
        if claim.cost in CHEAP:
            verdict = verdict or _run(claim, 0, setting)
            entries.append(document.fresh(claim, verdict))
            continue
        if verdict is not None:
            kind, where = "", ""
            if claim.cost == "expensive":
                kind = setting.corpus.partition(":")[0]
                where = " --corpus course:FOLDER" if kind == "course" else f" --corpus {kind}"
            made = f"made by `whence claims {claim.id}{where}`, seed 0, on {_where()}"
            record.setdefault(claim.id, {})[kind] = document.to_record(claim, verdict, made)
            if verdict.figure is not None:
                picture = document.figure_path(path, document.picture_name(claim, kind))
                write_text(picture, render(verdict.figure))
        entries += document.recorded(claim, record)
    document.write(entries, record, path)


def _where() -> str:
    """The machine, for results that depend on it."""
    from whence.run import machine, versions

    return f"{machine()['cpu']}, torch {versions()['torch']}"


def _check(path: Path) -> None:
    """Runs what is quick, takes the rest from the record, and compares."""
    from whence.lab import document
    from whence.lab.claim import Setting
    from whence.lab.claims import CLAIMS

    if not path.exists():
        raise WhenceError(f"{path} does not exist: run {document.COMMAND}")
    record = document.read_record(path)
    entries = []
    for claim in CLAIMS.values():
        if claim.cost in CHEAP:
            entries.append(document.fresh(claim, _run(claim, 0, Setting())))
        else:
            entries += document.recorded(claim, record)
    stale = document.differences(entries, path)
    for line in stale[:10]:
        click.echo(line, err=True)
    if stale:
        click.echo(f"{path} is stale: run {document.COMMAND}", err=True)
        sys.exit(1)
    click.echo(f"{path} is up to date")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--template",
    is_flag=False,
    flag_value=NEWEST_VERSION,
    metavar="[YEAR]",
    help="Write an empty answer file for a yearly version (2021 ... 2026, reading).",
)
@click.option("--rubric", type=click.Path(path_type=Path), help="Points per part, as TOML.")
@click.option("--write-rubric", is_flag=True, help="Write the rubric in use, to be changed.")
@click.option("--json", "as_json", is_flag=True, help="Everything that was found, as JSON.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="A table, one line a file (a folder's default)."
)
@click.option("--output", type=click.Path(path_type=Path), help="Write there instead of stdout.")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes; all cores by default.")
def grade(
    paths: tuple[Path, ...],
    template: str | None,
    rubric: Path | None,
    write_rubric: bool,
    as_json: bool,
    as_csv: bool,
    output: Path | None,
    workers: int | None,
) -> None:
    """Grade written answers: files, or folders of them.

    \b
    whence grade --template 2022 --output answers.toml
    whence grade answers.toml
    whence grade submissions/ --output points.csv

    Each formula is checked on a thousand random instances and comes out as right, right under a
    condition, or wrong with the smallest counter-example found. Ends with 2 if a file cannot be
    read; the others are graded all the same.
    """
    from whence.lab.grader.answers import Rubric, read_rubric, rubric_text
    from whence.lab.grader.answers import template as template_text

    if template is not None:
        if paths or as_json or as_csv:
            raise WhenceError("--template writes an answer file and takes no other argument")
        if output is not None and output.exists():
            raise WhenceError(f"{output} exists; it may hold answers, so it is not overwritten")
        _write(template_text(template), output)
        return
    points = read_rubric(rubric) if rubric else Rubric()
    if write_rubric:
        if paths or as_json or as_csv:
            raise WhenceError("--write-rubric writes a rubric and grades nothing")
        _write(rubric_text(points), output)
        return
    if not paths:
        raise WhenceError("give an answer file or a folder of them, or --template to start one")
    if as_json and as_csv:
        raise WhenceError("--json and --csv exclude each other")
    from whence.lab.grader import grade as grading

    files = grading.find_files(paths)
    if output is not None:
        refuse_overwriting(output, *files, rubric)
    submissions = list(grading.grade_files(files, points, workers))
    table = as_csv or (any(path.is_dir() for path in paths) and not as_json)
    if as_json:
        records = [submission.as_json() for submission in submissions]
        _write(json.dumps(records, ensure_ascii=False, indent=1) + "\n", output)
    elif table:
        _write(grading.as_csv(submissions), output)
    else:
        readable = [submission for submission in submissions if not submission.error]
        _write("\n".join(grading.as_text(submission) for submission in readable), output)
    unread = [submission for submission in submissions if submission.error]
    for submission in unread[:20]:
        click.echo(submission.error, err=True)
    if unread:
        if len(submissions) > 1:
            click.echo(f"{len(unread)} of {len(submissions)} files could not be read", err=True)
        sys.exit(2)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        from whence.files import write_text

        write_text(output, text)
