"""Bad input: one clear sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from course_folder import Folder

import textbook
from whence import precision
from whence.cli import main
from whence.run import Run

Trained = Callable[[str], tuple[textbook.TextbookGPT, Path]]
Whence = Callable[..., Result]


class Trap:
    """What a hostile file would like to have run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture
def refuse(folder: Folder, whence: Whence) -> Callable[..., str]:
    """Evaluates and expects a refusal: returns its sentence, having checked all the rest."""

    def run(checkpoint: Path, variant: str = "vanilla", **changes: Path) -> str:
        before = sorted(folder.path.rglob("*"))
        outputs = folder.path / "predictions"
        options = {"corpus": folder.corpus, "questions": folder.test, **changes}
        result = whence(
            *("evaluate", variant, options["corpus"], "--reading_params_path", checkpoint),
            *("--eval_corpus_path", options["questions"], "--outputs_path", outputs),
            code=2,
        )
        assert result.stdout == ""
        assert result.stderr.startswith("whence: ") and result.stderr.count("\n") == 1
        assert sorted(folder.path.rglob("*")) == before
        return result.stderr

    return run


def test_missing_checkpoint(refuse: Callable[..., str], folder: Folder) -> None:
    assert "nowhere.params" in refuse(folder.path / "nowhere.params")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_truncated_checkpoint(
    kept: float, refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    content = trained("vanilla")[1].read_bytes()
    short = folder.path / "short.params"
    short.write_bytes(content[: int(kept * len(content))])
    assert "cut short" in refuse(short)


@pytest.mark.parametrize("legacy", [False, True])
def test_malicious_checkpoint_runs_nothing(
    legacy: bool, refuse: Callable[..., str], folder: Folder
) -> None:
    mark, bad = folder.path / "touched", folder.path / "bad.params"
    trap = {"tok_emb.weight": Trap(mark)}
    torch.save(trap, bad, _use_new_zipfile_serialization=not legacy)
    assert "could run any program" in refuse(bad)
    bad.write_bytes(pickle.dumps(trap))
    assert "bad.params" in refuse(bad)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [b"Where was Ada Ames born?\tOslo\n", b"\x80\x04N.", b"PK\x03\x04", b"\x00" * 64],
)
def test_not_a_checkpoint(content: bytes, refuse: Callable[..., str], folder: Folder) -> None:
    (folder.path / "other.params").write_bytes(content)
    assert "other.params" in refuse(folder.path / "other.params")


@pytest.mark.parametrize(
    "holds",
    [
        {},
        {"a": 1},
        [1, 2],
        {"conv1.weight": torch.zeros(2)},
        {"tok_emb.weight": torch.zeros(3, 4), "head.weight": torch.zeros(3, 4)},
        {"tok_emb.weight": torch.zeros(()), "head.weight": torch.zeros(())},
    ],
)
def test_another_kind_of_file(holds: object, refuse: Callable[..., str], folder: Folder) -> None:
    torch.save(holds, folder.path / "other.params")
    assert "other.params" in refuse(folder.path / "other.params")


def test_checkpoint_of_another_variant(refuse: Callable[..., str], trained: Trained) -> None:
    for written, asked in (("rope", "vanilla"), ("synthesizer", "vanilla"), ("vanilla", "rope")):
        sentence = refuse(trained(written)[1], asked)
        assert f"holds a {written} model" in sentence and f"not the {asked} model" in sentence


def test_checkpoint_of_another_vocabulary(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    other = folder.path / "other.txt"
    other.write_text(folder.corpus.read_text(encoding="utf-8") + "Ω\n", encoding="utf-8")
    assert "do not belong together" in refuse(trained("vanilla")[1], corpus=other)


def changed(path: Path, change: Callable[[dict[str, torch.Tensor]], None], target: Path) -> Path:
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, target)
    return target


