"""The checkpoints of a run: whole or refused, and never executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import recipe
from whence.errors import WhenceError
from whence.run import TRAINING, Run, load_state


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe())
    assert run.latest() is None
    state = {"model": {"a": torch.randn(5)}, "clock": {"loss": float("nan"), "step": 3}}
    run.save(state)
    loaded = run.latest()
    assert loaded is not None and torch.equal(loaded["model"]["a"], state["model"]["a"])
    assert loaded["clock"]["step"] == 3


class Malice:
    """What a hostile checkpoint would hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch", "pickle", "zip"])
def test_a_malicious_checkpoint_is_not_executed(how: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe())
    trap, path = tmp_path / "trapped", run.path / TRAINING
    path.parent.mkdir()
    if how == "pickle":
        path.write_bytes(pickle.dumps(Malice(trap)))
    else:
        torch.save({"model": Malice(trap)}, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(WhenceError, match="not a checkpoint that can be read safely") as error:
        run.latest()
    assert not trap.exists()
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@given(cut=st.integers(0, 3000), flip=st.integers(0, 3000))
@settings(max_examples=40)
def test_a_damaged_checkpoint_is_refused_or_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "state.pt"
    torch.save({"a": torch.arange(100.0)}, path)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: cut % len(content)])
    with pytest.raises(WhenceError, match="not a checkpoint that can be read safely"):
        load_state(path)
    content[flip % len(content)] ^= 0xFF
    path.write_bytes(content)
    try:
        load_state(path)
    except WhenceError as error:
        assert "\n" not in str(error)


def test_a_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match="no such file"):
        load_state(tmp_path / "none.pt")
