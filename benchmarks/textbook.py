"""The course's system as its users have it: plain, eager, padded to 128, one question at a time.

The row to beat in the benchmarks, and the independent reference that the tests of `whence course`
compare with: same state-dict layout, same function, nothing shared with `src/whence`.
Written from the specification; deliberately without any trick.

Shape letters: B batch, T positions, H heads, D width, d = D/H, m latents.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PAD, MASK = "□", "⁇"
VARIANTS = ("vanilla", "synthesizer", "perceiver", "rope")


@dataclass(frozen=True)
class Shape:
    """The course's configuration; only the tests make it smaller."""

    vocabulary: int = 256
    block: int = 128
    layers: int = 4
    heads: int = 8
    width: int = 256
    latents: int = 32
    dropout: float = 0.1
    variant: str = "vanilla"


def causal_mask(size: int) -> Tensor:
    return torch.tril(torch.ones(size, size)).view(1, 1, size, size)


class Attention(nn.Module):
    """Causal softmax attention with separate projections; `source` makes it a cross-attention."""

    def __init__(self, shape: Shape, block: int) -> None:
        super().__init__()
        self.heads, self.rope = shape.heads, shape.variant == "rope"
        self.key = nn.Linear(shape.width, shape.width)
        self.query = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.attention_dropout = nn.Dropout(shape.dropout)
        self.residual_dropout = nn.Dropout(shape.dropout)
        self.register_buffer("mask", causal_mask(block))
        if self.rope:
            size = shape.width // shape.heads
            rate = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
            angle = torch.arange(block).float()[:, None] * rate
            self.register_buffer("rope_cache", torch.stack((angle.cos(), angle.sin()), dim=-1))

    def split(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        return x.view(batch, positions, self.heads, width // self.heads).transpose(1, 2)

    def rotate(self, x: Tensor) -> Tensor:
        """Adjacent pairs turn by position * rate."""
        turn = torch.view_as_complex(self.rope_cache[: x.shape[2]].contiguous())
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        source = x if source is None else source
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(source)),
            self.split(self.value(source)),
        )
        if self.rope:
            query, key = self.rotate(query), self.rotate(key)
        scores = query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])
        hidden = self.mask[:, :, : scores.shape[-2], : scores.shape[-1]] == 0
        weights = functional.softmax(scores.masked_fill(hidden, -1e10), dim=-1)
        mixed = self.attention_dropout(weights) @ value
        mixed = mixed.transpose(1, 2).contiguous().flatten(2)
        return self.residual_dropout(self.proj(mixed))


