"""How far a training is: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

BAR = 24


class Progress:
    """Rewrites one line on a terminal; elsewhere prints a line every few seconds."""

    def __init__(self, title: str, stream: TextIO | None = None, every: float = 5.0) -> None:
        self.title = title
        self.stream = stream or sys.stderr
        self.bar = self.stream.isatty()
        self.every = 0.2 if self.bar else every
        self.last = -1e9
        self.width = 0

    def update(
        self,
        *,
        stage: str,
        step: int,
        share: float,
        seconds: float,
        loss: float,
        speed: float,
        score: float | None,
        force: bool = False,
    ) -> None:
        now = time.monotonic()
        if now - self.last < self.every and not force:
            return
        self.last = now
        left = clock(seconds * (1 - share) / share) if share > 0.01 else "?"
        dev = f"dev {score:.1f} %" if score is not None else "dev -"
        numbers = f"loss {loss:.3f}  {speed:,.0f} characters/s  {dev}  {left} left"
        if self.bar:
            full = round(BAR * min(share, 1.0))
            drawn = "█" * full + "·" * (BAR - full)
            self._rewrite(f"{self.title} {stage} {drawn} {100 * share:3.0f} %  {numbers}")
        else:
            self.say(f"{self.title} {stage} step {step} {100 * share:.0f} %  {numbers}")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.bar and self.width:
            self._rewrite("")
        print(line, file=self.stream, flush=True)
        self.width = 0

    def close(self) -> None:
        if self.bar and self.width:
            self._rewrite("")

    def _rewrite(self, line: str) -> None:
        # A line that wraps could not be written over: the return goes to its last row only.
        line = line[: shutil.get_terminal_size().columns - 1]
        # Blanks over what a longer line left; a carriage return instead of a line end.
        self.stream.write("\r" + line.ljust(self.width) + ("\r" if not line else ""))
        self.stream.flush()
        self.width = len(line)


def clock(seconds: float) -> str:
    """75 -> 1:15."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
