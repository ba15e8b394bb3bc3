"""Free memory goes back to the system when the process has grown, and not otherwise."""

from __future__ import annotations

import ctypes

import pytest

from whence import heap
from whence.heap import GROWTH, Heap

ROOM = heap.ROOM["float32"]


def test_it_is_given_back_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [ROOM], []

    def give_back() -> None:
        given.append(now[0])
        now[0] = int(0.9 * now[0])

    monkeypatch.setattr(heap, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(heap, "resident", lambda: now[0])
    monkeypatch.setattr(heap, "give_back", give_back)
    watched = Heap("float32")
    watched.tidy_if_grown()
    assert not given  # nobody minds
    now[0] = ROOM + 1
    watched.tidy_if_grown()
    assert given == [ROOM + 1]
    watched.tidy_if_grown()
    assert len(given) == 1
    # What simply needs more is not asked to give back at every step.
    now[0] = 10 * ROOM
    watched.tidy_if_grown()
    now[0] = int(GROWTH * 9 * ROOM) - 1000
    watched.tidy_if_grown()
    assert len(given) == 2
    now[0] = 10 * GROWTH * ROOM
    watched.tidy_if_grown()
    assert len(given) == 3


def test_it_is_not_given_back_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step fetches what it needs again: to give that back each time would be all for nothing."""
    given: list[int] = []
    monkeypatch.setattr(heap, "resident", lambda: 2 * ROOM)
    monkeypatch.setattr(heap, "give_back", lambda: given.append(1))
    watched = Heap("float32")
    for _ in range(50):
        watched.limit = ROOM  # as if half of it had been free
        watched.tidy_if_grown()
    assert len(given) == 1


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="asks glibc")
def test_holes_are_given_back() -> None:
    """Blocks too small to be given back by themselves, with others between them that stay."""
    heap.give_back()
    blocks, kept = [], []
    for _ in range(2000):
        blocks.append(bytearray(60_000))
        kept.append(bytearray(5_000))
        blocks[-1][::4096] = b"x" * len(blocks[-1][::4096])
    full = heap.resident()
    blocks.clear()
    held = heap.resident()
    assert held > full - (40 << 20)  # they are free, and not given back
    heap.give_back()
    assert heap.resident() < held - (60 << 20)
    assert len(kept) == 2000


def test_where_the_system_does_not_say_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.heap.Path", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert heap.resident() == 0
    watched = Heap("float32")
    monkeypatch.setattr(heap, "give_back", lambda: pytest.fail("nothing has grown"))
    watched.tidy_if_grown()
