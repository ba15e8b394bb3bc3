"""Training: golden curves, seeds, bounds, honest failures."""

from __future__ import annotations

import io
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny import (
    BORN,
    PLACES,
    SPLITS,
    TinyCorpus,
    recipe,
    write_course,
)
from tiny_runs import quiet, train_tiny, weights
from whence.attention import MECHANISMS
from whence.batches import Batches, Place
from whence.errors import WhenceError
from whence.evaluate import accuracy
from whence.files import read_lines
from whence.gradient import backward
from whence.model import GPT
from whence.pipeline import begin, carry_out
from whence.progress import Progress
from whence.recipe import from_table, load_recipe, to_table
from whence.run import TRAINING, Run
from whence.stages import after_save, due, stage_bounds, whole_share
from whence.train import build_model, train
from whence.vocab import Vocab

GOLDEN = Path(__file__).parent / "golden"
REPOSITORY = Path(__file__).parent.parent


# Golden curves

GOLDEN_RECIPES: dict[str, dict[str, Any]] = {
    **{name: {"attention": name} for name in MECHANISMS},
    "bottleneck": {"bottleneck": 16, "layers": 3},
    "muon": {"positions": "rope", "norm": "rms", "activation": "relu2", "bias": False},
}


@pytest.mark.parametrize("name", list(GOLDEN_RECIPES))
def test_twenty_steps_are_what_they_always_were(
    name: str, tmp_path: Path, regenerate_golden: bool
) -> None:
    """A change that is not about computation leaves these losses alone."""
    model = {"layers": 2, "heads": 4, "width": 32, "context": 64, "dropout": 0.0}
    rule = {"optimizer": "muon"} if name == "muon" else {"optimizer": "adamw", "rate": 3e-3}
    config = recipe(
        model={**model, **GOLDEN_RECIPES[name]},
        train={"evaluations": 0, "threads": 1},
        stages=[
            {"name": "pretrain", "steps": 12, "batch": 512, "mixture": {"spans": 1.0}, **rule},
            {
                "name": "finetune",
                "steps": 8,
                "batch": 256,
                "mixture": {"questions": 0.75, "salient": 0.25},
                **rule,
            },
        ],
    )
    model_after, metrics = train_tiny(tmp_path / "run", config)
    found = {
        "parameters": model_after.parameter_count(),
        "losses": [record["loss"] for record in metrics],
        "characters": metrics[-1]["characters"],
    }
    path = GOLDEN / f"{name}.json"
    if regenerate_golden:
        path.write_text(json.dumps(found, indent=1) + "\n")
    if not path.exists():
        pytest.fail(f"{path.name} is missing: pytest --regenerate-golden writes it")
    golden = json.loads(path.read_text())
    assert len(found["losses"]) == 20
    assert found["characters"] == golden["characters"]
    assert found["parameters"] == golden["parameters"]
    assert found["losses"] == pytest.approx(golden["losses"], rel=2e-3)


# What decides a result


def test_seeds_decide_and_nothing_else_does(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one, _ = train_tiny(tmp_path / "one", recipe())
    state = torch.random.get_rng_state()
    other, _ = train_tiny(tmp_path / "other", recipe())
    assert torch.equal(torch.random.get_rng_state(), state)  # torch's own generator is left alone
    third, _ = train_tiny(tmp_path / "third", recipe(seed=4))
    assert torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.head.weight, third.head.weight)


def test_looking_at_dev_changes_nothing(tmp_path: Path) -> None:
    often, log = train_tiny(tmp_path / "often", recipe(train__evaluations=4))
    never, silent = train_tiny(tmp_path / "never", recipe(train__evaluations=0))
    assert torch.equal(often.head.weight, never.head.weight)
    scored = [record["step"] for record in log if "accuracy" in record]
    assert scored == [2, 4, 6, 8, 10, 11, 13]  # four a stage; after the last step the caller asks
    assert not any("accuracy" in record for record in silent)


