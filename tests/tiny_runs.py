"""Training the smallest of everything in this process, and comparing two runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from tiny import (
    TinyCorpus,
)
from whence.config import Config
from whence.files import read_json, read_lines
from whence.model import GPT
from whence.progress import Progress
from whence.run import Run
from whence.train import build_model, train
from whence.vocab import Vocab


def quiet() -> Progress:
    return Progress("test", io.StringIO())


def train_tiny(
    path: Path, config: Config, corpus: TinyCorpus | None = None
) -> tuple[GPT, list[dict[str, Any]]]:
    corpus = corpus or TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    run = Run.create(path, config)
    model = build_model(config, vocab)
    train(run, corpus, vocab, model, quiet())
    return model, run.metrics()


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return GPT.from_pretrained(path / "checkpoints").state_dict()


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit the same weights, the same log but for the clock, the same answers."""
    before, after = weights(one), weights(other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    logs = [timeless(Run.open(path).metrics()) for path in (one, other)]
    assert logs[0] == logs[1]
    answers = [read_lines(path / "answers.jsonl") for path in (one, other)]
    assert answers[0] == answers[1]
    scores = [read_json(path / "evaluation.json") for path in (one, other)]
    for key in ("split", "correct", "total", "accuracy", "interval", "steps", "characters"):
        assert scores[0][key] == scores[1][key]
