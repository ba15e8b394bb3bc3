"""The run directory: never overwritten, never half-written, always the way to go on."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from tiny import BORN, NAMES, SPLITS, TinyCorpus, recipe, write_course
from whence import load
from whence.corpus.course import CourseCorpus
from whence.errors import WhenceError
from whence.files import read_json, read_lines, write_text
from whence.listing import list_folder
from whence.pipeline import (
    begin,
    carry_out,
    check,
    claim,
    evaluate_run,
    make_vocab,
    open_corpus,
)
from whence.recipe import to_toml
from whence.run import TRAINING, Run, fingerprint, machine, usable_threads, versions
from whence.train import build_model


@pytest.fixture(scope="module")
def finished(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over; nobody writes into it."""
    config = recipe(corpus={"name": f"course:{course}"})
    run = begin(config, tmp_path_factory.mktemp("runs") / "finished")
    carry_out(run)
    return run.path


def test_a_finished_run_has_what_the_design_says(finished: Path) -> None:
    names = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    assert names == {
        ".lock",
        "config.toml",
        "vocab.json",
        "origin.json",
        "metrics.jsonl",
        "checkpoints/model.safetensors",
        "checkpoints/config.json",
        "answers.jsonl",
        "evaluation.json",
    }
    origin = read_json(finished / "origin.json")
    assert set(origin) == {
        "parent", "arguments", "seed", "versions", "machine", "corpus", "content", "model",
    }  # fmt: skip
    assert origin["model"]["attention"]["mechanism"] == "softmax"
    assert origin["corpus"]["documents"] == len(NAMES) + 1
    for record in read_lines(finished / "metrics.jsonl"):
        kind = {"loss", "rate", "characters"} if "loss" in record else {"accuracy", "correct"}
        assert {"step", "stage", "seconds"} | kind <= set(record)
    answers = read_lines(finished / "answers.jsonl")
    assert [answer["name"] for answer in answers] == SPLITS["dev"]
    assert [answer["expected"] for answer in answers] == [BORN[name] for name in SPLITS["dev"]]
    for answer in answers:
        assert set(answer) == {
            "question", "name", "expected", "answer", "correct", "probability", "stated", "seen",
        }  # fmt: skip
        assert answer["correct"] == (answer["answer"] == answer["expected"])
        assert 0 < answer["probability"] <= 1 and answer["seen"] is True
    result = read_json(finished / "evaluation.json")
    assert result["correct"] == sum(answer["correct"] for answer in answers)
    assert result["total"] == 6 and result["steps"] == 14


def test_a_run_is_its_own_recipe(finished: Path, tmp_path: Path) -> None:
    config = Run.open(finished).config
    again = begin(config, tmp_path / "again")
    assert again.config == config
    carry_out(again)
    one, other = (p / "checkpoints/model.safetensors" for p in (finished, again.path))
    assert one.read_bytes() == other.read_bytes()


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*") if p.name != ".lock"}
    result = carry_out(Run.open(finished))
    assert result == read_json(finished / "evaluation.json")
    assert before == {p: p.stat().st_mtime_ns for p in finished.rglob("*") if p.name != ".lock"}


def test_a_run_that_breaks_off_while_it_is_scored_logs_its_score_once(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(recipe(corpus={"name": f"course:{course}"}), tmp_path / "run")

    def full(*_: object) -> None:
        # The state of the last step is still there, as after a kill.
        raise OSError("no space left")

    monkeypatch.setattr("whence.pipeline.write_lines", full)
    monkeypatch.setattr("whence.train.due", lambda *_: False)
    config = run.config
    object.__setattr__(config.train, "save_seconds", 0.0)  # saves after every step
    with pytest.raises(OSError, match="no space"):
        carry_out(run)
    monkeypatch.undo()
    assert (run.path / TRAINING).exists()
    carry_out(Run.open(run.path))
    assert [r["step"] for r in run.metrics() if "accuracy" in r] == [14]


def test_a_run_directory_is_never_overwritten(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match=f"whence resume {finished}"):
        Run.create(finished, recipe())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WhenceError, match="not an empty folder"):
        Run.create(tmp_path, recipe())
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(WhenceError, match="not an empty folder"):
        Run.create(tmp_path / "notes.txt", recipe())
    with pytest.raises(WhenceError, match="cannot write"):
        Run.create(tmp_path / "notes.txt" / "run", recipe())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".config.toml.123.tmp").write_text("a killed process left this")
    Run.create(tmp_path / "empty", recipe())


