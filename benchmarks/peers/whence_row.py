"""Whence's row: `whence.train.train` itself, watched through its progress, and `whence.answer`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from contest import say, serve
from errand import Errand
from whence.answer import answer_questions
from whence.batches import Batch, Batches, Row
from whence.config import Config, ModelConfig, StageConfig, TrainConfig
from whence.corpus.base import Document, Question
from whence.course.checkpoint import fill, read_checkpoint
from whence.model import GPT
from whence.progress import Progress
from whence.run import Run
from whence.train import build_model, train
from whence.vocab import Vocab

errand = Errand.read()
task, folder, amount = errand.task, errand.folder, errand.amount
compiling, precision = sys.argv[4:6] if len(sys.argv) > 5 else ("off", "float32")
vocab = Vocab.from_text(errand.characters)


class Documents:
    """The contest's text as a corpus."""

    name = "contest"

    def documents(self) -> list[Document]:
        return [Document(line) for line in errand.documents]

    def questions(self, split: str) -> list[Question]:
        return []

    def people(self) -> list[object]:
        return []

    def vocabulary_text(self) -> str:
        return errand.text

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


class Turns(Progress):
    """Counts what the loop does and waits for the next "go" after every `amount` steps."""

    def __init__(self, model: GPT) -> None:
        super().__init__("contest", every=1e9)
        linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
        self.matrices = sum(m.weight.numel() for m in linear)
        self.layers, self.width = model.config.layers, model.config.width
        self.done = {"amount": 0.0, "positions": 0.0, "flops": 0.0}
        self.steps, self.start = 0, 0.0

    def count(self, batch: Batch) -> None:
        positions, length = batch.inputs.numel(), batch.inputs.shape[1]
        each = 6 * self.matrices + 12 * self.layers * self.width * length / 2
        self.done["amount"] += int((batch.targets != 0).sum())
        self.done["positions"] += positions
        self.done["flops"] += positions * each

    def update(self, **news: object) -> None:
        if self.start == 0.0:
            # Two steps warm the memory allocator; a compiler sees enough lengths in thirty.
            self.steps += 1
            if self.steps < (30 if compiling == "auto" else 2):
                return
            self.steps = 0
            say({"ready": True})
        else:
            self.steps += 1
            if self.steps % amount:
                return
            say({**self.done, "seconds": time.perf_counter() - self.start})
        if not sys.stdin.readline():
            raise SystemExit
        self.done = dict.fromkeys(self.done, 0.0)
        self.start = time.perf_counter()


def main() -> None:
    # The course's model and its optimiser; the batch is about as many useful characters as the
    # course's 128 padded examples hold.
    stage = StageConfig(
        name="pretrain", mixture={"spans": 1.0}, epochs=650, rate=6e-4, schedule="constant"
    )
    config = Config(
        model=ModelConfig(),
        train=TrainConfig(evaluations=0, compile=compiling, precision=precision),
        stages=(stage,),
    )
    model = build_model(config, vocab)
    if task == "training":
        turns = Turns(model)
        collate = Batches.collate

        def counted(self: Batches, draws: list[Row]) -> Batch:
            batch = collate(self, draws)
            turns.count(batch)
            return batch

        Batches.collate = counted  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as place:
            run = Run.create(Path(place) / "run", config)
            train(run, Documents(), vocab, model, turns)  # type: ignore[arg-type]
        return
    if (folder / "weights.params").exists():
        fill(model, read_checkpoint(folder / "weights.params"))
    else:
        with torch.no_grad():
            model.head.weight[:2] = 0  # ⁇ and □ never win, so every row decodes 32 characters
    expected = (folder / "answers.txt").read_text(encoding="utf-8").splitlines()

    def work() -> float:
        """All questions at once."""
        answers = answer_questions(model, vocab, errand.questions[:amount])
        said = [answer.text for answer in answers]
        assert said == expected[:amount] if expected else all(len(text) == 32 for text in said)
        return len(answers)

    serve(work)


main()
