"""Files that are whole or absent: temporary file, fsync, rename; and one process a directory."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from whence.errors import WhenceError

LOCK = ".lock"
TEMPORARY = ".tmp"


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Call `write` on a temporary file beside `path`, then put it in place in one step.

    A reader sees the old content or the new one, never a part, whatever kills the process; a full
    disk leaves the old file untouched. What a link points to is replaced, not the link; a device
    or a pipe is written to as it is.
    """
    if path.is_dir():
        raise WhenceError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        try:
            with open(path, "wb") as stream:
                write(stream)
        except OSError as error:
            raise WhenceError(f"cannot write {path}: {error.strerror or error}") from error
        return
    path = path.resolve() if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # it may not even have a folder
            temporary.unlink()
        if isinstance(error, OSError):
            raise WhenceError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(content)

    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WhenceError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise WhenceError(f"{path}: not JSON: {error}") from error


def read_fields(path: Path, *names: str) -> dict[str, Any]:
    """A JSON object that has to have these fields, or it was not written by us, or is damaged."""
    found = read_json(path)
    for name in names:
        if not isinstance(found, dict) or name not in found:
            raise WhenceError(f"{path} is damaged: it has no {name!r}")
    return dict(found)


def same_file(one: Path, other: Path | None) -> bool:
    """Whether writing to the one would overwrite the other."""
    return other is not None and one.exists() and other.exists() and one.samefile(other)


def refuse_overwriting(target: Path, *sources: Path | None) -> None:
    """A slip on the command line must not cost the file that is read."""
    for source in sources:
        if same_file(target, source):
            raise WhenceError(f"{target} is read by this command: give another file to write")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """JSON lines: one object a line, for other tools to read."""
    write_text(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one JSON object to a log. A line cut short by a kill is dropped by `read_lines`."""
    try:
        with open(path, "ab") as stream:
            stream.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8"))
    except OSError as error:
        raise WhenceError(f"cannot write {path}: {error.strerror or error}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # what follows the last line end: nothing, or a line that a kill cut short
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise WhenceError(f"{path}:{number}: not JSON: {error}") from error
    return records


def is_traceless(path: Path) -> bool:
    """Whether a file holds nothing of anybody's: a lock, or what a killed process half wrote."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(TEMPORARY))


def remove_temporary(folder: Path) -> None:
    """Call it only while holding the folder: nobody else is writing then."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder; looking leaves no trace."""
    try:
        with open(folder / LOCK) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock(stream: TextIO) -> None:
    """At once, or almost: `is_held` may be looking, which takes it for a moment."""
    for _ in range(10):
        with suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; a second process is told who has it.

    The lock belongs to the open file: it goes away with the process, however that ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = open(folder / LOCK, "a+")  # noqa: SIM115
    except OSError as error:
        raise WhenceError(f"cannot write {folder}: {error.strerror or error}") from error
    with stream:
        try:
            _lock(stream)
        except OSError:
            stream.seek(0)
            owner = stream.read().strip() or "another process"
            raise WhenceError(f"{folder} is in use by {owner}: wait for it or stop it") from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()}")
        stream.flush()
        yield