def test_of_many_that_create_one_directory_one_does(tmp_path: Path) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def create(seed: int) -> None:
        barrier.wait()
        try:
            Run.create(tmp_path / "run", recipe(seed=seed))
            outcomes.append(f"made {seed}")
        except WhenceError:
            outcomes.append("refused")

    threads = [threading.Thread(target=create, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [outcome for outcome in outcomes if outcome != "refused"]
    assert made == [f"made {Run.open(tmp_path / 'run').config.seed}"]


def test_a_run_killed_right_after_its_beginning_goes_on(course: Path, tmp_path: Path) -> None:
    """Only config.toml exists yet, or also the vocabulary."""
    config = recipe(corpus={"name": f"course:{course}"})
    for name in "config", "vocab":
        run = begin(config, tmp_path / name)
        if name == "vocab":
            write_text(run.path / "vocab.json", '["□", "⁇", "')  # could only be atomic: replace it
            (run.path / "vocab.json").unlink()
        assert carry_out(Run.open(run.path))["total"] == 6
        assert read_json(run.path / "origin.json")["seed"] == 3


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match=r"is not a run directory: it has no config\.toml"):
        Run.open(tmp_path)
    run = Run.create(tmp_path / "run", recipe())
    with pytest.raises(WhenceError, match=r"vocab\.json: No such file"):
        run.vocab()
    with pytest.raises(WhenceError, match="has no checkpoint yet"):
        run.model()


@given(st.lists(st.integers(0, 50), max_size=20).map(sorted), st.integers(-1, 51))
@settings(max_examples=30)
def test_forgetting_keeps_exactly_what_came_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], last: int
) -> None:
    run = Run.create(tmp_path_factory.mktemp("run") / "run", recipe())
    for step in steps:
        run.log(step, loss=float(step))
    with open(run.path / "metrics.jsonl", "ab") as stream:
        stream.write(b'{"step": 99, "los')  # killed in the middle of a line
    run.forget_after(last)
    assert [record["step"] for record in run.metrics()] == [s for s in steps if s <= last]
    run.log(100)
    assert run.metrics()[-1] == {"step": 100}


def test_an_unfinished_run_answers_with_its_newest_checkpoint(course: Path, tmp_path: Path) -> None:
    run = begin(recipe(corpus={"name": f"course:{course}"}), tmp_path / "run")
    corpus = TinyCorpus()
    from whence.vocab import Vocab

    vocab = Vocab.from_text(corpus.vocabulary_text())
    vocab.save(run.path / "vocab.json")
    model = build_model(run.config, vocab)
    run.save({"model": model.state_dict()})
    assert torch.equal(run.model().head.weight, model.head.weight)
    run.save({"model": {"other": torch.zeros(1)}})
    with pytest.raises(WhenceError, match="does not belong to the model of this run"):
        run.model()


def test_load_is_the_programmers_door(finished: Path) -> None:
    answerer = load(str(finished))
    answers = answerer.ask([NAMES[0], f"Where was {NAMES[1]} born?"])
    assert [a.question for a in answers] == [f"Where was {n} born?" for n in NAMES[:2]]
    assert answerer.ask(NAMES[0])[0].text == answers[0].text
    assert len(answerer.vocab) == answerer.model.vocabulary


# What is refused before anything is made


