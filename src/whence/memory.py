"""A word memory: rows that are looked up by the words just read, beside the character's own.

At every position the memory knows the word that is being read and the words before it. The hash of
the word so far, of it and the word before, and so on up to `orders` words, each name a row; the
rows are added to the character's embedding. A full name thus has a row of its own at no matrix
cost, which the layers above can fill with what is said about that name and look at when the name
stands in a question. Several words have a row only if the first and the last are capitalised:
names do, and "July 1981 in" does not, whose row would learn by heart what follows it in its one
document.

What stands before a mask is not seen from behind it: otherwise the answer's own positions would be
rows of the name and the answer's first letters, in which a document is learned by heart without the
layers above ever looking at the name. A question, where other words stand before the mask, would
find nothing there.

Names are written by documents and only read by questions: a model that may write them while it
answers the training questions learns the answers by heart in those rows, and nothing that would
help with anybody else. The words of the question itself are its own to write, one at a time: no
document may hold them, and a layer that sees single letters takes "When" for "Where". `written`
counts, per row, how often it was written: a name whose rows never were was never read about.
"""

from __future__ import annotations

from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.vocab import MASK, PAD

# Odd 64-bit numbers with well mixed bits, the golden ratio's and splitmix64's, as signed ones.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


_counting = Lock()  # parts of a batch are read by several threads, and none may get lost


def mix(x: Tensor) -> Tensor:
    """Scatter whole numbers over all 64 bits; products wrap around, which is what is wanted."""
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


class WordMemory(nn.Module):
    """(B,T) characters -> (B,T,D): the sum of the rows that the last words name."""

    letters: Tensor  # (V,) which characters words are made of
    capitals: Tensor  # (V,) which of them begin a name
    written: Tensor  # (orders * rows,) how often each row was written

    def __init__(self, vocabulary: int, width: int, rows: int, orders: int) -> None:
        super().__init__()
        self.rows, self.orders = rows, orders
        self.table = nn.Parameter(torch.randn(orders * rows, width) * 0.02)
        # Which characters are letters is the vocabulary's to say (`mark_letters`); it is saved with
        # the weights, because the rows mean nothing without it.
        self.register_buffer("letters", torch.zeros(vocabulary, dtype=torch.bool))
        self.register_buffer("capitals", torch.zeros(vocabulary, dtype=torch.bool))
        self.register_buffer("written", torch.zeros(orders * rows, dtype=torch.int64))

    def mark_letters(self, characters: str) -> None:
        """`characters`: the vocabulary's, in the order of their numbers."""
        self.letters.copy_(torch.tensor([character.isalnum() for character in characters]))
        self.capitals.copy_(torch.tensor([character.isupper() for character in characters]))

    def forward(self, tokens: Tensor, reading: Tensor | None = None) -> Tensor:
        """`reading` (B,T): positions that look at the memory and must not change it.

        An example that has any writes at its other positions the rows of single words and no more:
        a row of several words may reach into the name.
        """
        keys = self.keys(tokens)
        if not (self.training and torch.is_grad_enabled()):
            return self._sum(keys, self.table)
        if reading is None:
            reading = torch.zeros_like(tokens, dtype=torch.bool)
        asked = reading.any(1)
        documents, questions = (~asked).nonzero()[:, 0], asked.nonzero()[:, 0]
        own = self._own_words(tokens[questions], reading[questions])
        real = tokens[documents] != PAD  # what stands behind the end is neither read nor written
        found = torch.cat([self._write(keys[documents], real), self._read(keys[questions], own)])
        return found[torch.cat([documents, questions]).argsort()]

    def _write(self, keys: Tensor, real: Tensor) -> Tensor:
        # Not even with a gradient of zero: a row that is looked up is moved by its momentum.
        rows = keys[real]
        self._count(rows.flatten())
        found = self._sum(rows, self.table)
        return found.new_zeros(*real.shape, found.shape[-1]).index_put((real,), found)

    def _read(self, keys: Tensor, own: Tensor) -> Tensor:
        found = self._sum(keys, self.table.detach())
        rows = keys[..., 0][own]
        self._count(rows)
        written = F.embedding(rows, self.table, sparse=True)
        # It stands in `found` already: this adds nothing but a way for the gradient.
        return found + torch.zeros_like(found).index_put((own,), written - written.detach())

    def _own_words(self, tokens: Tensor, reading: Tensor) -> Tensor:
        """Positions whose last word, and which themselves, may be written."""
        here = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        last = torch.where(self.letters[tokens], here, -1).cummax(1).values
        return ~(reading | _at(reading, last, nothing=1))

    def _count(self, rows: Tensor) -> None:
        with _counting:
            self.written.index_add_(0, rows, torch.ones_like(rows))

    def recall(self, tokens: Tensor, places: Tensor) -> Tensor:
        """What the memory holds at `places` (B,R) only, for a step of decoding."""
        keys = self.keys(tokens)
        return self._sum(keys.gather(1, places[..., None].expand(-1, -1, self.orders)), self.table)

    def _sum(self, keys: Tensor, table: Tensor) -> Tensor:
        # Sparse: a step touches a few thousand of some hundred thousand rows.
        found = F.embedding_bag(
            keys.view(-1, self.orders), table, mode="sum", sparse=table.requires_grad
        )
        return found.view(*keys.shape[:-1], table.shape[1])

    def keys(self, tokens: Tensor) -> Tensor:
        """(B,T) -> (B,T,orders): which row each order looks up at each position."""
        _, T = tokens.shape
        letter = self.letters[tokens]
        here = torch.arange(T, device=tokens.device).expand_as(tokens)
        nowhere = torch.full_like(here, -1)
        last_letter = torch.where(letter, here, nowhere).cummax(1).values
        last_break = torch.where(letter, nowhere, here).cummax(1).values
        # A word's hash is the sum over its characters of a number that depends on the character
        # and its place in the word: differences of running sums give it at every position at once.
        code = mix((tokens + 1) * _GOLDEN + (here - last_break))
        total = code.masked_fill(~letter, 0).cumsum(1)
        word = total - _at(total, last_break)
        before = _at(last_letter, last_break, nothing=-1)  # where the word before ended
        at = torch.where(letter, here, last_letter)  # after a word, the word that has just ended
        last_mask = torch.where(tokens == MASK, here, nowhere).cummax(1).values
        key = letter.long()  # a word so far is not the same word finished
        capital = _at(self.capitals[tokens], (last_break + 1).clamp_max(T - 1))
        ends_in_capital = _at(capital, at)
        known = torch.ones_like(letter)
        rows = []
        for order in range(self.orders):
            known = known & (at > last_mask)
            named = known & ends_in_capital & _at(capital, at) if order else known
            key = mix(key * _GOLDEN + _at(word, at))
            row = torch.where(named, 1 + (key & (2**62 - 1)) % (self.rows - 1), 0)
            rows.append(order * self.rows + row)
            at = _at(before, at, nothing=-1)
        return torch.stack(rows, -1)


def _at(values: Tensor, places: Tensor, nothing: int = 0) -> Tensor:
    """values[b, places[b, t]], and `nothing` where the place is -1."""
    return values.gather(1, places.clamp_min(0)).masked_fill(places < 0, nothing)
