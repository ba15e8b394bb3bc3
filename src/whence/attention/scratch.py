"""Memory for what lives only inside an operator, lent again and again.

What is freed at the end of the heap goes back to the system, and comes again page by page: causal
attention to 128 slots of 256 positions was 2,500 pages and three quarters of its time. So every
thread keeps one block, in which a walk lays out the arrays of a piece, and those of the next piece
over them. Nothing of it may leave the operator.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MOST = 32 << 20  # bytes that a thread keeps; whoever needs more gets it for the call only
APART = 16  # numbers: arrays begin where a line of the processor's cache does


class Room:
    """Arrays one after the other in a block of memory, and elsewhere when that is full."""

    def __init__(self, block: Tensor) -> None:
        self.block, self.used = block, 0

    def take(self, *shape: int) -> Tensor:
        """An array with anything in it."""
        size, steps = 1, []
        for length in reversed(shape):
            steps.append(size)
            size *= length
        start = self.used
        self.used += -(-size // APART) * APART
        if self.used > self.block.numel():
            return self.block.new_empty(shape)
        return self.block.as_strided(shape, steps[::-1], start)

    def clear(self) -> None:
        """Nobody reads any more what was taken so far. If it was too much, there is more now."""
        kind, on_processor = self.block.dtype, self.block.device.type == "cpu"
        full = self.used > self.block.numel()
        if on_processor and full and self.used * self.block.itemsize <= MOST:
            self.block = block_of(self.used, kind)
        self.used = 0

    def copy(self, x: Tensor) -> Tensor:
        return self.take(*x.shape).copy_(x)

    def bmm(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right, out=self.take(len(left), left.shape[1], right.shape[2]))


def block_of(size: int, kind: torch.dtype) -> Tensor:
    """Outside of any mode: who works in inference leaves it to others, who do not."""
    with torch.inference_mode(False):
        return torch.empty(size, dtype=kind)


class Kept(threading.local):
    """A thread's block."""

    block: Tensor | None = None


_kept = Kept()


@contextmanager
def lent(like: Tensor) -> Iterator[Room]:
    """A room for numbers like these.

    Whoever asks while it is lent, or computes where torch keeps memory itself, begins with none.
    """
    on_processor = like.device.type == "cpu"
    block, _kept.block = _kept.block, None
    if block is None or block.dtype != like.dtype or not on_processor:
        block = block_of(0, like.dtype) if on_processor else like.new_empty(0)
    room = Room(block)
    try:
        yield room
    finally:
        room.clear()
        if on_processor:
            _kept.block = room.block


def give_back() -> None:
    """This thread keeps nothing until it computes again."""
    _kept.block = None
