"""bfloat16 is tried in a process of its own before it is used, and where it is used it is close."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny import recipe
from tiny_runs import train_tiny
from whence import precision
from whence.errors import WhenceError
from whence.precision import Trial, confirm, products, try_bfloat16
from whence.run import Run

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    try_bfloat16.cache_clear()
    yield
    try_bfloat16.cache_clear()


def silent(line: str) -> None:
    raise AssertionError(f"nothing was to be said: {line}")


def test_a_real_trial_measures_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    trial = try_bfloat16(1)
    assert "a file of the user" not in trial.failure
    assert (trial.gain > 0) != bool(trial.failure)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (DIES, "SIGILL"),
        ("raise SystemExit('no such instruction')", "no such instruction"),
        ('print(\'{"gain": 2.0, "wrong": 0.5}\')', "wrong by 50.0%"),
        ('print(\'{"gain": 2.0, "wrong": NaN}\')', "wrong by nan%"),
        ("print('[]')", "nothing"),
        ("import time; time.sleep(60)", "more than 1 s"),
    ],
)
def test_a_trial_that_fails_is_a_reason_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(precision, "TRIAL", script)
    if "sleep" in script:
        monkeypatch.setattr(precision, "PATIENCE", 1.0)
    assert said in try_bfloat16(1).failure
    lines: list[str] = []
    assert confirm("auto", "", lines.append) == "float32"
    assert len(lines) == 1 and said in lines[0]
    with pytest.raises(WhenceError, match="do not work on this machine"):
        confirm("bfloat16", "", silent)
    with pytest.raises(WhenceError, match="do not work on this machine"):
        confirm("auto", "bfloat16", silent)  # begun on another machine


def test_no_python_to_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "could not be started" in try_bfloat16(1).failure


@pytest.mark.parametrize(("gain", "chosen"), [(2.1, "bfloat16"), (1.1, "float32")])
def test_auto_takes_what_pays(monkeypatch: pytest.MonkeyPatch, gain: float, chosen: str) -> None:
    monkeypatch.setattr(precision, "try_bfloat16", lambda threads: Trial(gain=gain))
    lines: list[str] = []
    assert confirm("auto", "", lines.append) == chosen
    assert f"{gain} times as fast" in lines[0]


def test_a_training_goes_on_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "try_bfloat16", lambda threads: Trial(gain=0.1))
    assert confirm("auto", "bfloat16", silent) == "bfloat16"
    monkeypatch.setattr(precision, "try_bfloat16", lambda threads: Trial(gain=9.0))
    assert confirm("auto", "float32", silent) == "float32"


def test_float32_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "try_bfloat16", lambda threads: 1 / 0)
    assert confirm("float32", "", silent) == "float32"


def test_products_are_rounded_only_where_asked() -> None:
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with products("float32"):
        assert (a @ b).dtype == torch.float32
    with products("bfloat16"):
        assert (a @ b).dtype == torch.bfloat16


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_training_in_bfloat16_is_near_and_says_so(tmp_path: Path, optimizer: str) -> None:
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    stage = {"name": "pretrain", "steps": 8, "batch": 512, "optimizer": optimizer}
    losses = {}
    for kind in ("float32", "bfloat16"):
        config = recipe(train__precision=kind, train__save_seconds=0.0, stages=[stage])
        model, log = train_tiny(tmp_path / kind, config)
        saved = Run.open(tmp_path / kind).latest()
        assert saved is not None and saved["clock"]["precision"] == kind
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
        losses[kind] = [line["loss"] for line in log if "loss" in line][-1]
    assert losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