def broken_course(tmp_path: Path, **files: str) -> Path:
    folder = tiny.write_course(tmp_path / "course")
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"birth_dev__tsv": "Where was Ω born?\tRome\n"}, "'Ω' (U+03A9)"),
        ({"birth_dev__tsv": "Where was Ada born?\n"}, "has no answers for 1 of 1 questions"),
        ({"birth_dev__tsv": f"Where was {'Ada ' * 20}born?\tRome\n"}, "the model sees 63"),
        ({"birth_places_train__tsv": "Where was Ada born?\tΩ\n"}, "train.tsv:1: character 'Ω'"),
        ({"birth_places_train__tsv": f"Where was {'A' * 99} born?\tRome\n"}, "longer than"),
        ({"birth_dev__tsv": "Where was Ada born\tRome\n"}, "birth_dev.tsv:1: expected a question"),
        ({"wiki__txt": ""}, "nothing to train 'spans' on"),
        ({"wiki__txt": "a ⁇ b\n"}, "wiki.txt:1:3: the text holds ⁇"),
    ],
)
def test_a_corpus_that_cannot_be_used_leaves_nothing(
    files: dict[str, str], reason: str, tmp_path: Path
) -> None:
    folder = broken_course(tmp_path, **files)
    with pytest.raises(WhenceError) as error:
        begin(recipe(corpus={"name": f"course:{folder}"}), tmp_path / "run")
    assert reason in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_last_stage_is_checked_before_the_first_runs(course: Path) -> None:
    stages = [
        {"name": "a", "steps": 1, "mixture": {"spans": 1.0}},
        {"name": "b", "steps": 1, "mixture": {"question": 1.0}},
    ]
    with pytest.raises(WhenceError, match="unknown objective 'question'"):
        check(recipe(corpus={"name": f"course:{course}"}, stages=stages))


# Evaluation of a run


def test_predictions_line_for_line(finished: Path, tmp_path: Path) -> None:
    predictions, answers = tmp_path / "p.txt", tmp_path / "a.jsonl"
    result = evaluate_run(finished, "test", predictions=predictions, answers=answers)
    lines = predictions.read_text(encoding="utf-8").split("\n")
    assert len(lines) == len(SPLITS["test"]) + 1 and lines[-1] == ""
    records = read_lines(answers)
    assert [record["answer"] for record in records] == lines[:-1]
    assert [record["name"] for record in records] == SPLITS["test"]
    assert result["total"] == 6 and result["accuracy"] is not None


def test_no_answers_no_score(finished: Path, tmp_path: Path) -> None:
    folder = tiny.write_course(tmp_path / "course")
    (folder / "birth_test.tsv").unlink()
    (folder / "birth_test_inputs.tsv").write_text("Where was Ada Dunn born?\n" * 3)
    with pytest.raises(WhenceError, match="a score cannot be claimed"):
        evaluate_run(finished, "test", f"course:{folder}")
    predictions = tmp_path / "p.txt"
    result = evaluate_run(finished, "test", f"course:{folder}", predictions)
    assert result == {"split": "test", "correct": None, "total": 3, "accuracy": None}
    assert len(predictions.read_text().splitlines()) == 3


def test_ls_lists_runs_with_state_and_score(finished: Path, tmp_path: Path) -> None:
    (line,) = list_folder(finished)[1:]
    assert line.startswith("finished") and " % " in line and line.endswith("14")
    run = Run.create(tmp_path / "half", recipe())
    run.log(3, stage="pretrain", seconds=75.0, accuracy=12.5)
    before = sorted(run.path.rglob("*"))
    (line,) = list_folder(tmp_path)[1:]
    assert line.split() == ["half", "interrupted", "12.5", "%", "1:15", "3"]
    assert sorted(run.path.rglob("*")) == before
    with run.held():
        assert "running" in list_folder(tmp_path)[1]
    assert list_folder(tmp_path / "half" / "..")[0].split()[0] == "run"
    (tmp_path / "empty").mkdir()
    assert list_folder(tmp_path / "empty") == [f"no runs in {tmp_path / 'empty'}"]
    with pytest.raises(WhenceError, match="is not a folder"):
        list_folder(tmp_path / "none")


