"""The files of a folder or of a zip, by name; a zip is read in memory and never unpacked."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from whence.corpus.reading import read_bytes
from whence.errors import WhenceError

# Far above any course file, far below what fills a small machine.
LARGEST_MEMBER = 256 * 2**20
MOST_MEMBERS = 10_000

Reader = Callable[[], bytes]


def find_files(path: Path, names: Collection[str]) -> Mapping[str, tuple[str, Reader]]:
    """Which of `names` are there: name to (how to call it in errors, how to read it)."""
    if path.is_dir():
        return files_of_folder(path, names)
    if path.is_file():
        return files_of_zip(path, names)
    raise WhenceError(f"{path}: there is no such folder or zip file")


def files_of_folder(folder: Path, names: Collection[str]) -> Mapping[str, tuple[str, Reader]]:
    def reader(file: Path) -> Reader:
        return lambda: read_bytes(file)

    found = {
        name: (str(folder / name), reader(folder / name))
        for name in names
        if (folder / name).is_file()
    }
    if not found:
        inner = sorted(
            child.name
            for child in folder.iterdir()
            if child.is_dir() and any((child / name).is_file() for name in names)
        )
        hint = f"; they are in {folder / inner[0]}" if inner else ""
        raise WhenceError(f"{folder}: expected at least one of {', '.join(names)}{hint}")
    return found


def files_of_zip(path: Path, names: Collection[str]) -> Mapping[str, tuple[str, Reader]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises a dozen kinds on damaged or crafted files
        raise WhenceError(f"{path}: expected a folder or a zip file ({error})") from error
    if len(members) > MOST_MEMBERS:
        raise WhenceError(f"{path}: {len(members):,} files in one zip, at most {MOST_MEMBERS:,}")
    folders: dict[PurePosixPath, dict[str, zipfile.ZipInfo]] = {}
    for member in members:
        # zipfile already turned a backslash into a slash where the system uses backslashes.
        inside = PurePosixPath(member.filename.replace("\\", "/"))
        drive = ":" in "".join(inside.parts[:1])
        if inside.is_absolute() or drive or ".." in inside.parts:
            raise WhenceError(f"{path}: the zip holds a path outside itself: {member.filename!r}")
        # macOS adds a shadow of every file; it is not what the user means.
        if inside.name not in names or member.is_dir() or "__MACOSX" in inside.parts:
            continue
        files = folders.setdefault(inside.parent, {})
        if inside.name in files:
            raise WhenceError(f"{path}: the zip holds {member.filename!r} twice")
        files[inside.name] = member
    if not folders:
        raise WhenceError(f"{path}: expected at least one of {', '.join(names)} in the zip")
    if len(folders) > 1:
        listed = ", ".join(sorted(str(folder) for folder in folders))
        raise WhenceError(f"{path}: expected the files in one folder of the zip, not in {listed}")
    files = next(iter(folders.values()))
    return {
        name: (f"{path}/{member.filename}", zip_reader(path, member))
        for name, member in files.items()
    }


def zip_reader(path: Path, member: zipfile.ZipInfo) -> Reader:
    def read() -> bytes:
        where = f"{path}/{member.filename}"
        if stat.S_ISLNK(member.external_attr >> 16):
            raise WhenceError(f"{where}: expected a file, this is a symbolic link")
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                return read_bounded(stream, where)
        except WhenceError:
            raise
        except Exception as error:  # as above; a missing password and a bad checksum too
            raise WhenceError(f"{where}: cannot be unpacked ({error})") from error

    return read


def read_bounded(stream: IO[bytes], where: str) -> bytes:
    """All that is unpacked, up to a bound: the size that an archive claims may be a lie."""
    data = stream.read(LARGEST_MEMBER + 1)
    if len(data) > LARGEST_MEMBER:
        raise WhenceError(f"{where}: larger than {LARGEST_MEMBER // 2**20} MiB when unpacked")
    return data
