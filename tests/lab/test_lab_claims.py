"""The claims come out as the documents' table says, whatever the seed; the document is what they
say."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner

from whence.errors import WhenceError
from whence.lab.claim import Measure, Verdict, judge, number
from whence.lab.claims import CLAIMS, chosen, generator_for
from whence.lab.commands import claims as command
from whence.lab.svg import Bars, Cells, Dots, Figure, Line, Panel, render

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "copy-1": "holds",
    "copy-2": "holds",
    "avg-1": "holds",
    "avg-2": "fails",
    "avg-3": "holds",
    "one-1": "holds if C sqrt(alpha) is small",
    "one-2": "holds",
    "one-3": "fails",
    "two-1": "holds if C eps is large",
    "two-2": "fails",
    "two-3": "fails",
    "kqv-1": "holds if beta is large",
    "kqv-2": "holds",
    "kqv-3": "holds",
    "kqv-4": "holds",
    "perm-1": "holds",
    "rope-1": "holds",
    "lin-3": "holds if it is read as projecting the finished weights",
    "perf-3": "holds",
    "perf-4": "holds",
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("id", EXPECTED)
def test_the_exploration_comes_out_as_expected(id, seed):
    verdict = CLAIMS[id].check(generator_for(id, seed))
    assert verdict.label.startswith(EXPECTED[id])
    assert all(measure.kept for measure in verdict.measures), verdict.measures
    assert verdict.samples >= 50 and verdict.finding
    assert EXPECTED[id] == "fails" or verdict.label != "fails"


def test_every_claim_of_the_documents_has_an_id():
    kinds = {"copy": 2, "avg": 3, "one": 3, "two": 3, "kqv": 4, "perm": 1, "rope": 1}
    kinds |= {"know": 9, "lin": 3, "big": 3, "perf": 4}
    wanted = [f"{kind}-{number + 1}" for kind, count in kinds.items() for number in range(count)]
    assert [*CLAIMS] == [*wanted, "bigbird-turing", "bigbird-universal"]
    quick = {id for id, claim in CLAIMS.items() if claim.cost == "quick"}
    assert quick == set(EXPECTED)


def test_the_same_seed_gives_the_same_numbers():
    first = CLAIMS["two-1"].check(generator_for("two-1", 3))
    second = CLAIMS["two-1"].check(generator_for("two-1", 3))
    assert first == second


def test_what_cannot_be_run_says_so():
    for id in ("bigbird-turing", "bigbird-universal"):
        assert CLAIMS[id].check(generator_for(id, 0)).label == "not checkable by running"


def test_a_broken_bound_turns_the_verdict():
    good, bad = Measure("x", 1.0, "<=", 2.0), Measure("x", 3.0, "<=", 2.0)
    assert judge([good], 1, "").label == "holds"
    assert judge([good, bad], 1, "").label == "fails"
    assert judge([good], 1, "", expected=False).label == "fails"
    assert judge([good], 1, "", condition="C is large").label == "holds if C is large"
    assert judge([bad], 1, "", condition="C is large").label == "fails"
    assert not Measure("x", float("nan"), "<=", 2.0).kept
    assert not Measure("x", float("nan"), "~", 2.0, 1.0).kept


def test_numbers_are_told_shortly():
    assert [number(x) for x in (0.0, 1e-13, 0.12345, 1234.0, 1.5e9)] == [
        "0",
        "rounding",
        "0.123",
        "1,234",
        "1.5e+09",
    ]
    assert number(float("nan")) == "not a number" and number(float("inf")) == "infinite"


def test_claims_are_chosen_by_id_or_kind():
    assert [claim.id for claim in chosen(["two"])] == ["two-1", "two-2", "two-3"]
    assert [claim.id for claim in chosen(["rope-1", "two-2", "two"])][:2] == ["rope-1", "two-2"]
    with pytest.raises(WhenceError, match="did you mean copy-1"):
        chosen(["copi-1"])


def test_the_command_tells_and_gives_json():
    result = CliRunner().invoke(command, ["one-3", "copy"])
    assert result.exit_code == 0 and "one-3: fails" in result.output
    result = CliRunner().invoke(command, ["two-2", "--json", "--seed", "5"])
    record = json.loads(result.output)[0]
    assert record["verdict"] == "fails" and record["seed"] == 5
    assert record["measured"][0]["bound"] == 1e-15
    listed = CliRunner().invoke(command, ["--list"]).output
    assert all(id in listed for id in CLAIMS)


@pytest.fixture
def few_claims(monkeypatch):
    """A document of five claims is written as one of forty, only sooner."""
    few = ("copy-1", "avg-2", "two-1", "two-2", "bigbird-turing")
    monkeypatch.setattr("whence.lab.claims.CLAIMS", {id: CLAIMS[id] for id in few})


def test_writing_checking_and_going_stale(tmp_path, few_claims):
    path = tmp_path / "claims.md"
    assert CliRunner().invoke(command, ["--write", str(path)]).exit_code == 0
    first = path.read_text()
    assert CliRunner().invoke(command, ["--check", str(path)]).exit_code == 0
    assert CliRunner().invoke(command, ["--write", str(path)]).exit_code == 0
    assert path.read_text() == first  # deterministic
    for picture in (tmp_path / "figures" / "claims").glob("*.svg"):
        ElementTree.fromstring(picture.read_text())
        assert picture.name in first
    path.write_text(first.replace("22.", "23.", 1) if "22." in first else first)
    assert CliRunner().invoke(command, ["--check", str(path)]).exit_code == 0  # another machine
    path.write_text(first.replace("**fails**", "**holds**", 1))
    stale = CliRunner().invoke(command, ["--check", str(path)])
    assert stale.exit_code == 1 and "stale" in stale.stderr
    path.write_text(first)
    next((tmp_path / "figures" / "claims").glob("two-1.svg")).unlink()
    assert CliRunner().invoke(command, ["--check", str(path)]).exit_code == 1


def test_the_committed_document_is_up_to_date():
    result = CliRunner().invoke(command, ["--check", str(ROOT / "docs" / "claims.md")])
    assert result.exit_code == 0, result.stderr


def test_the_command_refuses_what_makes_no_sense(tmp_path):
    for arguments in (
        ["one", "--check", "x.md"],
        ["--check", "no.md"],
        ["--seed", "1", "--write", "x.md"],
    ):
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, WhenceError), arguments


def test_importing_the_commands_does_not_load_torch():
    code = "import sys, whence.lab.commands; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures_are_well_formed_whatever_the_numbers():
    marks = [
        Line([1, 2, 3], [1e-30, 5.0, float("inf")], "a < b & c"),
        Line([1, 2], [0.0, 0.0], dashed=True),
        Dots([1.0], [2.0], "dots"),
        Bars([0, 1, 2], [3, 4]),
        Cells([1, 2], [1, 10], [[0, 1], [2, -1]]),
    ]
    for log in (False, True):
        panels = [Panel("t", "x", "y", [mark], log_x=log, log_y=log) for mark in marks]
        panels.append(Panel("all", "x", "y", marks[:3], log_y=log))
        root = ElementTree.fromstring(render(Figure("caption <&>", panels)))
        assert root.tag.endswith("svg")
        assert "nan" not in render(Figure("", panels))


def test_verdict_as_json_is_plain():
    text = json.dumps(Verdict(True, (Measure("x", float("inf")),)).as_json(), allow_nan=False)
    assert '"value": null' in text
