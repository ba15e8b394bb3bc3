"""With the course's own files: the figures that everybody who took it has seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

import textbook

Whence = Callable[..., Result]
FOLDER = Path(
    os.environ.get("WHENCE_COURSE", Path(__file__).resolve().parents[3] / "shared" / "course")
)

pytestmark = [
    pytest.mark.course,
    pytest.mark.skipif(
        not (FOLDER / "wiki.txt").exists(), reason=f"no course data in {FOLDER}: set WHENCE_COURSE"
    ),
]


def test_london_gets_five_percent(
    whence: Whence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = whence("london", FOLDER / "birth_dev.tsv")
    assert result.stdout == "Correct: 25.0 out of 500.0: 5.0%\n"
    assert Path("london_baseline_accuracy.txt").read_text() == "5.0\n"


def test_data_and_parameters_as_the_course_prints_them(whence: Whence) -> None:
    corpus = FOLDER / "wiki.txt"
    lines = whence("dataset", "charcorruption", "--corpus", corpus).stdout.splitlines()
    assert lines[0] == "data has 418352 characters, 256 unique."


@pytest.mark.slow
def test_a_full_size_checkpoint_answers_as_in_the_textbook(
    whence: Whence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = FOLDER / "wiki.txt"
    whence(
        *("finetune", "rope", corpus, "--writing_params_path", "rope.params", "--steps", "1"),
        *("--finetune_corpus_path", FOLDER / "birth_places_train.tsv", "--finetune_lr", "1e-2"),
    )
    result = whence(
        *("evaluate", "rope", corpus, "--reading_params_path", "rope.params"),
        *("--eval_corpus_path", FOLDER / "birth_test_inputs.tsv", "--outputs_path", "out"),
    )
    assert "number of parameters: 3290624" in result.stdout
    predictions = Path("out").read_text(encoding="utf-8").split("\n")
    assert len(predictions) == 437 + 1 and predictions[-1] == ""
    model = textbook.TextbookGPT(textbook.Shape(variant="rope"))
    model.load_state_dict(torch.load("rope.params", weights_only=True), strict=True)
    vocabulary = textbook.Vocabulary(corpus.read_text(encoding="utf-8"))
    questions = (FOLDER / "birth_test_inputs.tsv").read_text(encoding="utf-8").splitlines()
    for number in (0, 100, 200, 436):
        assert textbook.answer(model, vocabulary, questions[number]) == predictions[number]
