"""Files are whole or absent, whatever happens; a folder belongs to one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny import environment
from whence.errors import WhenceError
from whence.files import (
    append_line,
    exclusive,
    is_held,
    is_traceless,
    read_json,
    read_lines,
    remove_temporary,
    write_atomically,
    write_bytes,
    write_json,
    write_lines,
    write_text,
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(value=values)
def test_json_comes_back(folder: Path, value: object) -> None:
    write_json(folder / "value.json", value)
    assert read_json(folder / "value.json") == value


@given(records=st.lists(st.dictionaries(texts, values, max_size=3), max_size=5), cut=st.integers(0))
def test_a_log_loses_at_most_the_line_that_was_cut(
    folder: Path, records: list[dict[str, object]], cut: int
) -> None:
    """Whatever moment the process is killed in: lines that are complete are all read."""
    path = folder / "log.jsonl"
    path.unlink(missing_ok=True)
    for record in records:
        append_line(path, record)
    assert read_lines(path) == records
    whole = path.read_bytes() if records else b""
    part = whole[: cut % (len(whole) + 1)]
    path.write_bytes(part)
    assert read_lines(path) == records[: part.count(b"\n")]
    write_lines(path, records)
    assert read_lines(path) == records


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(WhenceError, match=r"log\.jsonl:2: not JSON"):
        read_lines(path)


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("small_disk", [256], indirect=True)
def test_a_full_disk_is_one_sentence_and_the_old_file_stays(small_disk: Path) -> None:
    path = small_disk / "weights"
    write_bytes(path, b"old" * 1000)
    with pytest.raises(WhenceError, match="weights: No space left on device"):
        write_bytes(path, b"new" * 1_000_000)
    assert path.read_bytes() == b"old" * 1000
    assert [p.name for p in small_disk.iterdir()] == ["weights"]
    with pytest.raises(WhenceError, match="No space left on device"):
        for _ in range(1000):
            append_line(small_disk / "log", {"x": "y" * 1000})
    assert all(record == {"x": "y" * 1000} for record in read_lines(small_disk / "log"))


def test_a_file_larger_than_allowed_is_one_sentence(tmp_path: Path) -> None:
    """The same without being root: the process may write 64 KiB at most."""
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from whence.files import write_bytes\n"
        "from whence.errors import WhenceError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "path = Path(sys.argv[1])\n"
        "write_bytes(path, b'old')\n"
        "try:\n"
        "    write_bytes(path, b'x' * 100000)\n"
        "except WhenceError as error:\n"
        "    sys.exit(str(error))\n"
    )
    path = tmp_path / "file"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.stderr.strip() == f"cannot write {path}: File too large"
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_a_killed_writer_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    program = (
        "import sys\nfrom pathlib import Path\nfrom whence.files import write_bytes\n"
        "for number in range(10**9):\n"
        "    write_bytes(Path(sys.argv[1]), bytes([65 + number % 26]) * 300000)\n"
    )
    for delay in (0.0, 0.003, 0.01, 0.02, 0.05):
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)], env=environment())
        while not path.exists():
            time.sleep(0.001)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 300000 and len(set(content)) == 1
    assert all(is_traceless(p) for p in tmp_path.iterdir() if p != path)
    remove_temporary(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WhenceError, match="cannot write"):
        write_text(tmp_path / "file" / "below", "x")
    with pytest.raises(WhenceError, match="cannot write"):
        append_line(tmp_path / "nowhere" / "log", {})
    with (
        pytest.raises(WhenceError, match="cannot write"),
        exclusive(tmp_path / "file"),
    ):
        pass
    with pytest.raises(WhenceError, match="No such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "nan.json", float("nan"))
    assert not (tmp_path / "nan.json").exists()


def test_json_for_machines_is_also_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"place": "Malmö"})
    assert "Malmö" in (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "x.json").read_bytes()) == {"place": "Malmö"}


def hold(folder: Path, ready: str, go: str) -> None:
    with exclusive(folder):
        Path(ready).touch()
        while not Path(go).exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_folder_is_held_by_one_process_until_that_ends_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert not is_held(folder)
    context = multiprocessing.get_context("spawn")
    ready, go = tmp_path / "ready", tmp_path / "go"
    holder = context.Process(target=hold, args=(folder, str(ready), str(go)))
    holder.start()
    while not ready.exists():
        time.sleep(0.005)
    assert is_held(folder)
    with (
        pytest.raises(
            WhenceError, match=rf"in use by process {holder.pid}: wait for it or stop it"
        ),
        exclusive(folder),
    ):
        pass
    go.touch()
    holder.join()
    assert holder.exitcode == -signal.SIGKILL
    assert not is_held(folder)
    with exclusive(folder):
        assert is_held(folder)
    assert not is_held(folder)


def test_links_are_followed_and_devices_written_to(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    write_text(link, "through")
    assert link.is_symlink() and target.read_text() == "through"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_text(pipe, "along")
    assert reader.communicate()[0] == "along" and pipe.is_fifo()
    write_text(Path("/dev/null"), "away")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(WhenceError, match="cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "nowhere")
    assert Path("/dev/full").is_char_device()


def test_a_folder_is_no_file_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("."), tmp_path):
        with pytest.raises(WhenceError, match="it is a folder"):
            write_text(path, "x")
    assert not list(tmp_path.iterdir())
