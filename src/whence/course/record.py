"""What a training of `whence course` keeps in its folder beside a run's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.files import read_fields

COURSE = "course.json"  # the command, and whether it is finished


def course_record(run: Path) -> dict[str, Any] | None:
    """What the course's program wrote about this folder, if it is one of its trainings."""
    path = run / COURSE
    return read_fields(path, "finished", "command") if path.is_file() else None