def test_versions_and_machine_are_said() -> None:
    assert set(versions()) == {"whence", "python", "torch", "numpy", "commit"}
    assert versions()["torch"] == torch.__version__
    assert set(machine()) == {"system", "cpu", "threads"} and machine()["cpu"]


def test_a_broken_config_of_a_run_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe())
    (run.path / "config.toml").write_text(to_toml(recipe()).replace("layers", "layer"))
    with pytest.raises(WhenceError, match=r"config\.toml: unknown key 'model\.layer'"):
        Run.open(run.path)


def test_a_corpus_is_known_by_what_a_training_reads(tmp_path: Path) -> None:
    folder = write_course(tmp_path / "one")
    known = fingerprint(CourseCorpus(folder))
    lies = {name: "Nowhere" for name in NAMES}
    assert fingerprint(CourseCorpus(write_course(tmp_path / "lies", lies))) == known
    (folder / "birth_test.tsv").unlink()  # whose lines are about whom is no longer known
    assert fingerprint(CourseCorpus(folder)) != known


def test_nothing_to_pick_is_found_before_a_directory_is_made(tmp_path: Path) -> None:
    folder = broken_course(tmp_path, wiki__txt="Nobody. Nobody was born in Rome, Oslo or Lima .\n")
    stages = [
        {"name": "a", "steps": 1, "mixture": {"spans": 1.0}},
        {"name": "b", "steps": 1, "mixture": {"picked": 1.0}},
    ]
    with pytest.raises(WhenceError, match="nothing to learn picking from"):
        begin(recipe(corpus={"name": f"course:{folder}"}, stages=stages), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_threads_that_run_are_on_record(finished: Path) -> None:
    assert Run.open(finished).origin()["machine"]["threads"] == 1  # the recipe's
    assert usable_threads(3) == 3 and 1 <= usable_threads(0) <= (os.cpu_count() or 1)


def test_a_run_on_a_fold_writes_predictions(course: Path, tmp_path: Path) -> None:
    run = begin(recipe(corpus={"name": f"course:{course}", "fold": 0}), tmp_path / "run")
    carry_out(run)
    result = evaluate_run(run.path, "dev", predictions=tmp_path / "p.txt")
    assert len((tmp_path / "p.txt").read_text().splitlines()) == result["total"]
    with pytest.raises(WhenceError, match="test questions are asked without one"):
        evaluate_run(run.path, "test", predictions=tmp_path / "t.txt")


def test_a_split_without_questions_writes_nothing(finished: Path, tmp_path: Path) -> None:
    folder = tiny.write_course(tmp_path / "course")
    (folder / "birth_dev.tsv").write_text("")
    with pytest.raises(WhenceError, match=r"no questions|empty"):
        evaluate_run(finished, "dev", f"course:{folder}", tmp_path / "p.txt")
    assert not (tmp_path / "p.txt").exists()


def test_a_run_goes_on_with_the_model_that_it_began_with(course: Path, tmp_path: Path) -> None:
    run = begin(recipe(corpus={"name": f"course:{course}"}), tmp_path / "run")
    vocab = make_vocab(open_corpus(run.config.corpus))
    run.write_origin(TinyCorpus(), build_model(run.config, vocab))
    origin = read_json(run.path / "origin.json")
    origin["content"] = None
    origin["model"]["attention"]["mechanism"] = "bigbird"
    write_text(run.path / "origin.json", json.dumps(origin))
    with pytest.raises(WhenceError, match="was begun with another model"):
        carry_out(run)


def test_of_many_that_take_a_default_name_each_gets_its_own(tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(claim(tmp_path / "runs" / "quick")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {"quick", *(f"quick-{number}" for number in range(2, 9))}
    assert {path.name for path in found} == wanted and len(found) == 8
    (tmp_path / "file").write_text("")
    with pytest.raises(WhenceError, match="cannot make"):
        claim(tmp_path / "file" / "quick")
