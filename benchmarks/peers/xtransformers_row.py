"""x-transformers of the course's size, in the loop that its README shows."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

from contest import serve
from errand import Errand
from textbook import Vocabulary, span_example

errand = Errand.read()
task, folder, amount = errand.task, errand.folder, errand.amount
documents, questions = errand.documents, errand.questions
vocabulary = Vocabulary(errand.characters)
torch.manual_seed(0)
model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=len(vocabulary),
        max_seq_len=128,
        emb_dropout=0.1,
        attn_layers=Decoder(
            dim=256,
            depth=4,
            heads=8,
            attn_dim_head=32,
            attn_dropout=0.1,
            ff_dropout=0.1,
            attn_flash=True,
        ),
    ),
    ignore_index=0,
    pad_value=0,
)

if task == "training":
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    generator = random.Random(0)
    place = 0

    def work() -> float:
        """`amount` steps of 128 examples, padded to the longest of the batch."""
        global place
        characters = 0
        for _ in range(amount):
            rows = []
            for i in range(128):
                document = documents[(place + i) % len(documents)]
                inputs, targets = span_example(document, 128, generator)
                rows.append(vocabulary.encode((inputs + targets[-1]).rstrip("□")))
            place += 128
            length = max(map(len, rows))
            characters += sum(len(row) - 1 for row in rows)
            loss = model(torch.tensor([row + [0] * (length - len(row)) for row in rows]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return characters
else:
    model.eval()
    with torch.no_grad():
        # ⁇ and □ never win, so every row decodes 32 characters.
        model.net.to_logits.weight[:2] = 0
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
            decoded = model.generate(prompt, length, temperature=0.0, cache_kv=True)
            assert decoded.shape[1] == length
        return amount


serve(work)
