"""Small corpora in the course's form, and the textbook trained on them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import textbook

FIRST = ("Ada", "Bo", "Cleo", "Dov", "Eva", "Fay", "Gus", "Ida", "Jon", "Kim", "Leo", "Mia")
LAST = ("Ames", "Brož", "Cole", "Diaz", "Esch", "Ford", "Goya", "Hahn", "Ivić", "Jung")
PLACES = ("Oslo", "Lima", "London", "Kyoto", "Accra", "Bern")
SHAPE = {"block": 64, "layers": 3, "heads": 8, "width": 32, "latents": 16}


@dataclass(frozen=True)
class Folder:
    """The course's files, written by hand for a test."""

    path: Path
    corpus: Path
    train: Path
    dev: Path
    test: Path

    @property
    def vocabulary(self) -> textbook.Vocabulary:
        return textbook.Vocabulary(self.corpus.read_text(encoding="utf-8"))

    def questions(self, path: Path) -> list[str]:
        return [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def write_folder(path: Path) -> Folder:
    draw = random.Random(7)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    # The first name gives the place away, so that a short training has something to learn.
    people = [(name, PLACES[FIRST.index(name.split()[0]) % len(PLACES)]) for name in names]
    text = "".join(f"{name}. {name}, born in {place}. Where was it?\n" for name, place in people)
    lines = [f"Where was {name} born?\t{place}\n" for name, place in people]
    folder = Folder(
        path,
        path / "wiki.txt",
        path / "birth_places_train.tsv",
        path / "birth_dev.tsv",
        path / "birth_test_inputs.tsv",
    )
    folder.corpus.write_text(text, encoding="utf-8")
    folder.train.write_text("".join(lines[:90]), encoding="utf-8")
    folder.dev.write_text("".join(lines[90:106]), encoding="utf-8")
    bare = [line.split("\t")[0] + "\n" for line in lines[106:109]]
    # Whatever a model makes of these, it is neither short nor the same for all.
    bare += ["Ada?\n", "born in?\n", "Where was it?\n", "it. Where was?\n"]
    folder.test.write_text("".join(bare), encoding="utf-8")
    return folder


def train_textbook(
    model: textbook.TextbookGPT, folder: Folder, steps: int, seed: int = 0
) -> textbook.TextbookGPT:
    """Spans and questions in turns: enough for weights that are far from where they started."""
    vocabulary, draw = folder.vocabulary, random.Random(seed)
    documents = folder.corpus.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in folder.train.read_text(encoding="utf-8").splitlines()]
    optimizer = textbook.optimizer_of(model, 1e-2)
    block = model.shape.block
    model.train()
    for step in range(steps):
        if step % 2:
            chosen = draw.sample(pairs, 8)
            examples = [textbook.name_example(q, place, block) for q, place in chosen]
        else:
            spans = draw.sample(documents, 8)
            examples = [textbook.span_example(document, block, draw) for document in spans]
        textbook.train_step(model, optimizer, *textbook.batch_of(examples, vocabulary))
    return model.eval()