def test_poisoned_dev_and_test_answers_change_nothing_in_training(tmp_path: Path) -> None:
    """Bit for bit: nothing that trains or chooses has looked at them.

    With a memory, Muon and questions from the first step, as in recipes/recall.toml; and the lies
    have a character that stands nowhere else, which a vocabulary made of them would have.
    """
    lies = {name: f"{PLACES[(PLACES.index(place) + 1) % 5]}ł" for name, place in BORN.items()}
    mixed = {"picked": 1, "spans": 1, "questions": 1}
    runs = []
    for name, answers in (("true", BORN), ("poisoned", lies)):
        folder = write_course(tmp_path / name, answers)
        stages = [
            {"name": "pretrain", "steps": 12, "batch": 512, "mixture": mixed, "optimizer": "muon"},
            {"name": "finetune", "steps": 12, "batch": 256, "mixture": {"questions": 1.0}},
        ]
        config = recipe(corpus={"name": f"course:{folder}"}, stages=stages, model__memory=64)
        run = begin(config, tmp_path / f"run-{name}")
        carry_out(run)
        runs.append(run)
    true, poisoned = (weights(run.path) for run in runs)
    assert all(torch.equal(true[name], poisoned[name]) for name in true)
    assert runs[0].vocab() == runs[1].vocab()
    losses = [[r["loss"] for r in run.metrics() if "loss" in r] for run in runs]
    assert losses[0] == losses[1]
    answers = [[r["answer"] for r in read_lines(run.path / "answers.jsonl")] for run in runs]
    expected = [[r["expected"] for r in read_lines(run.path / "answers.jsonl")] for run in runs]
    assert answers[0] == answers[1] and expected[0] != expected[1]


# Stages and bounds


def test_stages_follow_each_other(tmp_path: Path) -> None:
    _, metrics = train_tiny(tmp_path / "run", recipe())
    losses = [record for record in metrics if "loss" in record]
    assert [record["step"] for record in losses] == list(range(1, 15))
    assert [record["stage"] for record in losses] == ["pretrain"] * 8 + ["finetune"] * 6
    assert losses[0]["rate"] == losses[8]["rate"] == 1.0  # each stage has its own schedule
    seconds = [record["seconds"] for record in metrics]
    assert seconds == sorted(seconds)
    characters = [record["characters"] for record in losses]
    assert characters == sorted(characters) and len(set(characters)) == 14


def test_bounds_of_the_whole_are_shared_out() -> None:
    config = recipe(train={"steps": 100, "seconds": 60.0})
    assert stage_bounds(config, config.stages[0]) == {"steps": 8.0, "seconds": 30.0}
    table = to_table(recipe(train={"steps": 100}))
    for stage, share in zip(table["stages"], (3.0, 1.0), strict=True):
        stage.update(steps=0, share=share)
    config = from_table(table)
    assert [stage_bounds(config, stage)["steps"] for stage in config.stages] == [75, 25]
    assert whole_share(config, 0, 1.0) == 0.75 and whole_share(config, 1, 0.5) == 0.875


def test_a_bound_in_seconds_ends_a_training_in_time(tmp_path: Path) -> None:
    table = to_table(recipe(train={"seconds": 0.4, "threads": 1, "evaluations": 0}))
    for stage in table["stages"]:
        stage["steps"] = 0
    began = time.monotonic()
    _, metrics = train_tiny(tmp_path / "run", from_table(table))
    assert time.monotonic() - began < 10
    assert 0.4 <= metrics[-1]["seconds"] < 2
    assert {record["stage"] for record in metrics} == {"pretrain", "finetune"}


def test_an_epoch_is_a_pass_over_the_largest_part(tmp_path: Path) -> None:
    stage = {"name": "pretrain", "epochs": 2.0, "batch": 64, "mixture": {"questions": 1.0}}
    _, metrics = train_tiny(tmp_path / "run", recipe(stages=[stage]))
    one_row = sum(len(f"Where was {n} born?⁇{BORN[n]}") for n in SPLITS["train"])
    # Rows of nearly one length, one or two a batch: two epochs of twelve questions.
    assert metrics[-1]["characters"] == pytest.approx(2 * one_row, rel=0.15)


def test_evaluations_are_spread_evenly() -> None:
    done, at = 0, []
    for step in range(1, 101):
        if due(5, done, step / 100):
            done += 1
            at.append(step)
    assert at == [20, 40, 60, 80, 100]
    assert not due(0, 0, 1.0) and due(1, 0, 1.0) and not due(1, 1, 1.0)


@pytest.mark.slow
def test_the_loss_falls_and_the_answers_come(tmp_path: Path) -> None:
    """The whole point, in small: a tiny model learns its training questions by heart."""
    stage = {"name": "finetune", "steps": 200, "batch": 512, "mixture": {"questions": 1.0}}
    config = recipe(
        model={"layers": 2, "heads": 2, "width": 32, "context": 64, "dropout": 0.0},
        train__evaluations=0,
        stages=[{**stage, "optimizer": "muon"}],
    )
    corpus = TinyCorpus()
    model, metrics = train_tiny(tmp_path / "run", config, corpus)
    losses = [record["loss"] for record in metrics]
    assert losses[0] > 3 and losses[-1] < 0.5
    vocab = Vocab.from_text(corpus.vocabulary_text())
    assert accuracy(model, vocab, corpus.questions("train")) == (12, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "low", "high"),
    [
        pytest.param([], 90, 100, id="as it is"),
        pytest.param(["stages.train.mixture={questions=1.0}"], 0, 20, id="without documents"),
    ],
)
def test_the_recall_recipe_knows_an_invented_world(
    change: list[str], low: float, high: float, tmp_path: Path
) -> None:
    """Dev people are never asked about in training: what is known of them was read."""
    settings = ["corpus.name=world", "corpus.people=300", "train.seconds=0", "train.steps=300"]
    settings += ["train.threads=1", "train.evaluations=0", *change]
    config = load_recipe(REPOSITORY / "recipes" / "recall.toml", settings)
    result = carry_out(begin(config, tmp_path / "run"))
    assert low <= result["accuracy"] <= high


