"""Killed, stopped, in use by another, or with a strange checkpoint: nothing is lost or mixed up."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny import (
    TinyCorpus,
    assert_refused,
    environment,
    recipe,
    whence,
    write_recipe,
)
from tiny_runs import assert_same_run, quiet, timeless, train_tiny
from whence.errors import WhenceError
from whence.precision import try_bfloat16
from whence.progress import Progress
from whence.recipe import from_table, to_table
from whence.run import TRAINING, Run
from whence.train import Interrupted, build_model, train
from whence.vocab import Vocab


@pytest.fixture(scope="module")
def long_recipe(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred steps with dropout, two optimizers and a checkpoint after every step."""
    config = recipe(
        corpus={"name": f"course:{course}"},
        train={"evaluations": 4, "threads": 1, "save_seconds": 0.0},
        stages=[
            {"name": "pretrain", "steps": 70, "batch": 512, "mixture": {"spans": 3, "picked": 1}},
            {
                "name": "finetune",
                "epochs": 30.0,
                "batch": 256,
                "mixture": {"questions": 1.0},
                "optimizer": "muon",
            },
        ],
    )
    return write_recipe(tmp_path_factory.mktemp("recipes") / "long.toml", config)


@pytest.fixture(scope="module")
def uninterrupted(long_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "uninterrupted"
    done = whence("train", long_recipe, "--out", path)
    assert done.returncode == 0, done.stderr
    return path


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "whence.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def wait_for_steps(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    log = run / "metrics.jsonl"
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= steps:
            return
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_at_random_moments_the_result_is_the_same(
    long_recipe: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """kill -9 again and again, from the very first moments on; resume; bit for bit the same."""
    moments = random.Random(os.getpid())
    run = tmp_path / "killed"
    process = start("train", long_recipe, "--out", run)
    kills = 0
    while kills < 4:
        if kills == 0:  # as soon as there is a run at all
            while not (run / "config.toml").exists() and process.poll() is None:
                time.sleep(0.001)
        else:
            log = run / "metrics.jsonl"
            before = log.read_bytes().count(b"\n") if log.exists() else 0
            wait_for_steps(process, run, before + moments.randrange(1, 30))
        time.sleep(moments.random() * 0.02)
        process.kill()
        process.communicate()
        kills += 1
        if (run / "evaluation.json").exists():
            break
        process = start("resume", run)
    _, error = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), error
    if process.returncode:
        assert whence("resume", run).returncode == 0
    assert_same_run(uninterrupted, run)
    assert not list(run.rglob(".*.tmp")) and not (run / TRAINING).exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    number: signal.Signals, long_recipe: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "stopped"
    process = start("train", long_recipe, "--out", run)
    wait_for_steps(process, run, 20)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in error
    assert f"go on with: whence resume {run}" in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("stopped at step ")
    step = int(error.splitlines()[-1].split()[3].rstrip(";"))
    state = Run.open(run).latest()
    assert state is not None and state["clock"]["step"] == step
    done = whence("resume", run)
    assert done.returncode == 0, done.stderr
    assert_same_run(uninterrupted, run)


def stopping(step: int) -> Any:
    """A progress that sends this process a signal at a step."""

    class Stopping(Progress):
        def update(self, **shown: Any) -> None:
            if shown["step"] == step:
                os.kill(os.getpid(), signal.SIGTERM)

    return Stopping("test", io.StringIO())


@pytest.mark.parametrize("step", [1, 5, 8, 9, 13])
@pytest.mark.parametrize("rule", ["adamw", "muon", "muon and a memory", "muon in bfloat16"])
def test_stopped_at_any_step_the_result_is_the_same(rule: str, step: int, tmp_path: Path) -> None:
    """In the first step, at the end of a stage, in the next one: in this process."""
    config = recipe()
    table = to_table(config)
    for stage in table["stages"]:
        stage["optimizer"] = rule.split()[0]
    table["model"]["memory"] = 64 if "memory" in rule else 0
    if "bfloat16" in rule:
        if try_bfloat16(1).failure:
            pytest.skip("this machine has no bfloat16 products")
        table["train"]["precision"] = "bfloat16"
    config = from_table(table)
    expected, metrics = train_tiny(tmp_path / "whole", config)
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    run = Run.create(tmp_path / "stopped", config)
    with pytest.raises(Interrupted, match=f"stopped at step {step}"):
        train(run, corpus, vocab, build_model(config, vocab), stopping(step))
    again = build_model(config, vocab)
    clock = train(Run.open(run.path), corpus, vocab, again, quiet())
    assert clock.step == 14
    whole, resumed = expected.state_dict(), again.state_dict()  # with a memory's counts
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
    assert timeless(run.metrics()) == timeless(metrics)


def test_handlers_of_signals_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train_tiny(tmp_path / "run", recipe())
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.slow
def test_two_processes_in_one_run_directory(course: Path, tmp_path: Path) -> None:
    config = recipe(
        corpus={"name": f"course:{course}"},
        train={"evaluations": 0, "threads": 1, "seconds": 600.0},
        stages=[{"name": "pretrain", "batch": 256, "mixture": {"spans": 1.0}}],
    )
    path = write_recipe(tmp_path / "recipe.toml", config)
    run = tmp_path / "run"
    first = start("train", path, "--out", run)
    wait_for_steps(first, run, 2)
    before = (run / "config.toml").read_bytes()
    assert_refused(whence("resume", run), f"{run} is in use by process {first.pid}")
    assert_refused(whence("train", path, "--out", run), "holds a run already", "whence resume")
    listed = whence("ls", tmp_path)
    assert "running" in listed.stdout
    assert (run / "config.toml").read_bytes() == before
    first.send_signal(signal.SIGTERM)
    _, error = first.communicate(timeout=60)
    assert first.returncode == 130, error
    assert "interrupted" in whence("ls", tmp_path).stdout


@pytest.mark.parametrize("how", ["another width", "another optimizer", "not a state", "a list"])
def test_a_checkpoint_of_another_model_is_one_sentence(how: str, tmp_path: Path) -> None:
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    config = recipe()
    run = Run.create(tmp_path / "run", config)
    with pytest.raises(Interrupted):
        train(run, corpus, vocab, build_model(config, vocab), stopping(3))
    state: Any = run.latest()
    if how == "another width":
        state["model"]["head.weight"] = torch.zeros(len(vocab), 99)
    elif how == "another optimizer":
        state["optimizers"] = state["optimizers"] * 2
    elif how == "not a state":
        state = {"weights": torch.zeros(3)}
    else:
        state = [1, 2]
    torch.save(state, run.path / TRAINING)
    with pytest.raises(WhenceError, match="does not belong to the model of this run") as error:
        train(run, corpus, vocab, build_model(config, vocab), quiet())
    assert "\n" not in str(error.value)
