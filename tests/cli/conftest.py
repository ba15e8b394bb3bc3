"""A recipe on the tiny course, and its finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tiny import recipe, write_recipe
from tiny_cli import call


@pytest.fixture(scope="session")
def recipe_path(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = recipe(corpus={"name": f"course:{course}"})
    return write_recipe(tmp_path_factory.mktemp("recipes") / "tiny.toml", config)


@pytest.fixture(scope="session")
def finished(recipe_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    result = call("train", recipe_path, "--out", path)
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"
