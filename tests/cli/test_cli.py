"""The command line: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import (
    NAMES,
    SPLITS,
    environment,
    write_course,
)
from tiny_cli import call, refused
from whence import __version__
from whence.cli import main
from whence.files import read_json, read_lines
from whence.run import Run

REPOSITORY = Path(__file__).parents[2]


def test_help_does_not_load_torch() -> None:
    program = (
        "import sys\n"
        "from whence.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "loaded = {'torch', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "print(loaded, file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["train", "--help"], ["course", "--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True, text=True, env=environment(), check=True,
        )  # fmt: skip
        assert done.stderr == "set()\n"
        assert done.stdout


def test_version() -> None:
    assert call("--version").stdout == f"whence, version {__version__}\n"


def test_every_command_explains_itself() -> None:
    for name, command in main.commands.items():
        result = call(name, "--help")
        assert result.exit_code == 0 and command.help
        assert result.stdout.startswith(f"Usage: main {name}")


@pytest.mark.parametrize(
    ("tool", "build", "page"),
    [
        ("build_command_reference", "reference", "commands.md"),
        ("build_recipe_reference", "page", "recipes.md"),
    ],
)
def test_what_is_generated_is_in_step(
    tool: str, build: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    generated = runpy.run_path(str(REPOSITORY / "tools" / f"{tool}.py"))[build]()
    written = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    assert written == generated, f"python tools/{tool}.py writes it anew"


def test_training_prints_its_score_on_stdout_and_its_progress_on_stderr(
    recipe_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    result = call("train", recipe_path, "--out", path, "--set", "seed=5")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith(f"{path}: ") and "95 % interval" in result.stdout
    assert "softmax attention" in result.stderr and "step 1 " in result.stderr
    assert Run.open(path).config.seed == 5
    assert call("resume", path).stdout == result.stdout


def test_a_default_name_never_runs_into_an_older_run(recipe_path: Path, tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for expected in ("tiny", "tiny-2", "tiny-3"):
            result = call("train", recipe_path, "--set", "train.evaluations=0")
            assert result.stdout.startswith(f"runs/{expected}: ")
        listed = call("ls").stdout.splitlines()
        assert [line.split()[:2] for line in listed[1:]] == [
            [name, "finished"] for name in ("tiny", "tiny-2", "tiny-3")
        ]
    finally:
        os.chdir(before)


def test_evaluate(finished: Path, tmp_path: Path) -> None:
    score = json.loads(call("evaluate", finished, "--json").stdout)
    stored = read_json(finished / "evaluation.json")
    for key in ("correct", "total", "accuracy", "interval"):
        assert score[key] == stored[key]
    said = call("evaluate", finished, "--split", "train").stdout
    assert "of 12 right" in said
    predictions, answers = tmp_path / "p.txt", tmp_path / "a.jsonl"
    result = call(
        "evaluate", finished, "--split", "test", "--predictions", predictions, "--answers", answers
    )
    assert result.exit_code == 0
    lines = predictions.read_text(encoding="utf-8").split("\n")[:-1]
    assert lines == [record["answer"] for record in read_lines(answers)]
    assert len(lines) == len(SPLITS["test"])


def test_evaluate_in_other_words(finished: Path, tmp_path: Path) -> None:
    stored = read_json(finished / "evaluation.json")
    asked = json.loads(call("evaluate", finished, "--paraphrases", "--json").stdout)
    assert asked["forms"][0]["correct"] == stored["correct"]
    assert asked["trained"]["total"] == stored["total"]
    assert "of the pairs of forms" in call("evaluate", finished, "--paraphrases").stdout
    refused(
        call("evaluate", finished, "--paraphrases", "--predictions", tmp_path / "p.txt"),
        "--paraphrases prints a table",
    )


def test_evaluate_without_answers_claims_no_score(finished: Path, tmp_path: Path) -> None:
    folder = write_course(tmp_path / "course")
    (folder / "birth_test.tsv").write_text("Where was Ada Dunn born?\nWhere was Bo Dunn born?\n")
    asked = ("evaluate", finished, "--corpus", f"course:{folder}", "--split", "test")
    refused(call(*asked), "a score cannot be claimed")
    result = call(*asked, "--predictions", tmp_path / "p.txt")
    assert result.stdout == "2 questions answered; what is right is not known: no score\n"
    assert json.loads(call(*asked, "--json", "--predictions", tmp_path / "p.txt").stdout) == {
        "split": "test", "correct": None, "total": 2, "accuracy": None,
    }  # fmt: skip


def test_ask(finished: Path) -> None:
    lines = call("ask", finished, NAMES[0], f"Where was {NAMES[1]} born?").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == [f"Where was {n} born?" for n in NAMES[:2]]
    record = json.loads(call("ask", finished, NAMES[0], "--json").stdout)
    assert set(record) == {"question", "answer", "probability"}
    assert 0 < record["probability"] <= 1


def test_export_and_report(finished: Path, tmp_path: Path) -> None:
    result = call("export", finished, tmp_path / "model")
    assert result.exit_code == 0
    names = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert names == ["config.json", "model.safetensors", "vocab.json"]
    refused(call("export", finished, tmp_path / "model"), "already has model.safetensors")
    result = call("report", finished, "--out", tmp_path / "report.html")
    assert result.stdout == f"{tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_study(recipe_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    systems = (
        '\n[[study.systems]]\nname = "one"\n[[study.systems]]\nname = "two"\nset = { seed = 4 }\n'
    )
    text = recipe_path.read_text().partition("[study]")[0]
    path.write_text(text + "[study]\nbaselines = ['London']\n" + systems)
    result = call("study", path, "--out", tmp_path / "study")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["London", "one", "two"]
    assert lines[-1] == f"report: {tmp_path / 'study' / 'report.html'}"
    as_json = call("study", path, "--out", tmp_path / "study", "--json")
    assert [s["name"] for s in json.loads(as_json.stdout)["systems"]] == ["London", "one", "two"]
    assert call("report", tmp_path / "study").exit_code == 0
