"""Answer files and rubrics: small TOML files, read strictly."""

from __future__ import annotations

import difflib
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import WhenceError
from whence.lab.grader.parts import PARTS, VERSIONS, Part

HUGE = 1e30  # a bare number beyond which nothing is an answer
LARGEST = 32_768  # bytes of an answer file: fifty times an honest one


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """What a student handed in: part -> key -> expression, as text; empty ones left out."""

    path: Path
    version: str
    student: str
    answers: Mapping[str, Mapping[str, str]]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts asked for by the version; without one, those that are answered."""
        return VERSIONS[self.version] if self.version else tuple(self.answers)


@dataclass(frozen=True, slots=True)
class Rubric:
    """Points per part, and the share of them for an answer that is right only under a condition."""

    points: float = 1.0
    conditional: float = 0.5
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def out_of(self, part: str) -> float:
        return self.parts.get(part, {}).get("points", self.points)

    def earned(self, part: str, outcome: str) -> float:
        share = {
            "right": 1.0,
            "right if": self.parts.get(part, {}).get("conditional", self.conditional),
        }
        return self.out_of(part) * share.get(outcome, 0.0)


def read_answers(path: Path) -> AnswerFile:
    """The answers in a file; raises `WhenceError` with one sentence about what is wrong with it."""
    document = _read(path)
    version = document.pop("version", "")
    version = _written(version)
    if not isinstance(version, str) or (version and version not in VERSIONS):
        raise WhenceError(f"{path}: version must be one of {', '.join(VERSIONS)}")
    student = document.pop("student", "")
    if not isinstance(student, str):
        raise WhenceError(f"{path}: student must be a text")
    asked = VERSIONS[version] if version else tuple(PARTS)
    answers = {}
    for name, table in document.items():
        if name not in asked:
            where = f"version {version}" if version else "any version"
            raise WhenceError(
                f"{path}: there is no part {_short(name)} in {where}{_near(name, asked)}"
            )
        given = _part_answers(path, PARTS[name], table)
        if given:
            answers[name] = given
    return AnswerFile(path, version, student, answers)


def _part_answers(path: Path, part: Part, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        raise WhenceError(f'{path}: write [{part.id}] and below it {part.answers[0]} = "..."')
    given = {}
    for key, value in table.items():
        if key not in part.answers:
            near = _near(key, part.answers)
            raise WhenceError(f"{path}: [{part.id}] has no answer {_short(key)}{near}")
        value = _written(value)
        if not isinstance(value, str):
            raise WhenceError(f"{path}: [{part.id}] {key} must be a formula in quotes")
        if value.strip():
            given[key] = value
    return given


def _written(value: Any) -> Any:
    """A bare number as text. Huge ones have no digits that Python would print, and no meaning."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and abs(value) < HUGE else value


def read_rubric(path: Path) -> Rubric:
    """A rubric: `points`, `conditional`, and `[parts.NAME]` tables with the same two keys."""
    document = _read(path)
    parts = document.pop("parts", {})
    if not isinstance(parts, dict):
        raise WhenceError(f"{path}: write [parts.NAME] and below it points = ...")
    top = _numbers(path, "", document)
    tables = {}
    for name, table in parts.items():
        if name not in PARTS:
            raise WhenceError(f"{path}: there is no part {_short(name)}{_near(name, PARTS)}")
        if not isinstance(table, dict):
            raise WhenceError(f"{path}: [parts.{name}] must be a table")
        tables[name] = _numbers(path, f"[parts.{name}] ", table)
    return Rubric(top.get("points", 1.0), top.get("conditional", 0.5), tables)


def _numbers(path: Path, where: str, table: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for key, value in table.items():
        if key not in ("points", "conditional"):
            near = _near(key, ("points", "conditional", "parts"))
            raise WhenceError(f"{path}: {where}has no setting {_short(key)}{near}")
        limit = 1.0 if key == "conditional" else 1e6
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
            raise WhenceError(f"{path}: {where}{key} must be a number from 0 to {limit:g}")
        numbers[key] = float(value)
    return numbers


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise WhenceError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > LARGEST:
        raise WhenceError(f"{path}: larger than {LARGEST} bytes")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise WhenceError(f"{path}: not UTF-8 text (byte {error.start + 1})") from None
    except tomllib.TOMLDecodeError as error:
        # The commonest mistake, and the parser's words for it do not say what to do.
        advice = "; a text stands in quotes" if "Invalid value" in str(error) else ""
        raise WhenceError(f"{path}: not TOML: {error}{advice}") from None
    except (RecursionError, ValueError) as error:
        raise WhenceError(f"{path}: not TOML: {type(error).__name__}") from None


def _short(name: str) -> str:
    return repr(name[:40])


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:40], list(known), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def template(version: str) -> str:
    """An empty answer file for one yearly version."""
    if version not in VERSIONS:
        near = _near(version, VERSIONS)
        raise WhenceError(f"there is no version {_short(version)}{near}")
    lines = [
        "# Fill in the formulas and run: whence grade THIS_FILE",
        "# Vectors are columns. + - * / ** and parentheses as usual, @ multiplies vectors and "
        "matrices,",
        "# .T transposes; sqrt exp log sin cos abs norm outer dot inv eye are functions, pi and e "
        "numbers.",
        f'version = "{version}"',
        'student = ""',
    ]
    for name in VERSIONS[version]:
        part = PARTS[name]
        lines += ["", f"[{name}]"]
        lines += textwrap.wrap(
            part.question, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        lines.append(f"# Names: {' '.join(part.names)}")
        lines += [f'{key} = ""' for key in part.answers]
    return "\n".join(lines) + "\n"


def rubric_text(rubric: Rubric) -> str:
    """A rubric file that says what the given rubric does, to be changed by a teacher."""
    lines = [
        "# Points for a right answer, and the share of them for one that is right only under a "
        "condition.",
        f"points = {rubric.points:g}",
        f"conditional = {rubric.conditional:g}",
        "# A part of its own: write its table.",
    ]
    for name in PARTS:
        table = rubric.parts.get(name, {})
        lines += ["", f"[parts.{name}]", f"points = {table.get('points', rubric.points):g}"]
        lines.append(f"conditional = {table.get('conditional', rubric.conditional):g}")
    return "\n".join(lines) + "\n"
