"""One thread, no deadlines, and a flag that is the only way to change a golden file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import tiny

# What gates main is repeatable; `--hypothesis-profile=explore` looks for what nobody thought of.
settings.register_profile("whence", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile("whence")
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-golden",
        action="store_true",
        help="write tests/golden/*.json anew instead of comparing with them",
    )


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the course's files about 24 people; nobody writes into it."""
    return tiny.write_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def corpus() -> tiny.TinyCorpus:
    return tiny.TinyCorpus()


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real file system of `request.param` KiB; where it cannot be mounted, the test says so."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("NOT ROOT: no small disk could be mounted")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
