"""Tasks side by side: one lane a processor core, each computing with one thread.

Two threads that share every matrix product wait for each other after each of them, and what is no
product (drawing coins, copies, Python itself) is done by one while the other waits. Two lanes with
half of the rows each wait once, at the end: a seventh more characters a second in training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import TracebackType

import torch

# Multiplications by the blocks' matrices that are worth a lane, forward. With fewer, lanes mostly
# wait for Python, which runs one of them at a time (measured at 0.2 and 3 thousand millions).
WORTH = 10**9


class Lanes:
    """Runs tasks on `count` threads of its own; with one lane, on the caller's.

    `least`: positions that are worth a lane (see `worth`).
    """

    def __init__(self, count: int, least: int = 1) -> None:
        self.count, self.least = count, least
        self.pool: ThreadPoolExecutor | None = None
        if count == 1:
            return
        self.pool = ThreadPoolExecutor(count, "lane")
        threads = torch.get_num_threads()
        # Nobody leaves before all have come, so that each is a thread of its own.
        ready = Barrier(count)

        def enter() -> None:
            torch.get_num_threads()  # a thread that has not asked is given the last number set
            torch.set_num_threads(1)
            ready.wait()

        try:
            for lane in [self.pool.submit(enter) for _ in range(count)]:
                lane.result()
        except BaseException:  # those that wait for a thread that cannot be had
            ready.abort()
            self.pool.shutdown(cancel_futures=True)
            raise
        torch.set_num_threads(threads)

    def run(self, tasks: Sequence[Callable[[], None]], at_once: int) -> None:
        """All of the tasks, begun in their order.

        `at_once`: how many of them are worth a lane. One alone has all of the caller's threads.
        """
        if self.pool is None or at_once < 2:
            for task in tasks:
                task()
            return
        waiting = deque(self.pool.submit(task) for task in tasks)
        while waiting:
            waiting.popleft().result()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def worth(matrices: Iterable[torch.nn.Parameter]) -> int:
    """How many positions of a model with these parameters in its blocks are worth a lane."""
    return WORTH // max(1, sum(parameter.numel() for parameter in matrices)) + 1
