"""`docs/claims.md`: the verdicts, the numbers and the pictures, generated; and whether it is stale.

Claims that measure the clock or train models are not run again each time the document is written:
their last results are kept beside it in a JSON record, and come from there unless they were asked
for. A record whose check has changed since is stale: see `fingerprint.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from whence.errors import WhenceError
from whence.files import read_json, write_json, write_text
from whence.lab.claim import Claim, Measure, Verdict
from whence.lab.fingerprint import fingerprint
from whence.lab.svg import render

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
COMMAND = "whence claims --write docs/claims.md"


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim with one result; `None` where it was never run."""

    claim: Claim
    verdict: Verdict | None
    picture: str = ""  # name of the picture's file, without its ending
    caption: str = ""  # of a picture that lies on the disk already
    made: str = ""  # how a recorded result came about
    stale: str = ""  # why a recorded result is not the one that would be made now


def figure_path(document: Path, picture: str) -> Path:
    return document.parent / "figures" / "claims" / f"{picture}.svg"


def record_path(document: Path) -> Path:
    return document.with_suffix(".json")


def read_record(document: Path) -> dict[str, Any]:
    """What was measured or trained: claim -> corpus -> result."""
    path = record_path(document)
    return dict(read_json(path)) if path.exists() else {}


def fresh(claim: Claim, verdict: Verdict) -> Entry:
    return Entry(claim, verdict, claim.id)


def recorded(claim: Claim, record: Mapping[str, Any]) -> list[Entry]:
    """The results of a claim from the record, one for each corpus that it was run on."""
    entries = []
    for corpus, known in record.get(claim.id, {}).items():
        try:
            measures = tuple(
                Measure(m["name"], m["value"], m["relation"], m["bound"], m["tolerance"])
                for m in known["measured"]
            )
            verdict = Verdict(
                known["holds"], measures, known["samples"], known["condition"], known["finding"]
            )
            old = known["fingerprint"] != fingerprint(claim)
            stale = "its check or recipe has changed since it was run" if old else ""
            picture = picture_name(claim, corpus)
            entries.append(Entry(claim, verdict, picture, known["caption"], known["made"], stale))
        except (KeyError, TypeError, AttributeError) as error:
            raise WhenceError(f"the record of {claim.id} is damaged: {error!r}") from error
    return entries or [Entry(claim, None, stale="it was never run")]


def picture_name(claim: Claim, corpus: str) -> str:
    return claim.id if corpus in ("", "world") else f"{claim.id}-{corpus}"


def to_record(claim: Claim, verdict: Verdict, made: str) -> dict[str, Any]:
    """What is kept of a result that is not made each time."""
    return {
        "holds": verdict.holds,
        "condition": verdict.condition,
        "finding": verdict.finding,
        "samples": verdict.samples,
        "measured": [
            {
                "name": m.name,
                "value": m.value,
                "relation": m.relation,
                "bound": m.bound if m.relation else 0.0,  # JSON has no NaN
                "tolerance": m.tolerance,
            }
            for m in verdict.measures
            if m.value == m.value
        ],
        "caption": verdict.figure.caption if verdict.figure else "",
        "made": made,
        "fingerprint": fingerprint(claim),
    }


