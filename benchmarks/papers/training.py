"""Short trainings on the invented world, all on one thread, so that a seed means one result.

The text: descriptions of three people at a time, several each, shuffled and strung together, cut
into sequences. What a description says of somebody can often be found in another one some hundred
characters away, so that looking far pays.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papers.results import Result, remembered
from whence.attention import MECHANISMS
from whence.batches import seeded
from whence.config import ModelConfig, StageConfig
from whence.corpus import load_corpus
from whence.model import GPT
from whence.optim import make_optimizers, rate_factor, set_rates
from whence.vocab import MASK, PAD, Vocab

PEOPLE, REWRITES, TOGETHER, HELD_OUT = 3000, 4, 3, 0.06
EVALUATED = 64  # held-out sequences


@dataclass(frozen=True)
class Training:
    """One model, one seed. `masked`: whole words are hidden and the model sees both sides."""

    attention: str
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    masked: bool = False
    steps: int = 400
    context: int = 256
    sequences: int = 4  # in a step
    layers: int = 2
    heads: int = 4
    width: int = 64
    positions: str = "learned"
    rate: float = 3e-3
    muon_rate: float = 0.02
    clip: float = 1.0


@functools.cache
def text() -> tuple[Vocab, Tensor, Tensor]:
    """The vocabulary, and training and held-out text as ids; no person is in both."""
    corpus = load_corpus("world", people=PEOPLE, rewrites=REWRITES)
    documents: dict[str, list[str]] = {}
    for document in corpus.documents():
        documents.setdefault(document.name, []).append(document.text)
    names = list(documents)
    vocab = Vocab.from_text(corpus.vocabulary_text() + "\n")
    kept = round(len(names) * (1 - HELD_OUT))
    parts = []
    for some in (names[:kept], names[kept:]):
        generator = seeded("papers", len(some))
        generator.shuffle(some)
        lines = []
        for start in range(0, len(some), TOGETHER):
            group = [line for name in some[start : start + TOGETHER] for line in documents[name]]
            generator.shuffle(group)
            lines += group
        parts.append(torch.tensor(vocab.encode("\n".join(lines))))
    return vocab, parts[0], parts[1]


def batch(source: Tensor, starts: Sequence[int], training: Training, *draw: object) -> list[Tensor]:
    """Inputs and targets. Masked: 15 % of the words; the target of what is shown is PAD."""
    span = training.context
    rows = torch.stack([source[start : start + span + 1] for start in starts])
    if not training.masked:
        return [rows[:, :-1], rows[:, 1:]]
    vocab, _, _ = text()
    rows = rows[:, :-1]
    letters = torch.tensor([character.isalnum() for character in vocab.characters])[rows]
    begins = letters & ~F.pad(letters[:, :-1], (1, 0))
    word = begins.cumsum(1)
    generator = torch.Generator().manual_seed(seeded(*draw).getrandbits(63))
    chosen = torch.rand(len(rows), span + 1, generator=generator) < 0.15
    hidden = letters & chosen.gather(1, word)
    return [rows.masked_fill(hidden, MASK), rows.masked_fill(~hidden, PAD)]


def build(training: Training) -> GPT:
    """A GPT that starts as the identity; masked, its attention has no triangle."""
    vocab, _, _ = text()
    config = ModelConfig(
        layers=training.layers,
        heads=training.heads,
        width=training.width,
        context=training.context,
        attention=training.attention,
        options=training.options,
        positions=training.positions,  # type: ignore[arg-type]
        dropout=0.0,
        bias=False,
        start="zero",
    )
    torch.manual_seed(seeded("weights", training.seed).getrandbits(63))
    model = GPT(config, len(vocab))
    if training.masked:
        for block in model.layers():
            block.attention = MECHANISMS[training.attention](
                training.width,
                training.heads,
                training.context,
                causal=False,
                bias=False,
                **training.options,
            )
            nn.init.zeros_(block.attention.proj.weight)
    return model


@torch.no_grad()
def evaluate(model: GPT, training: Training) -> tuple[float, float]:
    """Mean cross-entropy in nats and accuracy in percent, per target, on held-out people."""
    _, _, source = text()
    model.eval()
    stride = (len(source) - training.context - 1) // EVALUATED
    lost = right = count = 0.0
    for first in range(0, EVALUATED, 16):
        starts = [stride * number for number in range(first, first + 16)]
        inputs, targets = batch(source, starts, training, "held out", first)
        logits = model(inputs).flatten(0, 1)
        targets = targets.flatten()
        lost += float(F.cross_entropy(logits, targets, ignore_index=PAD, reduction="sum"))
        right += int((logits.argmax(-1) == targets).sum())
        count += int((targets != PAD).sum())
    return lost / count, 100 * right / count


def fit(training: Training) -> tuple[GPT, Result]:
    """Train; stops where the loss is no number, and says at which step."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    _, source, _ = text()
    model = build(training)
    stage = StageConfig(
        optimizer="muon",
        rate=training.rate,
        muon_rate=training.muon_rate,
        weight_decay=0.0,
        schedule="linear",
        floor=0.0,
        warmup=20,
        steps=training.steps,
    )
    optimizers = make_optimizers(model, stage)
    curve: list[float] = []
    largest = 0.0
    for step in range(training.steps):
        draw = seeded("batch", training.seed, step)
        starts = [
            draw.randrange(len(source) - training.context - 1) for _ in range(training.sequences)
        ]
        inputs, targets = batch(source, starts, training, "masks", training.seed, step)
        set_rates(optimizers, rate_factor(stage, {"steps": step}, step / training.steps))
        model.train()
        loss = model.loss(inputs, targets)
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        limit = training.clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), limit))
        curve.append(loss.item())
        if not (math.isfinite(curve[-1]) and math.isfinite(norm)):
            return model, {"broke": step + 1, "curve": curve, "largest_gradient": largest}
        largest = max(largest, norm)
        for optimizer in optimizers:
            optimizer.step()
    loss_value, accuracy = evaluate(model, training)
    return model, {
        "loss": round(loss_value, 5),
        "accuracy": round(accuracy, 3),
        "broke": None,
        "curve": [round(value, 4) for value in curve],
        "largest_gradient": round(largest, 3),
        "parameters": model.parameter_count(),
    }


def _work(training: Training) -> Result:
    """In the store, so that an interrupted experiment goes on with the next training."""
    settings = {**asdict(training), "text": [PEOPLE, REWRITES, TOGETHER, HELD_OUT, EVALUATED]}
    name = f"training-{training.attention}"
    return remembered(name, settings, lambda: fit(training)[1], fresh=False)["result"]


def train_all(trainings: Sequence[Training], jobs: int) -> list[Result]:
    """All of them, in as many processes as there may be, results in order."""
    if jobs == 1:
        return [_work(training) for training in trainings]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_work, trainings))


def summary(results: Sequence[Result], key: str = "loss") -> tuple[float, float]:
    """Mean over seeds, and half the distance of the extremes."""
    values = [result[key] for result in results]
    return sum(values) / len(values), (max(values) - min(values)) / 2
