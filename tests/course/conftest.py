"""Small corpora, checkpoints trained by the textbook, and a way to run `whence course`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from course_folder import SHAPE, Folder, train_textbook, write_folder

import textbook


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path)


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[textbook.TextbookGPT, Path]]:
    """A variant trained by the textbook, and its checkpoint; made once a session."""
    made: dict[str, tuple[textbook.TextbookGPT, Path]] = {}

    def make(variant: str) -> tuple[textbook.TextbookGPT, Path]:
        if variant not in made:
            path = tmp_path_factory.mktemp(f"textbook-{variant}")
            data = write_folder(path)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                shape = textbook.Shape(vocabulary=len(data.vocabulary), variant=variant, **SHAPE)
                model = train_textbook(textbook.TextbookGPT(shape), data, steps=40)
            checkpoint = path / f"{variant}.params"
            torch.save(model.state_dict(), checkpoint)
            made[variant] = model, checkpoint
        return made[variant]

    return make


@pytest.fixture
def whence() -> Callable[..., Result]:
    """Runs `whence course ARGUMENTS`; fails on an error unless `code` says which is expected."""
    from whence.cli import main

    def run(*arguments: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["course", *map(str, arguments)])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run
