"""Progress: a bar on a terminal, plain lines elsewhere, always stderr."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from whence.progress import Progress, clock

SHOWN: dict[str, Any] = {
    "stage": "pretrain",
    "step": 12,
    "share": 0.25,
    "seconds": 30.0,
    "loss": 2.5,
    "speed": 12345.6,
    "score": 17.25,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_a_plain_line() -> None:
    stream = io.StringIO()
    Progress("run", stream).update(**SHOWN)
    expected = "run pretrain step 12 25 %  loss 2.500  12,346 characters/s  dev 17.2 %  1:30 left\n"
    assert stream.getvalue() == expected


def test_lines_come_every_few_seconds_only() -> None:
    stream = io.StringIO()
    progress = Progress("run", stream)
    for step in range(100):
        progress.update(**{**SHOWN, "step": step})
    progress.update(**SHOWN, force=True)
    assert len(stream.getvalue().splitlines()) == 2


def test_on_a_terminal_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    progress = Progress("run", stream, every=0)
    progress.update(**SHOWN, force=True)
    progress.update(**{**SHOWN, "share": 0.001, "score": None, "loss": math.nan}, force=True)
    progress.say("a line that stays")
    progress.close()
    text = stream.getvalue()
    assert "██████··················  25 %" in text
    assert "dev -" in text and "? left" in text
    assert text.count("\n") == 1 and text.endswith("a line that stays\n")
    assert text.split("\r")[-1] == "a line that stays\n"


def test_a_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    stream = Terminal()
    Progress("a title that is long", stream, every=0).update(**SHOWN, force=True)
    assert len(stream.getvalue().strip("\r")) == 49


def test_it_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("run").say("hello")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "hello\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (75, "1:15"), (3599.6, "1:00:00"), (3725, "1:02:05"), (-3, "0:00")],
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