def test_missing_left_over_and_misshapen_tensors_are_named(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    path, target = trained("vanilla")[1], folder.path / "changed.params"
    name = "blocks.1.attn.key.weight"
    assert name in refuse(changed(path, lambda state: state.__delitem__(name), target))
    extra = {"blocks.1.attn.w7.weight": torch.zeros(3)}
    assert "w7" in refuse(changed(path, lambda state: state.update(extra), target))
    wrong = {name: torch.zeros(5, 5)}
    assert "(5, 5)" in refuse(changed(path, lambda state: state.update(wrong), target))
    twice = {"blocks.1.attn.k.weight": torch.zeros(5, 5)}
    assert "two tensors" in refuse(changed(path, lambda state: state.update(twice), target))


def test_another_rotation_is_another_model(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    def turn(state: dict[str, torch.Tensor]) -> None:
        for name in state:
            if name.endswith("rope_cache"):
                state[name] = state[name].flip(-1)

    bad = changed(trained("rope")[1], turn, folder.path / "turned.params")
    assert "rotation" in refuse(bad, "rope")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Where was Ωmega born?", "'Ω' (U+03A9)"),
        ("Where was Ada Ames born", "?"),
        ("", "blank"),
        ("Where was Ada\tAmes\tborn?", "tab"),
    ],
)
def test_bad_questions_are_named_by_line(
    line: str, said: str, refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    questions = folder.path / "questions.tsv"
    questions.write_text(f"Where was Ada Ames born?\n{line}\nAda?\n", encoding="utf-8")
    sentence = refuse(trained("vanilla")[1], questions=questions)
    assert f"{questions}:2: " in sentence and said in sentence


def test_missing_and_empty_files(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    checkpoint, empty = trained("vanilla")[1], folder.path / "empty.txt"
    empty.write_bytes(b"")
    for changes in (
        {"corpus": folder.path / "nowhere.txt"},
        {"questions": folder.path / "nowhere.tsv"},
        {"corpus": empty},
        {"questions": empty},
        {"corpus": folder.path},
    ):
        assert str(next(iter(changes.values()))) in refuse(checkpoint, **changes)


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


@pytest.mark.parametrize("how", ["sparse", "meta", "complex", "nan", "whole"])
def test_tensors_that_are_no_weights(
    how: str, refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    state = torch.load(trained("vanilla")[1], weights_only=True)
    head = state["head.weight"]
    changed = {
        "sparse": head.to_sparse,
        "meta": lambda: head.to("meta"),
        "complex": lambda: head.to(torch.complex64),
        "nan": lambda: head * torch.nan,
        "whole": head.long,
    }
    odd = folder.path / "odd.params"
    torch.save({**state, "head.weight": changed[how]()}, odd)
    wanted = {"nan": "holds NaN", "whole": "int64"}.get(how, "expected a plain tensor")
    assert wanted in (said := refuse(odd)) and "head.weight" in said


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


def test_positions_of_both_kinds_are_another_model(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    state = dict(trained("rope")[0].state_dict())
    state["pos_emb"] = trained("vanilla")[0].state_dict()["pos_emb"]
    both = folder.path / "both.params"
    torch.save(state, both)
    assert "stands beside learned positions" in refuse(both)


def test_what_else_a_file_holds_is_named(refuse: Callable[..., str], folder: Folder) -> None:
    bad = folder.path / "bad.params"
    torch.save({"args": argparse.Namespace(lr=1)}, bad)
    assert "it holds argparse.Namespace, not only tensors" in refuse(bad)


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


def test_tables_that_are_not_one_for_all(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    odd = folder.path / "odd.params"
    for variant, name in (("vanilla", "pos_emb"), ("perceiver", "down_block.C")):
        state = torch.load(trained(variant)[1], weights_only=True)
        torch.save({**state, name: state[name].expand(2, -1, -1).clone()}, odd)
        said = refuse(odd, variant)
        assert name in said and "expected 1 in the first place" in said


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
