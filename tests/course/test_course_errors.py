"""Bad files: one clear sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from course_folder import Folder

import textbook

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


def test_tables_that_are_not_one_for_all(
    refuse: Callable[..., str], trained: Trained, folder: Folder
) -> None:
    odd = folder.path / "odd.params"
    for variant, name in (("vanilla", "pos_emb"), ("perceiver", "down_block.C")):
        state = torch.load(trained(variant)[1], weights_only=True)
        torch.save({**state, name: state[name].expand(2, -1, -1).clone()}, odd)
        said = refuse(odd, variant)
        assert name in said and "expected 1 in the first place" in said
