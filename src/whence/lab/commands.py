"""`whence claims` and `whence grade`; numpy and torch are loaded only when a command runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from whence.errors import WhenceError

NEWEST_VERSION = "2026"


@click.command()
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
        click.echo(f"{len(unread)} of {len(submissions)} files could not be read", err=True)
        sys.exit(2)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        from whence.files import write_text

        write_text(output, text)
