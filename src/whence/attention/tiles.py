"""Exact attention of one long head, a tile of its weights at a time, by oneDNN (see `exact.py`).

In the gradient the tiles are transposed, so that what is subtracted from a row of weights is a bias
of the product.

Shape letters: H heads, T queries, S sources, d width of the head, c of its values, Q blocks of
queries, K of sources.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention.linear import multiply

# Sources of a tile, and queries of a causal one: of a larger, more is above the diagonal.
WIDE = 512
HELD = 1 << 19  # numbers of a tile: two megabytes of float32
# Multiplications of a tile for each thread: what a call costs is the same for one and for many.
LEAST = 5 << 19


class Graph(NamedTuple):
    """Who sees whom: a position those up to itself, if causal, of the blocks that its block sees.

    edges: (H,Q,S), of one head (Q,S), added to the logarithms: zero where a block of queries sees a
    source, else -inf; a number for each source, so that a whole row of numbers is added at a time.
    None for zeros. What is hidden may be so large that its exponential is not a number to multiply.
    """

    causal: bool
    edges: Tensor | None = None
    block: int = 1
    lower: Tensor | None = None  # a triangle of -inf, see `turned`

    def of(self, head: int) -> "Graph":
        return self if self.edges is None else self._replace(edges=self.edges[head])

    def turned(self, like: Tensor, T: int, S: int) -> "Graph":
        """For transposed tiles, of all heads: a number for each query that a block of sources has,
        and a triangle (`triu_` takes five times as long as a sum)."""
        edges, lower = self.edges, None
        if edges is not None:
            edges = edges[..., :: self.block].mT.repeat_interleave(self.block, -1)
        if self.causal:
            size = min(T, sizes(T, S, True)[0])
            lower = like.new_full((size, size), -math.inf).tril_(-1)
        return self._replace(edges=edges, lower=lower)

    def fits(self, T: int, S: int) -> bool:
        """Whether no block is in two tiles."""
        return not any(size % self.block for size in (T, S, *sizes(T, S, self.causal)))

    def weights(self, logs: Tensor, asked: slice, seen: slice) -> Tensor:
        """Of a tile (queries, sources) of logarithms to base two."""
        self.hide_blocks(logs, asked, seen)
        weights = logs.exp2_()
        return weights.tril_() if self.causal and seen == asked else weights

    def weights_turned(self, logs: Tensor, asked: slice, seen: slice) -> Tensor:
        """The same of the transpose, by a graph that was `turned`."""
        self.hide_blocks(logs, seen, asked)
        if self.lower is not None and seen == asked:
            logs += self.lower[: len(logs), : len(logs)]
        return logs.exp2_()

    def hide_blocks(self, logs: Tensor, down: slice, across: slice) -> None:
        if self.edges is None:
            return
        part = self.edges[down.start // self.block : down.stop // self.block, across]
        logs.view(len(part), self.block, -1).add_(part[:, None])


def pay(T: int, S: int, width: int, causal: bool) -> bool:
    rows, columns = sizes(T, S, causal)
    return rows * columns * width >= LEAST * torch.get_num_threads()


def sizes(T: int, S: int, causal: bool) -> tuple[int, int]:
    """Queries and sources of a tile: as even as possible, so that no small rest is left."""
    columns = even(S, WIDE)
    return (columns if causal else even(T, HELD // columns)), columns


def even(whole: int, most: int) -> int:
    """The size of parts that are nearest to `most`."""
    return math.ceil(whole / max(1, round(whole / most)))


def parts(whole: int, size: int, first: int = 0) -> Iterator[slice]:
    for start in range(first, whole, size):
        yield slice(start, min(start + size, whole))


def added(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)


def attend(q: Tensor, k: Tensor, v: Tensor, graph: Graph, out: Tensor, total: Tensor) -> None:
    """(T,d), (S,d), (S,c): writes the outputs (T,c) and the row sums (T).

    Logarithms to base two of the weights are q . k; no head has gaps in memory.
    """
    T, S = len(q), len(k)
    rows, columns = sizes(T, S, graph.causal)
    for asked in parts(T, rows):
        mixed = mass = None
        for seen in parts(asked.stop if graph.causal else S, columns):
            weights = graph.weights(multiply(q[asked], k[seen]), asked, seen)
            mixed = added(mixed, multiply(weights, v[seen].mT))
            mass = added(mass, weights.sum(-1, keepdim=True))
        assert mixed is not None and mass is not None
        torch.div(mixed, mass, out=out[asked])
        total[asked] = mass[:, 0]


def gradients(given: Sequence[Tensor], graph: Graph, results: Sequence[Tensor]) -> None:
    """Writes the gradients of q, k and v, as if their products were natural logarithms.

    given: q, k, v, the gradient of the outputs, and what is added to the logarithms of a row and
    to the gradients of its weights (T).
    results: where to write those of q (d,T), transposed, of k and of v; and k transposed (d,S).
    """
    q, k, v, up, below, less = given
    to_q, to_k, to_v, k_turned = results
    rows, columns = sizes(len(q), len(k), graph.causal)
    for seen in parts(len(k), columns):
        key, value, key_turned = k[seen], v[seen], k_turned[:, seen]
        of_key = of_value = None
        for asked in parts(len(q), rows, seen.start if graph.causal else 0):
            query, here = q[asked], up[asked]
            weights = graph.weights_turned(multiply(key, query, below[asked]), asked, seen)
            of_value = added(of_value, multiply(weights, here.mT))
            weights *= multiply(value, here, less[asked])
            of_key = added(of_key, multiply(weights, query.mT))
            of_query = multiply(key_turned, weights.mT)
            if seen.start:
                to_q[:, asked] += of_query
            else:  # the first tile of these queries
                to_q[:, asked] = of_query
        assert of_key is not None and of_value is not None
        to_k[seen], to_v[seen] = of_key, of_value
