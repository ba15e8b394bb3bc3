"""Positions a piece at a time, cut in chunks that lie before the heads: what quick scans share.

A piece is as many positions, of as many heads, as fit the processor's cache. With chunks before
heads, running sums over the chunks are made in place, and one product serves all chunks and heads.

Shape letters: N batch times heads, T positions, M features, G chunks of a piece, n heads of a
piece, c positions of a chunk.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention import walk
from whence.attention.scratch import Room


class Piece(NamedTuple):
    heads: slice
    window: slice
    chunk: int
    number: int  # of the window: where the state before it is kept
    last: bool

    @property
    def n(self) -> int:
        count: int = self.heads.stop - self.heads.start
        return count

    @property
    def alone(self) -> bool:
        """Whether it is all there is of its heads, in one chunk: no sums over chunks."""
        only: bool = self.window.stop - self.window.start == self.chunk
        return only and self.last and self.number == 0


def pieces(N: int, T: int, M: int, chunk: int, backwards: bool = False) -> Iterator[Piece]:
    """Window by window for some heads, then for the next."""
    # A short text is one chunk: a triangle costs less than a state.
    chunk = T if 2 * chunk >= T else chunk
    rows = min(N, max(1, walk.SEGMENT // (chunk * M)))
    size = max(chunk, walk.SEGMENT // (rows * M) // chunk * chunk)
    cuts = []
    for start in range(0, T, size):
        stop = min(start + size, T)
        # Whole chunks, and the rest as one shorter chunk: no length has to divide anything.
        middle = stop - (stop - start) % chunk
        cuts += [(slice(start, middle), chunk)] * (start < middle)
        cuts += [(slice(middle, stop), stop - middle)] * (middle < stop)
    numbered = list(enumerate(cuts))
    for first in range(0, N, rows):
        heads = slice(first, min(first + rows, N))
        for number, (window, size) in reversed(numbered) if backwards else numbered:
            yield Piece(heads, window, size, number, number == len(cuts) - 1)


def chunks(x: Tensor, piece: Piece) -> Tensor:
    """The piece's part of (N,T,.), as a view (G,n,c,.)."""
    here = x[piece.heads, piece.window]
    return here.view(here.shape[0], -1, piece.chunk, here.shape[2]).transpose(0, 1)


def sum_up(
    room: Room,
    left: Tensor,
    right: Tensor,
    state: Tensor | None,
    n: int,
    backwards: bool = False,
) -> tuple[Tensor, Tensor]:
    """Running sums over chunks of left^T right, (G n,c,W) and (G n,c,M), from a state (n,W,M).

    In their order or from the end. Returns the state at each chunk (G n,W,M), itself excluded, and
    the state after them all. Both lie in the room: whoever keeps one copies it (see `aside`).
    """
    W, M, G = left.shape[2], right.shape[2], len(left) // n
    sums = room.take(G + 1, n, W, M)
    begin, gains = (sums[-1], sums[:-1]) if backwards else (sums[0], sums[1:])
    if state is None:
        begin.zero_()
    else:
        begin.view(state.shape).copy_(state)
    torch.bmm(left.mT, right, out=gains.view(-1, W, M))
    for g in range(G):
        if backwards:
            sums[G - 1 - g].add_(sums[G - g])
        else:
            sums[g + 1].add_(sums[g])
    before, after = (sums[1:], sums[0]) if backwards else (sums[:-1], sums[-1])
    return before.view(-1, W, M), after


def aside(after: Tensor, piece: Piece, states: Tensor) -> Tensor | None:
    """The state after a piece, for the next piece and, if there is room, for the gradient.

    `states` (windows, N, W, M) has that before each window but the first; without windows nothing
    is kept.
    """
    if piece.last:
        return None
    return states[piece.number + 1, piece.heads].copy_(after) if len(states) else after.clone()
