"""Draws what every attention mechanism does with one sentence, for docs/attention.md.

    python tools/draw_patterns.py                 # all pictures, about a minute
    python tools/draw_patterns.py softmax bigbird

Each mechanism gets the same small GPT (2 layers, 2 heads, width 32), trained for 150 steps on an
invented world from the same seed, in float64 and on one thread: rounding stays far below a shade,
so that the pictures come out the same, byte for byte. The drawn sentence is not in the training.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.attention import MECHANISMS
from whence.batches import seeded
from whence.config import ModelConfig
from whence.corpus import load_corpus
from whence.files import write_text
from whence.model import GPT
from whence.vocab import PAD, Vocab

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures" / "attention"
SENTENCE = "Mai Endo. Endo, the Tokyo-born cyclist, lives in Rome ."
STEPS, ROWS, CONTEXT = 150, 8, 96

PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "rope": ("rope", {}),
    "synthesizer-dense": ("synthesizer", {"form": "dense"}),
    "synthesizer-random": ("synthesizer", {"form": "random"}),
    "synthesizer-course": ("synthesizer", {"form": "course"}),
    "linformer": ("linformer", {"projected": 16}),
    "bigbird": ("bigbird", {"block": 6, "window": 2, "random": 1, "leading": 1}),
    "performer": ("performer", {"features": 64}),
    "performer-trig": ("performer", {"features": 64, "kind": "trig"}),
    "perceiver": ("perceiver", {"latents": 16}),
    "perceiver-course": ("perceiver", {"form": "course", "latents": 16}),
}


def lessons() -> tuple[Vocab, list[list[int]]]:
    corpus = load_corpus("world", people=1000, rewrites=2)
    texts = [document.text for document in corpus.documents()]
    vocab = Vocab.from_text(corpus.vocabulary_text() + SENTENCE)
    return vocab, [vocab.encode(text)[:CONTEXT] for text in texts if "Endo" not in text]


def train(mechanism: str, options: dict[str, Any]) -> tuple[GPT, Tensor]:
    """A briefly trained model and the sentence's ids."""
    vocab, documents = lessons()
    config = ModelConfig(
        layers=2,
        heads=2,
        width=32,
        context=CONTEXT,
        attention=mechanism,
        options=options,
        dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(config, len(vocab)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, (step + 1) / 20) * (1 - step / STEPS)
        rows = seeded("drawing", step).sample(documents, ROWS)
        longest = max(map(len, rows))
        padded = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        loss = model.loss(padded[:, :-1], padded[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval(), torch.tensor([vocab.encode(SENTENCE)])


@torch.no_grad()
def patterns(model: GPT, tokens: Tensor) -> list[tuple[str, Tensor]]:
    """(T, T) per panel: each layer's first head."""
    x, found = model.embed(tokens), []
    for number, block in enumerate(model.layers(), 1):
        found.append((f"layer {number}, head 1", block.attention.pattern(block.norm1(x))[0, 0]))
        x = block(x)
    return found


# Drawing ----------------------------------------------------------------------------------------

CELL, MARGIN, TITLE, SHADES = 7, 14, 20, 12


def shade(weight: float) -> int:
    """-12 ... 12, of the root, so that small weights show too."""
    level = round(min(abs(weight), 1.0) ** 0.5 * SHADES)
    return level if weight > 0 else -level


def colour(level: int) -> str:
    part = abs(level) / SHADES
    start, end = (255, 255, 255), (18, 60, 130) if level > 0 else (170, 30, 30)
    mixed = [round(a + (b - a) * part) for a, b in zip(start, end, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def panel(title: str, pattern: Tensor, sentence: str) -> str:
    """One heat map: a row for each query, a column for each source."""
    runs: dict[int, list[str]] = {}
    for i, row in enumerate(pattern.tolist()):
        levels = [shade(weight) for weight in row]
        j = 0
        while j < len(levels):
            end = j
            while end < len(levels) and levels[end] == levels[j]:
                end += 1
            if levels[j]:
                runs.setdefault(levels[j], []).append(f"M{j} {i}h{end - j}")
            j = end
    size = len(sentence)
    paths = "".join(
        f'<path stroke="{colour(level)}" d="{"".join(runs[level])}"/>\n' for level in sorted(runs)
    )
    letters = "".join(
        f'<text x="{MARGIN + (n + 0.5) * CELL}" y="{TITLE + MARGIN - 4}">{escape(c)}</text>'
        f'<text x="{MARGIN - 5}" y="{TITLE + MARGIN + (n + 0.8) * CELL:.1f}">{escape(c)}</text>'
        for n, c in enumerate(sentence)
    )
    frame = f'fill="none" stroke="#999" stroke-width="{1 / CELL:.3f}"'
    return (
        f'<text x="{MARGIN}" y="14" font-size="12" font-weight="bold">{escape(title)}</text>\n'
        f'<g font-family="monospace" font-size="7" text-anchor="middle">{letters}</g>\n'
        f'<g transform="translate({MARGIN},{TITLE + MARGIN}) scale({CELL})">\n'
        f'<g transform="translate(0,0.5)">\n{paths}</g>\n'
        f'<path {frame} d="M0 0H{size}V{size}H0z"/></g>\n'
    )


def draw(name: str) -> str:
    mechanism, options = PICTURES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = patterns(*train(mechanism, options))
    finally:
        torch.set_num_threads(before)
    side = MARGIN + CELL * len(SENTENCE) + 10
    width, height = side * len(found), TITLE + MARGIN + CELL * len(SENTENCE) + 6
    panels = "".join(
        f'<g transform="translate({number * side},0)">\n{panel(title, pattern, SENTENCE)}</g>\n'
        for number, (title, pattern) in enumerate(found)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f"<title>{escape(name)} on: {escape(SENTENCE)}</title>\n"
        f'<rect width="{width}" height="{height}" fill="white"/>\n{panels}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pictures")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in PICTURES]
    if unknown:
        parser.error(f"no picture is called {unknown[0]}; known: {', '.join(PICTURES)}")
    assert {mechanism for mechanism, _ in PICTURES.values()} == set(MECHANISMS)
    for name in given.names or PICTURES:
        path = given.out / f"pattern-{name}.svg"
        write_text(path, draw(name))
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
