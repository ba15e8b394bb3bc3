"""Commands that cannot be carried out: one clear sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from course_folder import Folder

import textbook
from whence import precision
from whence.cli import main
from whence.run import Run

Trained = Callable[[str], tuple[textbook.TextbookGPT, Path]]
Whence = Callable[..., Result]


def test_training_refuses_before_it_begins(folder: Folder, whence: Whence) -> None:
    odd = folder.path / "odd.tsv"
    odd.write_text("Where was Ada Ames born?\tΩmsk\n", encoding="utf-8")
    base = ("finetune", "vanilla", folder.corpus, "--writing_params_path", "a.params")
    result = whence(*base, "--finetune_corpus_path", odd, code=2)
    assert f"{odd}:1: character 'Ω'" in result.stderr
    result = whence(*base, "--finetune_corpus_path", folder.test, code=2)
    assert f"{folder.test}:1: " in result.stderr
    closed = ("finetune", "vanilla", folder.corpus, "--writing_params_path", folder.path)
    result = whence(*closed, "--finetune_corpus_path", folder.train, code=2)
    assert "it is a folder" in result.stderr
    assert not (folder.path / "expt").exists() and not (folder.path / "a.params").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "vanila", "wiki.txt"), "did you mean 'vanilla'?"),
        (("evaluate", "vanilla"), "the corpus is missing"),
        (("evaluate", "vanilla", "wiki.txt"), "evaluate needs --reading_params_path"),
        (("pretrain", "vanilla", "wiki.txt"), "pretrain needs --writing_params_path"),
        (("finetune", "rope", "wiki.txt", "--writing_params_path", "a"), "--finetune_corpus_path"),
        (("pretrain", "vanilla", "wiki.txt", "more.txt"), "found 3 words"),
        (("pretrain", "vanilla", "wiki.txt", "--pretrain_rl", "1"), "No such option"),
        (("pretrain", "vanilla", "wiki.txt", "--pretrain_lr", "fast"), "not a valid float"),
        (("dataset", "names"), "namedata"),
        (("london", "nowhere.tsv"), "nowhere.tsv"),
    ],
)
def test_wrong_command_lines(
    words: tuple[str, ...], said: str, folder: Folder, whence: Whence
) -> None:
    before = sorted(folder.path.rglob("*"))
    assert said in whence(*words, code=2).stderr
    assert sorted(folder.path.rglob("*")) == before


def test_other_commands_say_where_a_training_of_the_course_goes_on(
    folder: Folder, whence: Whence, trained: Trained
) -> None:
    whence(
        *("finetune", "perceiver", folder.corpus, "--finetune_corpus_path", folder.train),
        *("--reading_params_path", trained("perceiver")[1], "--writing_params_path", "mine.params"),
        *("--steps", "1", "--threads", "1"),
    )
    [run] = Path("expt/finetune").iterdir()
    for command, words in (
        (["resume", run], "it is finished"),
        (["evaluate", run], "give --corpus course:FOLDER"),
        (["ask", run, "Ada Ames"], str(folder.path / "mine.params")),
    ):
        result = CliRunner().invoke(main, [str(word) for word in command])
        assert result.exit_code == 2 and words in result.stderr
    assert "finished" in CliRunner().invoke(main, ["ls", "expt"]).stdout
    # As an interruption leaves it.
    record = json.loads((run / "course.json").read_text())
    (run / "course.json").write_text(json.dumps({**record, "finished": False}))
    result = CliRunner().invoke(main, ["resume", str(run)])
    assert result.exit_code == 2 and "the same command as before goes on" in result.stderr
    assert "interrupted" in CliRunner().invoke(main, ["ls", "expt"]).stdout


def test_a_folder_that_was_killed_before_it_knew_its_command(
    folder: Folder, whence: Whence, trained: Trained
) -> None:
    command = (
        *("finetune", "vanilla", folder.corpus, "--finetune_corpus_path", folder.train),
        *("--reading_params_path", trained("vanilla")[1], "--writing_params_path", "mine.params"),
        *("--steps", "1", "--threads", "1"),
    )
    whence(*command)
    [run] = Path("expt/finetune").iterdir()
    for path in run.iterdir():
        if path.is_file() and path.name != "config.toml":
            path.unlink()
    whence(*command)
    assert [run] == list(Path("expt/finetune").iterdir())


@pytest.mark.parametrize(
    ("option", "value"),
    [("--pretrain_lr", "nan"), ("--pretrain_lr", "inf"), ("--seconds", "nan"), ("--epochs", "inf")],
)
def test_numbers_that_are_none(option: str, value: str, folder: Folder, whence: Whence) -> None:
    writing = folder.path / "new.params"
    result = whence(
        *("pretrain", "vanilla", folder.corpus, "--writing_params_path", writing),
        *("--steps", "1", option, value),
        code=2,
    )
    assert "is not a finite number" in result.stderr
    assert not writing.exists() and not (folder.path / "expt").exists()


def test_nothing_that_is_read_is_written(folder: Folder, trained: Trained, whence: Whence) -> None:
    before = folder.corpus.read_bytes(), folder.test.read_bytes()
    checkpoint = trained("vanilla")[1]
    for arguments in (
        ("pretrain", "vanilla", folder.corpus, "--writing_params_path", folder.corpus),
        (
            *("evaluate", "vanilla", folder.corpus, "--reading_params_path", checkpoint),
            *("--eval_corpus_path", folder.test, "--outputs_path", folder.test),
        ),
    ):
        assert "is read by this command" in whence(*arguments, code=2).stderr
    assert before == (folder.corpus.read_bytes(), folder.test.read_bytes())


def test_a_question_that_is_too_long_leaves_nothing(folder: Folder, whence: Whence) -> None:
    questions = folder.path / "long.tsv"
    known = folder.corpus.read_text(encoding="utf-8")[0]
    questions.write_text(f"Where was {known * 9} born?\t{known * 200}\n", encoding="utf-8")
    result = whence(
        *("finetune", "vanilla", folder.corpus, "--writing_params_path", folder.path / "w"),
        *("--finetune_corpus_path", questions, "--steps", "1"),
        code=2,
    )
    assert "long.tsv:1: the question with its answer is" in result.stderr
    assert not (folder.path / "expt").exists()


def test_the_folder_of_the_course_s_own_program_is_left_alone(
    folder: Folder, whence: Whence
) -> None:
    theirs = Path("expt/pretrain/run_vanilla_pt_lr_0.006000_ft_lr_0.000600")
    theirs.mkdir(parents=True)
    (theirs / "events.out.tfevents.1").write_text("theirs")
    command = ("pretrain", "vanilla", folder.corpus, "--writing_params_path", "v.params")
    said = whence(*command, "--steps", "1").stderr
    assert f"log in {theirs}-2" in said
    assert [path.name for path in theirs.iterdir()] == ["events.out.tfevents.1"]


def test_a_precision_that_does_not_work_leaves_nothing(
    folder: Folder, whence: Whence, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = precision.Trial(failure="the trial ended with SIGILL")
    monkeypatch.setattr(precision, "try_bfloat16", lambda threads: broken)
    command = ("pretrain", "rope", folder.corpus, "--writing_params_path", "r.params")
    said = whence(*command, "--steps", "1", "--precision", "bfloat16", code=2).stderr
    assert "SIGILL" in said and '"float32" does' in said
    assert not Path("expt").exists()
    whence(*command, "--steps", "1", "--precision", "float32")
    (record,) = Path("expt").rglob("course.json")
    assert json.loads(record.read_text())["precision"] == "float32"


@pytest.mark.parametrize(("option", "value"), [("--seed", 2**63), ("--threads", 3_000_000_000)])
def test_numbers_that_nothing_can_hold(
    option: str, value: int, folder: Folder, whence: Whence
) -> None:
    command = ("pretrain", "vanilla", folder.corpus, "--writing_params_path", "v.params")
    assert option in whence(*command, option, str(value), code=2).stderr


def test_a_perceiver_has_latents(folder: Folder, whence: Whence) -> None:
    result = whence(
        *("pretrain", "perceiver", folder.corpus, "--writing_params_path", "new.params"),
        *("--bottleneck_dim", "0"),
        code=2,
    )
    assert "a perceiver needs --bottleneck_dim of at least 1" in result.stderr


def test_a_training_stays_in_expt(folder: Folder, whence: Whence) -> None:
    command = ("pretrain", "vanilla", folder.corpus, "--writing_params_path", "new.params")
    short = ("--steps", "1", "--threads", "1", "--tb_expt_name")
    result = whence(*command, *short, "../../out", code=2)
    assert "would lead out of expt/pretrain" in result.stderr
    assert not Path("new.params").exists()
    whence(*command, *short, str(folder.path / "away"))
    assert [path.name for path in folder.path.glob("away*")] == []
    assert list(Path("expt/pretrain").rglob("metrics.jsonl"))


def test_killed_at_the_very_end_a_training_is_finished(
    folder: Folder, whence: Whence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(run: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "forget_training", killed)
    command = ["pretrain", "vanilla", str(folder.corpus), "--writing_params_path", "new.params"]
    done = CliRunner().invoke(main, ["course", *command, "--steps", "1", "--threads", "1"])
    assert done.exit_code != 0
    [record] = Path("expt/pretrain").glob("*/course.json")
    assert json.loads(record.read_text())["finished"] is True
    assert Path("new.params").exists()