class Synthesizer(nn.Module):
    """The course's synthesizer: scores from each position alone, ReLU(x A + b1) B + b2."""

    def __init__(self, shape: Shape, block: int) -> None:
        super().__init__()
        self.heads = shape.heads
        self.w1 = nn.Linear(shape.width, shape.width)
        self.w2 = nn.Parameter(torch.empty(shape.width // shape.heads, block - 1))
        self.b2 = nn.Parameter(torch.zeros(block - 1))
        self.value = nn.Linear(shape.width, shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.attention_dropout = nn.Dropout(shape.dropout)
        self.residual_dropout = nn.Dropout(shape.dropout)
        self.register_buffer("mask", causal_mask(block))
        nn.init.uniform_(self.w2, -1e-3, 1e-3)

    split = Attention.split

    def forward(self, x: Tensor) -> Tensor:
        positions = x.shape[1]
        hidden = functional.relu(self.split(self.w1(x)))
        scores = (hidden @ self.w2 + self.b2)[..., :positions]
        future = self.mask[:, :, :positions, :positions] == 0
        weights = functional.softmax(scores.masked_fill(future, -1e10), dim=-1)
        mixed = self.attention_dropout(weights) @ self.split(self.value(x))
        mixed = mixed.transpose(1, 2).contiguous().flatten(2)
        return self.residual_dropout(self.proj(mixed))


def feed_forward(shape: Shape) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(shape.width, 4 * shape.width),
        nn.GELU(),
        nn.Linear(4 * shape.width, shape.width),
        nn.Dropout(shape.dropout),
    )


class Block(nn.Module):
    def __init__(self, shape: Shape, block: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        mechanism = Synthesizer if shape.variant == "synthesizer" else Attention
        self.attn = mechanism(shape, block)
        self.mlp = feed_forward(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class DownBlock(nn.Module):
    """m learned vectors C query the input; the handout norms C, then the input of the MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.cross_attn = Attention(shape, shape.block)
        self.mlp = feed_forward(shape)
        self.C = nn.Parameter(torch.empty(1, shape.latents, shape.width))
        nn.init.xavier_uniform_(self.C)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.C + self.cross_attn(self.ln1(self.C), source=x)
        return latents + self.mlp(self.ln2(latents))


class UpBlock(nn.Module):
    """Every input position queries the latents."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.cross_attn = Attention(shape, shape.block)
        self.mlp = feed_forward(shape)

    def forward(self, latents: Tensor, x: Tensor) -> Tensor:
        x = x + self.cross_attn(x, source=self.ln1(latents))
        return x + self.mlp(self.ln2(x))


class TextbookGPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tok_emb = nn.Embedding(shape.vocabulary, shape.width)
        if shape.variant != "rope":
            self.pos_emb = nn.Parameter(torch.zeros(1, shape.block, shape.width))
        self.drop = nn.Dropout(shape.dropout)
        if shape.variant == "perceiver":
            self.down_block = DownBlock(shape)
            self.up_block = UpBlock(shape)
            inner = [Block(shape, shape.latents) for _ in range(shape.layers - 2)]
        else:
            inner = [Block(shape, shape.block) for _ in range(shape.layers)]
        self.blocks = nn.Sequential(*inner)
        self.ln_f = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok_emb(ids)
        if self.shape.variant != "rope":
            x = x + self.pos_emb[:, : ids.shape[1]]
        x = self.drop(x)
        if self.shape.variant == "perceiver":
            x = self.up_block(self.blocks(self.down_block(x)), x)
        else:
            x = self.blocks(x)
        return self.head(self.ln_f(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self(ids)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


class Vocabulary:
    """PAD, MASK, then the sorted characters of the pretraining text."""

    def __init__(self, text: str) -> None:
        self.characters = [PAD, MASK, *sorted(set(text))]
        self.ids = {character: index for index, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        return [self.ids[character] for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.characters[index] for index in ids)


def span_example(document: str, block: int, generator: random.Random) -> tuple[str, str]:
    """`prefix ⁇ suffix ⁇ masked □□□` as input and target, one shifted against the other."""
    length = generator.randint(4, int(block * 7 / 8))
    document = document[:length]
    masked = generator.randint(1, max(1, len(document) // 2 - 1))
    start = generator.randint(0, len(document) - masked)
    middle = document[start : start + masked]
    text = document[:start] + MASK + document[start + masked :] + MASK + middle
    text = text + PAD * (block - len(text))
    return text[:-1], text[1:]


def name_example(question: str, place: str, block: int) -> tuple[str, str]:
    """`question ⁇ place ⁇ □□□`; only the place and its closing mask are targets."""
    text = question + MASK + place + MASK
    text = text + PAD * (block - len(text))
    return text[:-1], (PAD * len(question) + text[len(question) :])[1:]


def batch_of(examples: list[tuple[str, str]], vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    inputs = torch.tensor([vocabulary.encode(x) for x, _ in examples])
    targets = torch.tensor([vocabulary.encode(y) for _, y in examples])
    return inputs, targets


def optimizer_of(model: TextbookGPT, rate: float) -> torch.optim.AdamW:
    """Weight decay on matrices only, as in the course."""
    decayed = [p for n, p in model.named_parameters() if p.ndim == 2 and "emb" not in n]
    chosen = {id(p) for p in decayed}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def train_step(
    model: TextbookGPT, optimizer: torch.optim.AdamW, inputs: Tensor, targets: Tensor
) -> float:
    loss = model.loss(inputs, targets)
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def answer(model: TextbookGPT, vocabulary: Vocabulary, question: str, length: int = 32) -> str:
    """Greedy, the whole sequence again for every character, as the course's program does it."""
    model.eval()
    ids = torch.tensor([vocabulary.encode(question + MASK)])
    for _ in range(length):
        following = model(ids[:, -model.shape.block :])[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat((ids, following), dim=1)
    return vocabulary.decode(ids[0].tolist()).split(MASK)[1]
