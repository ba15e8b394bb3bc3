"""Every command line of the course runs unchanged and prints what it printed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from course_folder import Folder

import textbook
from tiny import TinyCorpus
from whence.batches import Batches, Place
from whence.corpus.base import Document, Question
from whence.course.training import Request, make_stage
from whence.optim import rate_factor
from whence.vocab import Vocab

Trained = Callable[[str], tuple[textbook.TextbookGPT, Path]]
Whence = Callable[..., Result]
# A student's script, with the bounds that make it short enough for a test.
SCRIPT = """
pretrain {variant} wiki.txt {extra} --pretrain_lr 6e-3 --writing_params_path v.pretrain.params
finetune {variant} wiki.txt {extra} --reading_params_path v.pretrain.params
  --writing_params_path v.finetune.params --finetune_corpus_path birth_places_train.tsv
evaluate {variant} wiki.txt {extra} --reading_params_path v.finetune.params
  --eval_corpus_path birth_dev.tsv --outputs_path v.dev.predictions
evaluate {variant} wiki.txt {extra} --reading_params_path v.finetune.params
  --eval_corpus_path birth_test_inputs.tsv --outputs_path v.test.predictions
"""


def lines_of(script: str) -> list[list[str]]:
    return [shlex.split(line) for line in script.replace("\n  ", " ").strip().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "extra"),
    [
        ("vanilla", ""),
        ("", ""),
        ("synthesizer", ""),
        ("perceiver", "--bottleneck_dim 64"),
        ("", "--bottleneck_dim 24"),
        ("rope", "--tb_expt_name first"),
    ],
)
def test_a_students_script(variant: str, extra: str, folder: Folder, whence: Whence) -> None:
    script = lines_of(SCRIPT.format(variant=variant, extra=extra))
    short = ("--steps", "1", "--threads", "1")
    whence(*script[0], *short)
    whence(*script[1], *short)
    dev = whence(*script[2])
    questions = folder.dev.read_text(encoding="utf-8").splitlines()
    predictions = Path("v.dev.predictions").read_text(encoding="utf-8").splitlines()
    pairs = zip(questions, predictions, strict=True)
    right = float(sum(question.split("\t")[1] == place for question, place in pairs))
    text = folder.corpus.read_text(encoding="utf-8")
    count = {"synthesizer": 3_076_988, "rope": 3_290_624}.get(variant, 3_323_392)
    if "bottleneck" in extra:
        count += int(extra.split()[-1]) * 256
    count -= 2 * 256 * (256 - len(folder.vocabulary))
    assert dev.stdout.splitlines() == [
        f"data has {len(text)} characters, {len(folder.vocabulary)} unique.",
        f"number of parameters: {count}",
        f"Correct: {right} out of 16.0: {right / 16.0 * 100}%",
    ]
    test = whence(*script[3])
    assert test.stdout.splitlines()[2:] == [
        "No gold birth places provided; returning (0,0)",
        "Predictions written to v.test.predictions; no targets provided",
    ]
    written = Path("v.test.predictions").read_text(encoding="utf-8")
    assert written.count("\n") == len(folder.questions(folder.test))
    state = torch.load("v.finetune.params", weights_only=True)
    asked = variant or ("perceiver" if extra else "vanilla")
    shape = textbook.Shape(
        vocabulary=len(folder.vocabulary),
        variant=asked,
        latents=int(extra.split()[-1]) if "bottleneck" in extra else 32,
    )
    textbook.TextbookGPT(shape).load_state_dict(state, strict=True)


def test_london(folder: Folder, whence: Whence) -> None:
    lines = folder.dev.read_text(encoding="utf-8").splitlines()
    right = float(sum(line.endswith("\tLondon") for line in lines))
    said = f"Correct: {right} out of 16.0: {right / 16 * 100}%\n"
    commands = (("london", "birth_dev.tsv"), ("london_baseline",), ("src/london_baseline.py",))
    for command in commands:
        assert whence(*command).stdout == said
    written = Path("london_baseline_accuracy.txt").read_text(encoding="utf-8")
    assert written == f"{right / 16 * 100}\n"
    assert "no answers" in whence("london", folder.test, code=2).stderr


def test_unrounded_percentages_as_the_course_prints_them() -> None:
    from whence.course.evaluation import score_lines

    questions = [Question("?", "Oslo" if number < 9 else "Lima") for number in range(500)]
    [line] = score_lines(questions, ["Oslo"] * 500, "out")
    assert line == "Correct: 9.0 out of 500.0: 1.7999999999999998%"


def test_dataset_prints_four_examples(folder: Folder, whence: Whence) -> None:
    for script in ("dataset", "dataset.py", "src/dataset.py"):
        greeting, *lines = whence(script, "namedata").stdout.splitlines()
        assert greeting.startswith("data has ") and len(lines) == 8
        question, place = folder.train.read_text(encoding="utf-8").splitlines()[0].split("\t")
        x, y = textbook.name_example(question, place, 128)
        assert lines[:2] == [f"x: {x}", f"y: {y}"]


def test_span_examples_keep_the_public_graders_rules(folder: Folder, whence: Whence) -> None:
    documents = folder.corpus.read_text(encoding="utf-8").splitlines()
    for seed in range(5):
        _, *lines = whence("dataset", "charcorruption", "--seed", str(seed)).stdout.splitlines()
        for number in range(4):
            x, y = (line[3:] for line in lines[2 * number : 2 * number + 2])
            assert len(x) == len(y) == 127 and x[1:] == y[:-1]
            text = x.rstrip("□")
            prefix, suffix, masked = text.split("⁇")
            assert documents[number].startswith(prefix + masked + suffix)
            assert "□" not in text and 4 <= len(prefix + masked + suffix) <= 112


def test_options_that_change_nothing_say_so(
    trained: Trained, folder: Folder, whence: Whence
) -> None:
    result = whence(
        *("evaluate", "vanilla", folder.corpus, "--reading_params_path", trained("vanilla")[1]),
        *("--eval_corpus_path", folder.dev, "--outputs_path", "out", "--bottleneck_dim", "32"),
        *("--pretrain_lr", "6e-3"),
    )
    assert result.stderr.splitlines() == [
        "--bottleneck_dim changes nothing in evaluate vanilla",
        "--pretrain_lr changes nothing in evaluate vanilla",
    ]


def test_the_beginning_of_an_option_is_enough_if_it_can_be_only_one(
    folder: Folder, whence: Whence, trained: Trained
) -> None:
    command = ["evaluate", "vanilla", str(folder.corpus), "--eval_corpus_path", str(folder.dev)]
    weights = str(trained("vanilla")[1])
    whence(*command, "--reading", weights, "--outputs=short")
    whence(*command, "--reading_params_path", weights, "--outputs_path", "long")
    assert Path("short").read_text() == Path("long").read_text()
    assert "No such option '--e'" in whence(*command, "--e", weights, code=2).stderr  # of two
    assert "No such option" in whence(*command, "--readings", weights, code=2).stderr


def test_help_shows_it_all(whence: Whence) -> None:
    everything = whence("--help").stdout
    for word in ("pretrain", "finetune", "evaluate", "dataset", "london", "--bottleneck_dim"):
        assert word in everything
    for function in ("pretrain", "finetune", "evaluate"):
        text = whence(function, "--help").stdout
        for option in ("reading_params_path", "outputs_path", "tb_expt_name", "pretrain_lr"):
            assert f"--{option}" in text
        assert text.index("The course's options") < text.index("not in the course")


def test_importing_the_commands_does_not_import_torch() -> None:
    check = "import sys, whence.course.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def finetune(folder: Folder, *more: str) -> list[str]:
    return [
        *("finetune", "vanilla", str(folder.corpus), "--writing_params_path", "a.params"),
        *("--finetune_corpus_path", str(folder.train), "--threads", "1", *more),
    ]


def test_dev_is_watched_and_the_log_kept(folder: Folder, whence: Whence, trained: Trained) -> None:
    checkpoint = trained("vanilla")[1]
    more = ("--reading_params_path", str(checkpoint), "--epochs", "8", "--tb_expt_name", "watched")
    result = whence(*finetune(folder, *more))
    assert "of 16 right" in result.stderr
    [run] = Path("expt/finetune").iterdir()
    assert run.name == "watched_vanilla_pt_lr_0.006000_ft_lr_0.000600"
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("accuracy" in record for record in log)
    assert any("loss" in record for record in log)
    scores = [record for record in log if "accuracy" in record]
    assert scores[-1]["step"] == log[-1]["step"] and scores[-1]["epochs"] >= 8
    assert f"dev {scores[-1]['correct']} of 16 right" in result.stderr
    # The same command again is a new training, beside the old one.
    whence(*finetune(folder, *more))
    assert len(list(Path("expt/finetune").iterdir())) == 2


@pytest.mark.slow
def test_interrupted_training_goes_on_to_the_same_result(
    folder: Folder, whence: Whence, trained: Trained
) -> None:
    """SIGINT saves and says how to go on; the result is that of the uninterrupted training."""
    program = "from whence.cli import main; main()"
    small = ("--reading_params_path", str(trained("vanilla")[1]))
    arguments = ["course", *finetune(folder, *small, "--steps", "40")]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    log = Path("expt/finetune/run_vanilla_pt_lr_0.006000_ft_lr_0.000600/metrics.jsonl")
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command goes on from there" in said
    assert not Path("a.params").exists()
    other = whence(*finetune(folder, *small, "--steps", "2"))
    assert f"{log.parent} holds a training of other files or options, not finished" in other.stderr
    assert Path(f"{log.parent}-2/metrics.jsonl").exists()
    again = whence(*finetune(folder, *small, "--steps", "40"))
    assert "going on with expt" in again.stderr
    resumed = torch.load("a.params", weights_only=True)
    whence(*finetune(folder, *small, "--steps", "40", "--tb_expt_name", "whole"))
    whole = torch.load("a.params", weights_only=True)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("function", "reading", "epochs"),
    [("pretrain", None, 650), ("finetune", None, 75), ("finetune", Path("a"), 10)],
)
@pytest.mark.parametrize("items", [1, 20, 300])
def test_an_epoch_of_a_small_file_is_a_step(
    function: str, reading: Path | None, epochs: int, items: int
) -> None:
    """The course's batches end with their epoch, so that twenty examples are one batch of it."""
    texts = [
        Document(f"A{n}. A{n} was born in Rome and lived there for {n} years .", f"A{n}")
        for n in range(items)
    ]
    asked = [Question(f"Where was A{n} born?", "Rome", f"A{n}") for n in range(items)]
    request = Request(function, "vanilla", Path("w"), Path("p"), reading)
    stage = make_stage(request, texts, asked)
    corpus = TinyCorpus(texts, {"train": asked, "dev": asked, "test": asked})
    vocab = Vocab.from_text(corpus.vocabulary_text())
    batches = Batches(
        corpus, vocab, stage.mixture, block=128, positions=stage.batch, seed=0, stage=function
    )
    examples = steps = 0
    for batch, _ in batches.read(Place()):
        if batches.epochs(examples) >= min(epochs, 40):
            break
        examples, steps = examples + batch.examples, steps + 1
    an_epoch = max(1.0, items / (128 if function == "pretrain" else 256))
    assert steps == pytest.approx(an_epoch * min(epochs, 40), rel=0.25)


def test_the_first_step_of_a_finetuning_counts_its_own_tokens() -> None:
    """2,000 questions are more than the warm-up: the course's first step has the full rate."""
    texts = [Document("Ada. Ada was born in Rome .", "Ada")] * 2900
    asked = [Question("Where was Ada born?", "Rome", "Ada")] * 2000
    stage = make_stage(
        Request("finetune", "vanilla", Path("w"), Path("p"), Path("r")), texts, asked
    )
    assert rate_factor(stage, {"epochs": 256 / 2000}, 0.0) == pytest.approx(1.0, abs=1e-3)
    assert rate_factor(stage, {"epochs": 20 / 2000}, 0.0) == pytest.approx(20 * 127 / 10240)
