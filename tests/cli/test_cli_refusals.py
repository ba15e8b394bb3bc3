"""The command line: every bad input is one sentence, and nothing is lost or half-written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny import (
    NAMES,
    assert_refused,
    environment,
    whence,
    write_course,
)
from tiny_cli import call, refused
from whence.files import read_lines
from whence.run import TRAINING
from whence.study import study_of_run


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["train", "x.toml", "--otu", "y"], "No such option"),
        (["trian", "x.toml"], "No such command 'trian'"),
        (["train"], "Missing argument 'RECIPE'"),
        (["ask", "run"], "Missing argument"),
        (["evaluate", "run", "--split", "all"], "'all' is not one of 'train', 'dev', 'test'"),
    ],
)
def test_a_misspelt_command_line(arguments: list[str], wanted: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert wanted in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("model.widht=3", "unknown key 'model.widht': did you mean 'width'?"),
        ("model.width=wide", "model.width must be a whole number, not 'wide'"),
        ("model.attention=sofmax", "unknown attention 'sofmax'"),
        ("model.options.window=3", "attention 'softmax' has no option 'window'"),
        ("model.options.qknorm=true", "no option 'qknorm' (did you mean 'qk_norm'?)"),
        ("train.threads=3000000000", "train.threads must be at most 1024"),
        ("stages.pretrain.mixture={span=1.0}", "unknown objective 'span'"),
        ("corpus.name=moon", "unknown corpus 'moon'"),
        ("corpus.name=course:/no/such/folder", "/no/such/folder"),
        ("corpus.people=3", "no option 'people'"),
        ("train.steps=-1", "train.steps must not be negative"),
        ("nonsense", "--set wants key=value"),
    ],
)
def test_a_bad_recipe_is_one_sentence_and_leaves_nothing(
    setting: str, wanted: str, recipe_path: Path, tmp_path: Path
) -> None:
    result = call("train", recipe_path, "--out", tmp_path / "run", "--set", setting)
    refused(result, wanted)
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there(tmp_path: Path, finished: Path) -> None:
    nowhere = tmp_path / "nowhere"
    refused(call("train", nowhere), f"cannot read {nowhere}: No such file or directory")
    for command in (["resume"], ["evaluate"], ["ask", "Ada"], ["export", "x"]):
        name, *rest = command
        refused(call(name, nowhere, *rest), f"{nowhere} is not a run directory")
    refused(call("ls", nowhere), "is not a folder")
    refused(call("report", nowhere), str(nowhere))
    refused(
        call("evaluate", finished, "--predictions", finished / "config.toml" / "p.txt"),
        "cannot write",
    )


def test_questions_that_cannot_be_asked(finished: Path) -> None:
    refused(call("ask", finished, "Ada Ω"), "is not in the vocabulary", "U+03A9")
    refused(call("ask", finished, "Where was Ada Dunn born"), "has no question mark; did you mean")
    refused(call("ask", finished, "A" * 200), "the model sees 63")
    refused(call("ask", finished, "Ada ⁇"), "special character")


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["another model", "truncated", "malicious", "empty", "gone"])
def test_a_spoilt_model_is_one_sentence(how: str, run: Path, tmp_path: Path) -> None:
    path = run / "checkpoints" / "model.safetensors"
    if how == "another model":
        save_file({"head.weight": torch.zeros(3, 3)}, path)
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif how == "malicious":
        path.write_bytes(pickle.dumps(Malice(tmp_path / "trapped")))
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    for command in (["ask", run, "Ada"], ["evaluate", run], ["export", run, tmp_path / "out"]):
        refused(call(*command), str(run))
    assert not (tmp_path / "trapped").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["another model", "truncated", "malicious", "empty"])
def test_a_spoilt_training_state_is_one_sentence(how: str, run: Path, tmp_path: Path) -> None:
    (run / "evaluation.json").unlink()  # not finished: the state is what it goes on from
    path = run / TRAINING
    torch.save({"model": {"head.weight": torch.zeros(3)}, "clock": {}}, path)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif how == "malicious":
        torch.save({"model": Malice(tmp_path / "trapped")}, path)
    elif how == "empty":
        path.write_bytes(b"")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    for command in (["resume", run], ["ask", run, "Ada"]):
        result = call(*command)
        assert result.exit_code == 2 and str(path) in result.stderr.splitlines()[-1]
        assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "trapped").exists()
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    assert before == after


def test_a_broken_log_or_vocabulary_is_named(run: Path) -> None:
    (run / "vocab.json").write_text('["a"]')
    refused(call("ask", run, "Ada"), "vocab.json: a vocabulary starts with")
    for line in ("{}", "[1]", '{"step": "1"}'):
        (run / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
        refused(call("report", run), "metrics.jsonl:2: not a line of a training's log")
    (run / "metrics.jsonl").write_text("{}\nnonsense\n")
    (run / "evaluation.json").unlink()
    listed = call("ls", run)
    assert listed.exit_code == 0 and "damaged" in listed.stdout.splitlines()[1]
    assert "metrics.jsonl:2: not JSON" in listed.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_same_sentences_from_real_processes(recipe_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_refused(
        whence("train", recipe_path, "--out", out, "--set", "model.widht=3"), "did you mean 'width'"
    )
    assert_refused(whence("train", recipe_path, "--out", out, "--corpus", "moon"), "unknown corpus")
    assert_refused(whence("resume", out), "is not a run directory")
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ask", "help"])
def test_a_full_output_is_one_sentence(finished: Path, what: str) -> None:
    arguments = {"ask": ["ask", str(finished), NAMES[0]], "help": ["--help"]}[what]
    command = [sys.executable, "-m", "whence.cli", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
        )
    assert done.returncode == 2
    assert done.stderr == "whence: disk: No space left on device\n"


def more_than_there_is(*_: object, **__: object) -> None:
    torch.empty(1 << 60, dtype=torch.uint8)  # beyond any address space: torch's own error


def test_no_memory_is_one_sentence(
    recipe_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whence.pipeline.begin", more_than_there_is)
    refused(call("train", recipe_path, "--out", tmp_path / "run"), "not enough memory")


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", [48], indirect=True)
def test_a_full_disk_loses_nothing(recipe_path: Path, finished: Path, small_disk: Path) -> None:
    """Training stops with one sentence; with room again it goes on to the same result."""
    run = small_disk / "run"
    done = whence("train", recipe_path, "--out", run, "--set", "train.save_seconds=0.0")
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("whence: cannot write") and last.endswith("No space left on device")
    assert not list(run.rglob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    done = whence("resume", run)
    assert done.returncode == 0, done.stderr
    weights = "checkpoints/model.safetensors"
    assert (run / weights).read_bytes() == (finished / weights).read_bytes()
    assert read_lines(run / "answers.jsonl") == read_lines(finished / "answers.jsonl")


def test_the_model_of_another_run_is_not_asked(
    run: Path, recipe_path: Path, tmp_path: Path
) -> None:
    """Weights, their settings and the vocabulary belong together."""
    vocab = run / "vocab.json"
    characters = json.loads(vocab.read_text(encoding="utf-8"))
    vocab.write_text(json.dumps([*characters, "Ω"]), encoding="utf-8")
    refused(call("ask", run, "Ada"), "holds the model of another run")
    vocab.write_text(json.dumps(characters), encoding="utf-8")
    other = tmp_path / "other"
    call("train", recipe_path, "--out", other, "--set", "model.heads=1")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    refused(call("evaluate", run), "holds the model of another run")


def test_broken_weights_are_not_asked(run: Path) -> None:
    path = run / "checkpoints" / "model.safetensors"
    state = load_file(path)
    save_file({name: tensor * torch.nan for name, tensor in state.items()}, path)
    refused(call("ask", run, "Ada"), "holds weights that are NaN or infinite")


@pytest.mark.parametrize("name", ["evaluation.json", "origin.json"])
def test_a_damaged_record_is_named(name: str, run: Path) -> None:
    (run / name).write_text("{}")
    commands = {"evaluation.json": ("resume", "report"), "origin.json": ("report",)}
    for command in commands[name]:
        refused(call(command, run), f"{name} is damaged: it has no")


def test_a_damaged_run_does_not_hide_the_others(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "runs" / "good")
    shutil.copytree(run, tmp_path / "runs" / "bad")
    (tmp_path / "runs" / "bad" / "evaluation.json").write_text("{}")
    lines = call("ls", tmp_path / "runs").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["bad", "damaged"], ["good", "finished"]]
    assert "evaluation.json is damaged: it has no 'accuracy'" in lines[3]


def test_a_terminal_that_cannot_show_a_character_is_named(course: Path) -> None:
    command = [sys.executable, "-m", "whence.cli", "course", "dataset", "namedata"]
    done = subprocess.run(
        [*command, "--corpus", str(course / "wiki.txt")],
        cwd=course, capture_output=True, text=True, check=False,
        env=environment() | {"PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("whence: ") and "cannot be written in latin-1" in done.stderr


def test_a_training_question_that_cannot_be_asked_is_named(
    recipe_path: Path, course: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(course, tmp_path / "course")
    train = mine / "birth_places_train.tsv"
    lines = train.read_text(encoding="utf-8").splitlines()
    lines[2] = f"Where was {'Ada ' * 40}born?\tRome"
    train.write_text("\n".join(lines), encoding="utf-8")
    refused(
        call("train", recipe_path, "--corpus", f"course:{mine}", "--out", tmp_path / "run"),
        "birth_places_train.tsv:3: ", "is longer than the block",
    )  # fmt: skip


def test_a_corpus_that_has_changed_is_not_gone_on_with(run: Path, course: Path) -> None:
    (run / "evaluation.json").unlink()
    origin = json.loads((run / "origin.json").read_text(encoding="utf-8"))
    (run / "origin.json").write_text(json.dumps({**origin, "content": "of another text"}))
    result = call("resume", run)
    assert result.exit_code == 2 and "asked about have changed" in result.stderr


def test_a_corpus_is_kept_with_its_full_path(
    recipe_path: Path, course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(course.parent)
    for number, change in enumerate((f"course:{course.name}", "course")):
        monkeypatch.setenv("WHENCE_COURSE", course.name)
        out = tmp_path / str(number)
        result = call("train", recipe_path, "--out", out, "--set", f"corpus.name={change}")
        assert result.exit_code == 0, result.stderr
        assert f'"course:{course.resolve()}"' in (out / "config.toml").read_text()


def test_a_rate_that_breaks_the_weights_has_no_score(recipe_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for stage, wanted in (
        (1, "the weights are not finite after step 2"),
        (0, "the weights are not finite before it"),
    ):
        changes = ("--set", f"stages.{stage}.rate=1e38", "--set", "train.steps=2")
        result = call("train", recipe_path, "--out", out, *changes)
        assert result.exit_code == 2
        last = result.stderr.strip().splitlines()[-1]
        assert wanted in last and "the rate may be too high" in last
        shutil.rmtree(out)


@pytest.mark.parametrize("file", ["birth_dev.tsv", "birth_test_inputs.tsv"])
def test_a_question_that_cannot_be_spelled_is_found_before_training(
    file: str, recipe_path: Path, course: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "course"
    shutil.copytree(course, folder)
    first = NAMES[0] if file == "birth_dev.tsv" else NAMES[1]
    answer = "\tParis" if file == "birth_dev.tsv" else ""
    (folder / file).write_text(
        f"Where was {first} born?{answer}\nWhere was Ω born?{answer}\n", encoding="utf-8"
    )
    result = call("train", recipe_path, "--out", tmp_path / "run", "--corpus", f"course:{folder}")
    refused(result, f"{file}:2: character 'Ω'")
    assert not (tmp_path / "run").exists()


def test_predictions_do_not_overwrite_what_is_read(finished: Path, tmp_path: Path) -> None:
    for target in (finished / "config.toml", finished / "answers.jsonl"):
        before = target.read_bytes()
        for option in ("--predictions", "--answers"):
            refused(call("evaluate", finished, option, target), "is read by this command")
        assert target.read_bytes() == before
    questions = write_course(tmp_path / "course") / "birth_dev.tsv"
    other = ("evaluate", finished, "--corpus", f"course:{questions.parent}")
    refused(call(*other, "--predictions", questions), "is read by this command")
    archive = Path(shutil.make_archive(str(tmp_path / "course"), "zip", questions.parent))
    before = archive.read_bytes()
    zipped = ("evaluate", finished, "--corpus", f"course:{archive}")
    refused(call(*zipped, "--predictions", archive), "is read by this command")
    assert archive.read_bytes() == before
    one = tmp_path / "one.txt"
    both = ("--predictions", one, "--answers", one)
    refused(call("evaluate", finished, *both), "would both write")
    assert not one.exists()


def test_a_report_does_not_overwrite_what_it_shows(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "answers.jsonl"):
        before = (run / name).read_bytes()
        refused(call("report", run, "--out", run / name), "is read by this command")
        assert (run / name).read_bytes() == before
    study = tmp_path / "study.json"
    study.write_text(json.dumps(study_of_run(run)))
    refused(call("report", study, "--out", study), "is read by this command")
    assert call("report", study, "--out", tmp_path / "page.html").exit_code == 0


def test_a_question_of_another_folder_is_refused_with_its_line(
    finished: Path, tmp_path: Path
) -> None:
    folder = write_course(tmp_path / "course")
    text = (folder / "birth_dev.tsv").read_text(encoding="utf-8")
    (folder / "birth_dev.tsv").write_text(text + "Where was Ωmega born?\tRome\n", encoding="utf-8")
    number = text.count("\n") + 1
    result = call("evaluate", finished, "--corpus", f"course:{folder}")
    refused(result, f"birth_dev.tsv:{number}: character 'Ω'")


def test_a_recipe_that_is_nested_too_deep(tmp_path: Path) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text("seed = " + "[" * 5000 + "]" * 5000)
    refused(call("train", deep), "too deep in each other")
