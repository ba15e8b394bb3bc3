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
from torch.nn import Parameter

MOST = 32 << 20  # bytes that a thread keeps; whoever needs more gets it for the call only
APART = 16  # numbers: arrays begin where a line of the processor's cache does


class Room:
    """Arrays one after the other in a block of memory; when that is full, in further blocks."""

    def __init__(self, block: Tensor) -> None:
        self.blocks = [block]
        self.number = self.used = 0  # the block that is being filled, and how far it is
        self.asked = self.most = 0

    def take(self, *shape: int) -> Tensor:
        """An array with anything in it."""
        size, steps = 1, []
        for length in reversed(shape):
            steps.append(size)
            size *= length
        wanted = -(-size // APART) * APART
        self.asked += wanted
        while self.used + wanted > self.blocks[self.number].numel():
            self.number, self.used = self.number + 1, 0
            if self.number == len(self.blocks):
                self.blocks.append(self.blocks[0].new_empty(wanted))
        start = self.used
        self.used += wanted
        return self.blocks[self.number].as_strided(shape, steps[::-1], start)

    def clear(self) -> None:
        """Nobody reads any more what was taken so far."""
        self.most, self.asked = max(self.most, self.asked), 0
        self.number = self.used = 0

    def copy(self, x: Tensor) -> Tensor:
        return self.take(*x.shape).copy_(x)

    def bmm(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right, out=self.take(len(left), left.shape[1], right.shape[2]))


def block_of(size: int, kind: torch.dtype) -> Tensor:
    """Outside of any mode: who works in inference leaves it to others, who do not."""
    with torch.inference_mode(False):
        return torch.empty(size, dtype=kind, device="cpu")


class Kept(threading.local):
    """A thread's block."""

    block: Tensor | None = None


_kept = Kept()


@contextmanager
def lent(like: Tensor) -> Iterator[Room]:
    """A room for numbers like these.

    Whoever asks while it is lent, or computes where torch keeps memory itself, begins with none.
    """
    kept, _kept.block = _kept.block, None
    block = kept
    if block is None or block.dtype != like.dtype or not is_plain(like):
        block = block_of(0, like.dtype) if is_plain(like) else like.new_empty(0)
    room = Room(block)
    try:
        yield room
    finally:
        room.clear()
        if is_plain(like) and room.most * block.itemsize <= MOST:
            kept = block
            if len(room.blocks) > 1:
                # Of one piece from now on. The others are free before it is filled.
                room.blocks.clear()
                kept = block_of(room.most, block.dtype)
        _kept.block = kept if kept is not None and is_plain(kept) else None


def is_plain(x: Tensor) -> bool:
    """Whether this is the processor's memory, and not what a mode of torch has in its place."""
    return x.device.type == "cpu" and type(x) in (Tensor, Parameter)


def drop_kept() -> None:
    """This thread keeps nothing until it computes again."""
    _kept.block = None
