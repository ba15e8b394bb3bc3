"""Memory that is free goes back to the system while a training runs.

Batches of many shapes leave holes in the heap, which glibc keeps: 3.9 GB after half an hour of a
training that needs one. Giving them back costs some fifty milliseconds and the pages' being
fetched again, so it is done when the process has grown, and not more often than every few seconds.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

# Bytes up to which nobody minds. A training of the course in bfloat16 goes to 1,550 MiB at once; in
# float32 blocks are larger, and half a gigabyte more comes together before the next look.
ROOM = {"float32": 1400 << 20, "bfloat16": 1750 << 20}
GROWTH = 1.25  # times what was left after the last time, for what simply needs more
LEAST_SECONDS = 3.0  # from one time to the next


def resident() -> int:
    """Bytes of memory that this process has at the moment; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def give_back() -> None:
    with suppress(AttributeError, OSError):  # another C library has other habits
        ctypes.CDLL(None).malloc_trim(0)


class Heap:
    """Watches how much memory a training in this precision has, once a step."""

    def __init__(self, precision: str) -> None:
        self.room = self.limit = ROOM[precision]
        self.last = -LEAST_SECONDS

    def tidy(self) -> None:
        """Give free memory back now."""
        give_back()
        self.limit = max(self.room, int(GROWTH * resident()))
        self.last = time.monotonic()

    def tidy_if_grown(self) -> None:
        """After a step. What has just been given back is mostly fetched again by the next."""
        if time.monotonic() - self.last >= LEAST_SECONDS and resident() > self.limit:
            self.tidy()
