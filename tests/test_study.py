"""A study: every row checked first, run once, gone on with after a stop, told in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny import recipe, write_course
from whence import study as studying
from whence.config import Config
from whence.errors import WhenceError
from whence.pipeline import begin, carry_out, with_full_path
from whence.recipe import to_toml
from whence.report import write_report
from whence.study import (
    dotted,
    free_folder,
    repeating,
    run_study,
    study_of_run,
    system_config,
    table,
)
from whence.train import Interrupted


def tiny_study(course: Path, **changes: Any) -> Config:
    systems = [
        {"name": "without", "label": "no pretraining", "skip": ["pretrain"]},
        {"name": "softmax"},
        {"name": "rope", "set": {"model.attention": "rope"}},
    ]
    study = {"title": "tiny", "systems": systems, **changes}
    return recipe(corpus={"name": f"course:{course}"}, train={"threads": 1}, study=study)


@pytest.fixture(scope="module")
def done(course: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("studies") / "tiny"
    return run_study(tiny_study(course), folder, "whence study tiny.toml"), folder


def test_a_study_is_what_the_design_says(done: tuple[dict[str, Any], Path]) -> None:
    study, folder = done
    assert json.loads((folder / "study.json").read_text(encoding="utf-8")) == study
    assert study["format"] == "whence-study/1" and study["title"] == "tiny"
    assert set(study) == {
        "format", "title", "command", "recipe", "seed", "started", "seconds", "machine",
        "versions", "corpus", "split", "systems",
    }  # fmt: skip
    kinds = [(system["name"], system["kind"], system["pretrained"]) for system in study["systems"]]
    assert kinds == [
        ("London", "baseline", None),
        ("most common place", "baseline", None),
        ("similar name", "baseline", None),
        ("without", "trained", False),
        ("softmax", "trained", True),
        ("rope", "trained", True),
    ]
    assert [s["attention"] for s in study["systems"][3:]] == ["softmax", "softmax", "rope"]
    for system in study["systems"]:
        assert system["correct"] == sum(answer["correct"] for answer in system["answers"])
        assert system["total"] == len(system["answers"]) == 6
        low, high = system["interval"]
        assert low <= system["accuracy"] <= high
    for system in study["systems"][3:]:
        assert (folder / system["run"] / "evaluation.json").exists()
        assert system["describe"]["attention"]["mechanism"] == system["attention"]
        assert system["curve"][-1]["accuracy"] == system["accuracy"]
        assert {point["stage"] for point in system["loss"]} <= {"pretrain", "finetune"}


def test_the_table_names_every_row(done: tuple[dict[str, Any], Path]) -> None:
    lines = table(done[0]).splitlines()
    assert len(lines) == 8
    assert lines[0].split()[:3] == ["system", "right", "accuracy"]
    assert lines[5].startswith("no pretraining") and "6" in lines[5]
    assert len({len(line) for line in lines[:2]}) == 1


def test_a_report_can_be_written(done: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    path = write_report(done[0], tmp_path / "report.html")
    assert "no pretraining" in path.read_text(encoding="utf-8")


def test_a_finished_study_is_not_run_again(
    done: tuple[dict[str, Any], Path], course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, folder = done
    monkeypatch.setattr("whence.pipeline.train", None)
    again = run_study(tiny_study(course), folder, "whence study tiny.toml")
    keep = [{k: v for k, v in s.items() if k != "seconds"} for s in study["systems"]]
    assert keep == [{k: v for k, v in s.items() if k != "seconds"} for s in again["systems"]]
    # It still began when it began, took what it took, and was made by what made it.
    assert again["started"] == study["started"] and again["seconds"] >= study["seconds"] > 0
    assert again["versions"] == study["versions"] and again["machine"] == study["machine"]


def test_a_stopped_study_goes_on_where_it_stopped(
    done: tuple[dict[str, Any], Path], course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    real = carry_out

    def stop_at_softmax(run: Any, title: str) -> dict[str, Any]:
        begun.append(title)
        if title == "softmax" and begun.count("softmax") == 1:
            raise Interrupted("stopped at step 3")
        return real(run, title)

    monkeypatch.setattr(studying, "carry_out", stop_at_softmax)
    folder = tmp_path / "study"
    with pytest.raises(Interrupted):
        run_study(tiny_study(course), folder, "whence study tiny.toml")
    partly = json.loads((folder / "study.json").read_text())
    assert [system["name"] for system in partly["systems"]][3:] == ["without"]
    assert free_folder(folder, tiny_study(course)) == folder, "unfinished"
    other = tiny_study(course, title="other")
    assert free_folder(folder, other).name == "study-2", "another recipe's"
    study = run_study(tiny_study(course), folder, "whence study tiny.toml --by another way")
    assert study["command"] == "whence study tiny.toml" and study["started"] == partly["started"]
    assert study["seconds"] > partly["seconds"]
    assert free_folder(folder, tiny_study(course)).name == "study-2", "finished"
    assert begun == ["without", "softmax", "without", "softmax", "rope"]
    for one, other in zip(study["systems"], done[0]["systems"], strict=True):
        assert one["answers"] == other["answers"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"systems": []}, "has no [[study.systems]]"),
        ({"systems": [{"name": "a"}, {"name": "a"}]}, "two systems of the study"),
        ({"systems": [{"name": "a", "skip": ["pretraining"]}]}, "skips stage 'pretraining'"),
        ({"systems": [{"name": "a", "skip": ["pretrain", "finetune"]}]}, "at least one"),
        ({"systems": [{"name": "a", "set": {"model.widht": 3}}]}, "did you mean 'width'"),
        ({"systems": [{"name": "a"}, {"name": "b", "set": {"model.attention": "x"}}]}, "'x'"),
        ({"systems": [{"name": "a", "set": {"corpus.name": "moon"}}]}, "unknown corpus 'moon'"),
        ({"systems": [{"name": "a"}], "baselines": ["Paris"]}, "unknown baseline 'Paris'"),
        ({"systems": [{"name": "a", "set": {"study.title": "x"}}]}, "sets [study]"),
    ],
)
def test_a_row_that_cannot_run_is_refused_before_any_row_runs(
    changes: dict[str, Any], reason: str, course: Path, tmp_path: Path
) -> None:
    with pytest.raises(WhenceError) as error:
        run_study(tiny_study(course, **changes), tmp_path / "study", "")
    assert reason in str(error.value)
    assert not (tmp_path / "study").exists()


def test_a_folder_belongs_to_one_recipe(
    done: tuple[dict[str, Any], Path], course: Path, tmp_path: Path
) -> None:
    with pytest.raises(WhenceError, match="study of another recipe"):
        run_study(tiny_study(course, title="other"), done[1], "")
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(WhenceError, match="is not empty and holds no study"):
        run_study(tiny_study(course), tmp_path, "")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_row_changes_what_it_names_and_nothing_else(course: Path) -> None:
    config = tiny_study(course)
    nested = {"model": {"width": 32}, "stages": {"pretrain": {"rate": 0.5}}, "seed": 9}
    flat = {"model.width": 32, "stages.pretrain.rate": 0.5, "seed": 9}
    assert dotted(nested) == flat == dotted(flat)
    systems = [{"name": "a", "set": nested}, {"name": "b", "set": flat}]
    study = tiny_study(course, systems=systems).study
    one, other = (system_config(config, system) for system in study.systems)
    assert one == other
    assert one.model.width == 32 and one.model.context == 64 and one.model.layers == 2
    assert one.stages[0].rate == 0.5 and one.stages[0].steps == 8 and one.seed == 9
    assert one.stages[1] == config.stages[1]


def test_skipping_a_stage_does_not_lengthen_the_others(course: Path) -> None:
    systems = [{"name": "a", "skip": ["pretrain"]}]
    stages = [
        {"name": "pretrain", "share": 3.0, "mixture": {"spans": 1.0}},
        {"name": "finetune", "share": 1.0, "mixture": {"questions": 1.0}},
    ]
    config = recipe(train={"seconds": 100.0, "steps": 400}, stages=stages)
    (system,) = tiny_study(course, systems=systems).study.systems
    row = system_config(config, system)
    assert row.train.seconds == 25.0 and row.train.steps == 100
    short = recipe(train={"seconds": 100.0, "steps": 1}, stages=stages)
    assert system_config(short, system).train.steps == 1  # none would be no bound
    assert [stage.name for stage in row.stages] == ["finetune"]


def test_a_run_is_a_study_with_one_system(course: Path, tmp_path: Path) -> None:
    run = begin(recipe(corpus={"name": f"course:{course}"}), tmp_path / "run")
    with pytest.raises(WhenceError, match="is not finished: `whence resume"):
        study_of_run(run.path)
    carry_out(run)
    study = study_of_run(run.path)
    (system,) = study["systems"]
    assert system["name"] == "run" and system["total"] == 6 and study["seed"] == 3
    assert write_report(study, tmp_path / "report.html").exists()


def test_a_study_stopped_in_its_first_row_knows_when_it_began(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(run: Any, title: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studying, "carry_out", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(tiny_study(course), tmp_path / "study", "whence study tiny.toml")
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["started"] and len(kept["systems"]) == 3


def test_a_study_of_changed_files_does_not_go_on(tmp_path: Path) -> None:
    course = write_course(tmp_path / "course")
    one = tiny_study(course, systems=[{"name": "one"}, {"name": "two"}])
    run_study(tiny_study(course, systems=[{"name": "one"}]), tmp_path / "study", "")
    (tmp_path / "study" / "recipe.toml").write_text(to_toml(with_full_path(one)))
    for name, change in (("birth_dev.tsv", "Rome"), ("wiki.txt", "born")):
        text = (course / name).read_text()
        (course / name).write_text(text.replace(change, change[::-1]))
        with pytest.raises(WhenceError, match=r"is not what .* was trained and asked with"):
            run_study(one, tmp_path / "study", "")
        (course / name).write_text(text)
    assert len(run_study(one, tmp_path / "study", "")["systems"]) == 5


def test_a_row_that_fails_is_named(course: Path, tmp_path: Path) -> None:
    systems = [{"name": "fast", "set": {"stages.pretrain.rate": 1e30}}]
    with pytest.raises(WhenceError, match="system 'fast': "):
        run_study(tiny_study(course, systems=systems), tmp_path / "study", "")


@pytest.mark.parametrize(
    "arguments",
    [["study", "a b.toml", "--out", "x"], ["study", "--out=x", "a b.toml"], ["study", "a b.toml"]],
)
def test_the_command_that_repeats_makes_its_own_folder(arguments: list[str]) -> None:
    assert repeating(arguments) == "whence study 'a b.toml'"


def test_the_open_book_is_known_to_read(course: Path, tmp_path: Path) -> None:
    config = tiny_study(course, baselines=["London", "open book"], systems=[{"name": "one"}])
    rows = run_study(config, tmp_path / "study", "")["systems"]
    assert [row["pretrained"] for row in rows] == [None, True, True]
    assert rows[2]["describe"]["precision"] == "float32" and "commit" in rows[2]["describe"]