def test_a_batch_in_parts_has_the_gradient_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    model = build_model(recipe(model__dropout=0.0), vocab)
    mixture = {"spans": 1.0, "questions": 1.0}
    batches = Batches(corpus, vocab, mixture, block=64, positions=1024, seed=0, stage="a")
    batch, _ = next(batches.read(Place()))
    loss = model.loss(batch.inputs, batch.targets)
    loss.backward()
    whole = [parameter.grad for parameter in model.parameters()]
    for part in (1, 100, 333, 10**6):
        monkeypatch.setattr("whence.batches.PART", part)
        assert backward(model.loss, model.parameters(), batch) == pytest.approx(
            loss.item(), rel=1e-5
        )
        for parameter, expected in zip(model.parameters(), whole, strict=True):
            torch.testing.assert_close(parameter.grad, expected, atol=1e-6, rtol=1e-3)


# Failures


def test_a_loss_that_is_not_a_number_is_reported_with_step_and_row(tmp_path: Path) -> None:
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    config = recipe(model__dropout=0.0)
    model = build_model(config, vocab)
    with torch.no_grad():
        model.embedding.weight[vocab.encode("L")] = math.nan  # of Lima; not in every row
    run = Run.create(tmp_path / "run", config)
    with pytest.raises(WhenceError, match=r"the loss is nan at step \d+, row \d+: '.*L.*'"):
        train(run, corpus, vocab, model, quiet())
    assert not (run.path / TRAINING).exists()  # the broken state is not kept


def test_a_loss_that_no_single_row_breaks_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GPT, "loss", lambda self, *_: self.head.weight.sum() * torch.tensor(math.inf)
    )
    with pytest.raises(WhenceError, match="in no single row: the rate may be too high"):
        train_tiny(tmp_path / "run", recipe())


@pytest.mark.parametrize("message", ["no C++ compiler\nat all", ""])
def test_without_a_compiler_one_line_and_on(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        def fail(*_: Any) -> None:
            raise RuntimeError(message)

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    stream = io.StringIO()
    config = recipe(train={"compile": "auto", "evaluations": 0, "threads": 1}, model__memory=64)
    corpus = TinyCorpus()
    vocab = Vocab.from_text(corpus.vocabulary_text())
    model = build_model(config, vocab)
    run = Run.create(tmp_path / "run", config)
    clock = train(run, corpus, vocab, model, Progress("test", stream))
    assert clock.step == 14
    said = [line for line in stream.getvalue().splitlines() if "compile" in line]
    assert len(said) == 1 and "going on without it" in said[0]
    assert (message.partition("\n")[0] or "RuntimeError") in said[0]
    # The trial was not a step: the memory counts as it would without a compiler.
    plain = recipe(train={"evaluations": 0, "threads": 1}, model__memory=64)
    never_tried, _ = train_tiny(tmp_path / "plain", plain)
    assert model.memory is not None and never_tried.memory is not None
    assert torch.equal(model.memory.written, never_tried.memory.written)


@pytest.mark.slow
def test_compiled_training_is_the_same_training(tmp_path: Path) -> None:
    """Where a compiler is there; otherwise the line above is printed and eager runs."""
    losses = []
    for compile_ in ("off", "auto"):
        config = recipe(
            model={"layers": 1, "heads": 2, "width": 16, "context": 33, "dropout": 0.0},
            train={"compile": compile_, "evaluations": 0, "threads": 1},
            stages=[{"name": "pretrain", "steps": 6, "batch": 512, "mixture": {"next": 1.0}}],
        )
        _, metrics = train_tiny(tmp_path / compile_, config)
        losses.append([record["loss"] for record in metrics])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_checkpoint_that_takes_long_is_written_seldom() -> None:
    assert after_save(100.0, 100.1, every=30.0) == 130.1
    assert after_save(100.0, 140.0, every=30.0) == 140.0 + 20 * 40.0
    assert after_save(100.0, 140.0, every=0.0) == 140.0, "0 is after every step, whatever it costs"
