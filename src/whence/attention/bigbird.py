"""BigBird (Zaheer et al. 2020, arXiv:2007.14062): softmax over a sparse graph of blocks.

A block of queries sees: the first blocks (global), the blocks around it (window) and some blocks
drawn at random. Without a mask the first blocks also see everything. The causal graph is the
triangle's part of that: a window to the left, leading global blocks, random blocks from the past,
and the block itself up to each position. The graph is drawn from `seed`, per head, once for the
whole context: it is the same in training and evaluation, and for every length.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.attention.base import Attention
from whence.attention.blocks import block_attention
from whence.attention.checks import refuse_below
from whence.attention.exact import exact_attention, exact_by_blocks
from whence.attention.softmax import Softmax, masked_softmax
from whence.attention.tiles import Graph

# From this share of the blocks on torch's attention with a mask is quicker than gathering them.
MOST = 0.8
# And from this share on exact attention by tiles, if this machine has them.
DENSE = 0.5
Make = Callable[[int, int, Tensor], Tensor]
# Numbers of the mask: 16 megabytes of float32.
HELD = 1 << 22


class BigBird(Softmax):
    """block: positions per block. window, random, leading: blocks that a block of queries sees.

    The window counts the block itself; causal, it reaches `window - 1` blocks to the left, else as
    far to both sides (one more to the left if `window` is even). leading: the global blocks; with
    none of them, queries beyond the end of a shorter source see nothing.
    """

    mechanism = "bigbird"
    variants: ClassVar = {
        "default": {},
        "small": {"block": 3, "window": 2, "random": 2, "leading": 1},
        "window": {"block": 4, "window": 2, "random": 0, "leading": 0},
        "random": {"block": 1, "window": 1, "random": 3, "leading": 0},
        "most": {"block": 4, "window": 3},
        "all": {"block": 5, "window": 100},
        "rope": {"rope": True, "qk_norm": True, "block": 3, "window": 2},
    }
    neighbours: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        causal: bool = True,
        *,
        block: int = 16,
        window: int = 3,
        random: int = 1,
        leading: int = 1,
        **rest: Any,
    ) -> None:
        super().__init__(width, heads, context, causal, **rest)
        refuse_below(1, block=block, window=window)
        refuse_below(0, random=random, leading=leading)
        self.block, self.window, self.random, self.leading = block, window, random, leading
        # Made from the arguments alone, so no part of a checkpoint.
        self.register_buffer("neighbours", self.draw_graph(), persistent=False)
        self.dense = self.count_dense()
        self.last: dict[str, tuple[object, Tensor]] = {}  # see `kept`

    def draw_graph(self) -> Tensor:
        """(H, blocks, chosen): the blocks seen by each block, its own first, -1 for none."""
        blocks = math.ceil(self.context / self.block)
        generator = torch.Generator().manual_seed(self.seed)
        right = 0 if self.causal else (self.window - 1) // 2
        left = self.window - 1 - right
        graph = []
        for _ in range(self.heads):
            for i in range(blocks):
                last = i if self.causal else blocks - 1
                near = range(max(0, i - left), min(last, i + right) + 1)
                sure = [i, *(j for j in near if j != i)]
                sure += [j for j in range(min(self.leading, last + 1)) if j not in near]
                drawn: list[int] = []
                free = last + 1 - len(sure)
                if self.random and free > 0:
                    # Draw ranks among the blocks not seen yet, then skip over those that are.
                    ranks = torch.randperm(free, generator=generator)[: self.random].tolist()
                    taken = sorted(sure)
                    for rank in ranks:
                        for j in taken:
                            rank += int(j <= rank)
                        drawn.append(rank)
                graph.append([*sure, *sorted(drawn)])
        most = max(map(len, graph))
        table = torch.tensor([row + [-1] * (most - len(row)) for row in graph])
        return table.view(self.heads, blocks, most)

    def count_dense(self) -> int:
        """Texts of up to so many blocks are seen whole: the graph leaves nothing out of them."""
        most = self.neighbours.shape[2]
        for blocks in range(1, min(most, self.neighbours.shape[1]) + 1):
            rows = self.neighbours[:, self.leading if not self.causal else 0 : blocks]
            seen = ((rows >= 0) & (rows < blocks)).sum(2)
            wanted = torch.arange(1, blocks + 1) if self.causal else torch.tensor(blocks)
            if bool((seen < wanted).any()):
                return blocks - 1
        return blocks

    def options(self) -> dict[str, Any]:
        return {
            "block": self.block,
            "window": self.window,
            "random": self.random,
            "leading": self.leading,
            "seed": self.seed,
            "dropout_of": "sources",
        }

    def forward(
        self, x: Tensor, source: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Not softmax's: the last position does not see everything here."""
        return Attention.forward(self, x, source, padding)

    def exact(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        values = self.drop_sources(values)
        T, P = queries.shape[2], self.block
        if self.causal:
            keys, values, padding = self.align(T, keys, values, padding)
        S = keys.shape[2]
        if max(T, S) <= self.dense * P:
            return self.undropped(queries, keys, values, padding)
        if self.causal and self.is_short(queries, padding):
            return self.training_weights(queries, keys, padding) @ values
        if padding is None and self.neighbours.shape[2] * P >= DENSE * S:
            found = exact_by_blocks(
                queries,
                keys,
                values,
                Graph(self.causal, block=P),
                lambda: self.kept("edges", self.wide_edges, T, S, values),
            )
            if found is not None:
                return found
        if padding is None and self.sees_most(T, S):
            mask = self.kept("mask", self.hidden, T, S, queries)[None]
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        everything = 0 if self.causal else min(self.leading * P, T)
        heads = [self.see_all(queries[:, :, :everything], keys, values, padding)]
        if everything < T:
            rest, missing = -(T - everything) % P, -S % P
            asked = F.pad(queries[:, :, everything:], (0, 0, 0, rest))
            if missing:
                if not self.causal:  # else these keys are later than every query
                    padding = self.all_real(keys) if padding is None else padding
                padding = None if padding is None else F.pad(padding, (0, missing))
                keys, values = (F.pad(x, (0, 0, 0, missing)) for x in (keys, values))
            first = everything // P
            graph = self.neighbours[:, first : first + asked.shape[2] // P]
            blocks = keys.shape[2] // P
            graph = graph.masked_fill(graph >= blocks, -1)
            mixed = block_attention(
                asked, keys, values, graph, padding, block=P, diagonal=self.causal
            )
            heads.append(mixed[:, :, : T - everything])
        return heads[-1] if not everything else torch.cat(heads, 2)

    def sees_most(self, T: int, S: int) -> bool:
        """Whether a mask is worth it. Not if causal: an added -inf does not hide a later NaN."""
        share = self.neighbours.shape[2] * self.block / S
        return not self.causal and share >= MOST and self.heads * T * S <= HELD

    def kept(self, name: str, make: Make, T: int, S: int, like: Tensor) -> Tensor:
        """`make(T, S, like)`, kept for the next text of this length: it takes up to a fifth of a
        layer's time."""
        if torch.compiler.is_compiling():
            return make(T, S, like)
        wanted = (T, S, like.dtype, like.device)
        last = self.last.get(name)
        if last is None or last[0] != wanted:
            with torch.inference_mode(False):  # training may use it next
                last = self.last[name] = (wanted, make(T, S, like))
        return last[1]

    def wide_edges(self, T: int, S: int, like: Tensor) -> Tensor:
        """(H, blocks of T, S), to be added to the scores: -inf where the graph has no edge."""
        edges = self.edges(T, S)
        table = like.new_zeros(edges.shape).masked_fill_(~edges, -math.inf)
        return table.repeat_interleave(self.block, -1)

    def hidden(self, T: int, S: int, like: Tensor) -> Tensor:
        """(H,T,S), to be added to the scores: -inf where the graph has no edge."""
        wide = self.wide_edges(T, S, like)[..., :S]
        return wide[:, :, None].expand(-1, -1, self.block, -1).flatten(1, 2)[:, :T]

    def edges(self, T: int, S: int) -> Tensor:
        """(H, blocks of T, blocks of S): True where the graph has an edge."""
        rows, columns = math.ceil(T / self.block), math.ceil(S / self.block)
        graph = self.neighbours[:, :rows]
        # Missing neighbours, and those after the end, fall into one more column.
        graph = graph.masked_fill((graph < 0) | (graph >= columns), columns)
        seen = torch.zeros(
            *graph.shape[:2], columns + 1, dtype=torch.bool, device=graph.device
        ).scatter_(2, graph, True)[..., :columns]
        if not self.causal:
            seen[:, : self.leading] = True
        return seen

    def see_all(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        if queries.shape[2] == 0:
            return queries
        mask = None if padding is None else padding[:, None, None]
        return exact_attention(queries, keys, values, mask)

    def all_real(self, keys: Tensor) -> Tensor:
        return torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)

    def adjacency(self, T: int, S: int) -> Tensor:
        """(H,T,S): True where the graph lets query i see source j, triangle included."""
        P = self.block
        dense = self.edges(T, S).repeat_interleave(P, 1).repeat_interleave(P, 2)[:, :T, :S]
        return dense.tril() if self.causal else dense

    def unseen(self, T: int, S: int, like: Tensor) -> Tensor:
        if max(T, S) <= self.dense * self.block:
            return super().unseen(T, S, like)
        return like.new_zeros(self.heads, T, S).masked_fill_(~self.adjacency(T, S), -math.inf)

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        scores = queries @ keys.mT * self.head_width**-0.5
        mask = self.adjacency(queries.shape[2], keys.shape[2])
        if padding is not None:
            mask = mask & padding[:, None, None]
        return masked_softmax(scores, mask)

    def step_mask(self, places: Tensor, seen: int) -> Tensor:
        chosen = self.neighbours[:, places // self.block].transpose(0, 1)  # (B,H,R,K)
        column = torch.arange(seen, device=places.device)
        near = (chosen[..., None] == column // self.block).any(3)
        return near & super().step_mask(places, seen)