def markdown(entries: Iterable[Entry], document: Path) -> str:
    """The whole document as text."""
    groups: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        claims = groups.setdefault(entry.claim.group, {})
        claims.setdefault(entry.claim.id, []).append(entry)
    lines = [
        "# The claims",
        "",
        "The documents that Whence was founded on are written answers and results of a course. "
        "Each sentence of them that a program can check is run here, and comes out as *holds*, "
        "*fails* or *holds if ...*, with the measured number and the bound it was held against.",
        "",
        f"This file is written by `{COMMAND}` (`--all` also measures and trains again) and "
        "checked by `whence claims --check docs/claims.md`. `whence claims ID` runs one of them, "
        "`--json` gives everything to a program.",
        "",
        "Notation: c = sum_i a_i v_i, a = softmax over i of k_i.q; eps ~ N(1, 1/2) is the random "
        "length of k_a. A number called *rounding* is below 1e-11.",
        "",
    ]
    for group, claims in groups.items():
        lines += [f"## {group}", "", "| claim | | verdict |", "|---|---|---|"]
        for id, found in claims.items():
            labels = [each.verdict.label if each.verdict else "not run yet" for each in found]
            statement, verdict = found[0].claim.statement, "; ".join(dict.fromkeys(labels))
            lines.append(f"| [{id}](#{id}) | {_cell(statement)} | {_cell(verdict)} |")
        lines.append("")
        for found in claims.values():
            lines += _section(found, document)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(entries: Sequence[Entry], document: Path) -> list[str]:
    claim = entries[0].claim
    lines = [f"### {claim.id}", "", f"> {claim.statement}", ">", f"> ({claim.source})", ""]
    for entry in entries:
        verdict = entry.verdict
        if verdict is None:
            lines += [f"Not run yet: `whence claims {claim.id}`.", ""]
            continue
        lines += [f"**{verdict.label}**", ""]
        if verdict.finding:
            lines += [verdict.finding, ""]
        lines += [f"- {measure}" for measure in verdict.measures]
        if verdict.samples:
            lines.append(f"- samples: {verdict.samples:,}")
        if entry.made:
            lines.append(f"- {entry.made}")
        if lines[-1]:
            lines.append("")
        caption = verdict.figure.caption if verdict.figure else entry.caption
        if caption:
            place = figure_path(document, entry.picture).relative_to(document.parent).as_posix()
            lines += [f"![{_alt(caption)}]({place})", "", f"*{caption}*", ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _alt(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


def write(entries: Iterable[Entry], record: Mapping[str, Any], document: Path) -> None:
    """Document, pictures and record, each file whole or not at all."""
    entries = list(entries)
    for entry in entries:
        if entry.verdict is not None and entry.verdict.figure is not None:
            write_text(figure_path(document, entry.picture), render(entry.verdict.figure))
    if record:
        write_json(record_path(document), dict(sorted(record.items())))
    write_text(document, markdown(entries, document))


def differences(entries: Iterable[Entry], document: Path) -> list[str]:
    """What in the document and its pictures is not what would be written now.

    Numbers may differ by a twentieth: another processor rounds differently, and a sample mean then
    moves; what is rounding on one may be 0 on the other. Verdicts and words may not.
    """
    entries = list(entries)
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as error:
        raise WhenceError(f"cannot read {document}: {error.strerror or error}") from error
    found = [
        f"{entry.claim.id}: {entry.stale}: whence claims {entry.claim.id} --write {document}"
        for entry in entries
        if entry.stale
    ]
    found += _compare(markdown(entries, document), text, str(document))
    for entry in entries:
        if entry.verdict is None or not (entry.verdict.figure or entry.caption):
            continue
        path = figure_path(document, entry.picture)
        if not path.exists():
            found.append(f"{path}: missing")
        elif entry.verdict.figure is not None:
            drawn = path.read_text(encoding="utf-8")
            found += _compare(render(entry.verdict.figure), drawn, str(path), absolute=3.0)
    return found


def _compare(expected: str, actual: str, name: str, absolute: float = 1e-9) -> list[str]:
    for number, (wanted, found) in enumerate(
        zip_longest(expected.splitlines(), actual.splitlines(), fillvalue=""), start=1
    ):
        if wanted == found:
            continue
        wanted, found = (line.replace(": rounding", ": 0") for line in (wanted, found))
        same_words = _NUMBER.sub("#", wanted) == _NUMBER.sub("#", found)
        if not same_words or not all(
            abs(first - second) <= absolute + 0.05 * max(abs(first), abs(second))
            for first, second in zip(_numbers(wanted), _numbers(found), strict=True)
        ):
            return [f"{name}, line {number}: has {found[:160]!r}, expected {wanted[:160]!r}"]
    return []


def _numbers(text: str) -> list[float]:
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]
