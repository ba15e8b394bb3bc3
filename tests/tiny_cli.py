"""The command line within the tests' own process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from whence.cli import main


def call(*arguments: str | Path) -> Result:
    """The command within this process: the same, without two seconds for torch."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(result: Result, *wanted: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("whence: ")
    for part in wanted:
        assert part in result.stderr
