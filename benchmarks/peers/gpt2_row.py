"""transformers: GPT2LMHeadModel of the course's size with the library's own Trainer."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from contest import say, serve
from errand import Errand
from textbook import Vocabulary, span_example

errand = Errand.read()
task, folder, amount = errand.task, errand.folder, errand.amount
documents, questions = errand.documents, errand.questions
vocabulary = Vocabulary(errand.characters)
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=len(vocabulary),
    n_positions=128,
    n_embd=256,
    n_layer=4,
    n_head=8,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
model = GPT2LMHeadModel(config)


class Spans(torch.utils.data.Dataset):
    """Span corruption as everywhere; drawn anew whenever a document is read."""

    def __init__(self) -> None:
        self.generator = random.Random(0)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> list[int]:
        inputs, targets = span_example(documents[index % len(documents)], 128, self.generator)
        return vocabulary.encode((inputs + targets[-1]).rstrip("□"))


class Collator:
    """Pads to the longest of the batch; between two slices it waits for the next "go".

    The Trainer asks for one batch a step, so that from one call to the call `amount` later lies
    exactly the work of `amount` steps, everything that the Trainer does around them included.
    """

    def __init__(self, steps: int, warm_up: int) -> None:
        self.steps, self.warm_up = steps, warm_up
        self.calls, self.characters, self.start = 0, 0, 0.0

    def __call__(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        call = self.calls - self.warm_up
        if call >= 0 and call % self.steps == 0:
            self.turn(first=call == 0)
        self.calls += 1
        self.characters += sum(len(row) - 1 for row in rows)
        length = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        mask = tokens != 0
        labels = tokens.masked_fill(~mask, -100)
        return {"input_ids": tokens, "attention_mask": mask.long(), "labels": labels}

    def turn(self, first: bool) -> None:
        if first:
            say({"ready": True})
        else:
            say({"amount": self.characters, "seconds": time.perf_counter() - self.start})
        if not sys.stdin.readline():
            raise SystemExit
        self.characters, self.start = 0, time.perf_counter()


if task == "training":
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=128,
            learning_rate=6e-4,
            weight_decay=0.1,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            max_steps=100_000,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=Spans(),
            data_collator=Collator(steps=amount, warm_up=2),
        ).train()
else:
    model.eval()
    with torch.no_grad():
        model.lm_head.weight[:2] = 0  # ⁇ and □ never win, so every row decodes 32 characters
    answers = (folder / "answers.txt").read_text(encoding="utf-8").splitlines()
    # With trained weights an answer ends with its mask; the length is taken from Whence's answers.
    lengths = [min(32, len(answer) + 1) for answer in answers] or [32] * len(questions)
    asked = 0

    def work() -> float:
        """The next `amount` questions, one at a time, with the library's cache."""
        global asked
        for _ in range(amount):
            prompt = torch.tensor([vocabulary.encode(questions[asked % len(questions)] + "⁇")])
            length = lengths[asked % len(questions)]
            asked += 1
            decoded = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=length,
                do_sample=False,
                pad_token_id=0,
            )
            assert decoded.shape[1] == prompt.shape[1] + length
        return amount

    serve(work)
