"""Grading: one file to a list of findings with points, many files to a table, in parallel."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import WhenceError
from whence.lab.grader.answers import AnswerFile, Rubric, read_answers
from whence.lab.grader.finding import Finding, Wrong
from whence.lab.grader.grammar import Refused, parse
from whence.lab.grader.parts import PARTS

FEW = 16  # files below which starting processes costs more than it saves


@dataclass(frozen=True, slots=True)
class Grade:
    """One part of one submission."""

    part: str
    finding: Finding
    points: float
    out_of: float
    answers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submission:
    """One file: its grades, or the sentence that says why it could not be read."""

    path: str
    version: str = ""
    student: str = ""
    grades: tuple[Grade, ...] = ()
    error: str = ""

    @property
    def points(self) -> float:
        return sum(grade.points for grade in self.grades)

    @property
    def out_of(self) -> float:
        return sum(grade.out_of for grade in self.grades)

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "version": self.version,
            "student": self.student,
            "points": self.points,
            "out_of": self.out_of,
            "error": self.error,
            "parts": [
                {"part": grade.part, "points": grade.points, "out_of": grade.out_of}
                | {"answers": grade.answers}
                | asdict(grade.finding)
                for grade in self.grades
            ],
        }


def judge_part(name: str, answers: dict[str, str]) -> Finding:
    """The finding for one part: key -> expression, as text."""
    return _judged(name, tuple(sorted(answers.items())))


@lru_cache(maxsize=4096)
def _judged(name: str, items: tuple[tuple[str, str], ...]) -> Finding:
    part, answers = PARTS[name], dict(items)
    if not answers:
        return Finding("missing")
    lacking = [key for key in part.answers if key not in answers]
    if lacking:
        return Finding("missing", hint=f"{' and '.join(lacking)} not given")
    parsed = {}
    for key in part.answers:
        try:
            parsed[key] = parse(answers[key], part.names)
        except Refused as refused:
            return Finding("refused", example=f"{key} = {answers[key]}", shown=str(refused))
    try:
        # Overflow and division by zero are findings about the answer, not news for the terminal.
        with np.errstate(all="ignore"):
            return part.judge(parsed)
    except Wrong as wrong:
        return wrong.finding


def grade(submission: AnswerFile, rubric: Rubric) -> Submission:
    grades = []
    for name in submission.parts:
        answers = dict(submission.answers.get(name, {}))
        finding = judge_part(name, answers)
        earned = rubric.earned(name, finding.outcome)
        grades.append(Grade(name, finding, earned, rubric.out_of(name), answers))
    return Submission(str(submission.path), submission.version, submission.student, tuple(grades))


def grade_file(path: Path, rubric: Rubric) -> Submission:
    """A file's grades; a file that cannot be read becomes a submission with an error."""
    try:
        return grade(read_answers(path), rubric)
    except WhenceError as error:
        return Submission(str(path), error=str(error))


def _grade_one(task: tuple[str, Rubric]) -> Submission:
    return grade_file(Path(task[0]), task[1])


def grade_files(
    paths: Sequence[Path], rubric: Rubric, workers: int | None = None
) -> Iterator[Submission]:
    """The submissions in the order of `paths`, graded by several processes where that pays."""
    count = workers or min(os.cpu_count() or 1, 8)
    if count == 1 or len(paths) < FEW:
        for path in paths:
            yield grade_file(path, rubric)
        return
    tasks = [(str(path), rubric) for path in paths]
    chunk = max(1, min(32, len(tasks) // (4 * count)))
    # Fresh processes: a fork would copy the threads of whatever the caller has loaded.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_grade_one, tasks, chunksize=chunk)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Files as they are; of folders all *.toml below them, sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*.toml") if each.is_file())
            if not inside:
                raise WhenceError(f"{path}: there is no .toml file in this folder")
            found += inside
        else:
            found.append(path)
    return found


def as_csv(submissions: Sequence[Submission]) -> str:
    """One line a submission: points, and for each part outcome and points."""
    asked = {grade.part for submission in submissions for grade in submission.grades}
    parts = [name for name in PARTS if name in asked]
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    header = ["file", "student", "version", "points", "out_of", "error"]
    table.writerow(header + [column for name in parts for column in (name, f"{name}_points")])
    for submission in submissions:
        row = [submission.path, submission.student, submission.version]
        row += [f"{submission.points:g}", f"{submission.out_of:g}", submission.error]
        grades = {grade.part: grade for grade in submission.grades}
        for name in parts:
            one = grades.get(name)
            row += [one.finding.outcome, f"{one.points:g}"] if one else ["", ""]
        table.writerow([_harmless(cell) for cell in row])
    return stream.getvalue()


def _harmless(cell: str) -> str:
    """A cell that a spreadsheet will not run as a formula: students choose names and file names."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def as_text(submission: Submission) -> str:
    """What a student reads."""
    if submission.error:
        return submission.error + "\n"
    lines = []
    for grade in submission.grades:
        finding = grade.finding
        verdict = (
            f"right if {finding.condition}" if finding.outcome == "right if" else finding.outcome
        )
        lines.append(f"{grade.part}: {verdict}  [{grade.points:g}/{grade.out_of:g}]")
        lines += [f"    {key} = {text}" for key, text in grade.answers.items()]
        if finding.outcome == "refused":
            lines.append(f"    {finding.shown}")
        elif finding.outcome == "wrong":
            if finding.example:
                lines.append(f"    counter-example: {finding.example}")
            lines.append(f"    it shows: {finding.shown}")
        if finding.hint:
            lines.append(f"    hint: {finding.hint}")
        if finding.outcome in ("right", "right if"):
            lines.append(f"    checked on {finding.instances:,} random instances")
    lines.append(f"{submission.path}: {submission.points:g} of {submission.out_of:g} points")
    return "".join(f"{_visible(line)}\n" for line in lines)


def _visible(line: str) -> str:
    """Line ends and terminal codes of an answer are shown and not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
