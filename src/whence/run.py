"""The run directory: what was asked, what happened, and how to go on."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch

import whence
from whence.config import Config, StudyConfig
from whence.corpus.base import Corpus
from whence.errors import WhenceError
from whence.files import (
    append_line,
    exclusive,
    is_traceless,
    read_fields,
    read_json,
    read_lines,
    remove_temporary,
    write_bytes,
    write_json,
    write_lines,
    write_text,
)
from whence.model import GPT
from whence.recipe import load_recipe, to_table, to_toml
from whence.vocab import Vocab

TRAINING = "checkpoints/training.pt"  # everything that resuming needs; gone once finished
WEIGHTS = "checkpoints"  # model.safetensors and its config.json
OWN_FILES = (
    "config.toml",
    "origin.json",
    "vocab.json",
    "metrics.jsonl",
    "answers.jsonl",
    "evaluation.json",
    "checkpoints/model.safetensors",
    "checkpoints/config.json",
)
ELSEWHERE = "elsewhere.json"  # where the weights are of a run that keeps them in another form


class Run:
    """One training on disk. Files are whole or absent; the log may lose its last line."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, root: Path | str, config: Config) -> Run:
        """A new, empty run directory; one that holds a run is refused, never overwritten."""
        path = Path(root)
        _refuse_used(path)
        config = replace(config, study=StudyConfig(baselines=config.study.baselines))
        with exclusive(path):
            _refuse_used(path)  # somebody may have been faster
            write_text(path / "config.toml", to_toml(config))
        return cls(path, config)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise WhenceError(f"{path} is not a run directory: it has no config.toml")
        return cls(path, load_recipe(path / "config.toml"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one process trains in a run directory; it clears what a kill left half-written."""
        with exclusive(self.path):
            remove_temporary(self.path)
            remove_temporary(self.path / WEIGHTS)
            yield

    # What happened

    def log(self, step: int, **metrics: Any) -> None:
        append_line(self.path / "metrics.jsonl", {"step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        records = read_lines(path)
        for number, record in enumerate(records, 1):
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise WhenceError(f"{path}:{number}: not a line of a training's log")
        return records

    def forget_after(self, step: int) -> None:
        """Drop what was logged after the checkpoint that training goes on from."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_lines(self.path / "metrics.jsonl", kept)

    def write_origin(self, corpus: Corpus, model: GPT, parent: str | None = None) -> None:
        write_json(
            self.path / "origin.json",
            {
                "parent": parent,
                "arguments": sys.argv[1:],
                "seed": self.config.seed,
                "versions": versions(),
                "machine": {**machine(), "threads": usable_threads(self.config.train.threads)},
                "corpus": corpus.describe(),
                "content": fingerprint(corpus),
                "model": model.describe(),
            },
        )

    def origin(self) -> dict[str, Any]:
        path = self.path / "origin.json"
        return read_fields(path, *ORIGIN) if path.exists() else {}

    # How to go on

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.path / TRAINING, buffer.getbuffer())  # not a copy: it may be gigabytes

    def latest(self) -> dict[str, Any] | None:
        """The newest state to go on from, or None before the first one."""
        path = self.path / TRAINING
        if not path.exists():
            return None
        state: dict[str, Any] = load_state(path)
        return state

    def forget_training(self) -> None:
        """Of a finished run: what only resuming needed."""
        (self.path / TRAINING).unlink(missing_ok=True)

    def save_model(self, model: GPT, vocab: Vocab) -> None:
        """Keep the weights, in a form that needs no pickle."""
        vocab.save(self.path / "vocab.json")
        model.save_pretrained(self.path / WEIGHTS)

    @property
    def finished(self) -> bool:
        return (self.path / "evaluation.json").exists()

    def vocab(self) -> Vocab:
        return Vocab.load(self.path / "vocab.json")

    def model(self) -> GPT:
        """The trained model; of an unfinished run, the newest checkpoint's."""
        if (self.path / ELSEWHERE).exists():
            weights = read_json(self.path / ELSEWHERE)["weights"]
            raise WhenceError(
                f"{self.path} is a model of the course's own form, which is (or will be) in "
                f"{weights}: `whence course evaluate` asks it"
            )
        state = None if self.finished else self.latest()
        if state is not None:
            model = GPT(self.config.model, len(self.vocab()), self.config.seed)
            try:
                model.load_state_dict(state["model"])
            except (AttributeError, KeyError, RuntimeError, TypeError) as error:
                raise WhenceError(
                    f"{self.path / TRAINING} does not belong to the model of this run"
                ) from error
            return model.eval()
        if not (self.path / WEIGHTS / "model.safetensors").exists():
            raise WhenceError(f"{self.path} has no checkpoint yet")
        model = GPT.from_pretrained(self.path / WEIGHTS).eval()
        fits = model.vocabulary == len(self.vocab())
        if not fits or to_table(model.config) != to_table(self.config.model):
            raise WhenceError(f"{self.path / WEIGHTS} holds the model of another run")
        if not model.is_finite():
            raise WhenceError(f"{self.path / WEIGHTS} holds weights that are NaN or infinite")
        return model


ORIGIN = ("arguments", "versions", "machine", "corpus", "model")  # what a report reads


def _refuse_used(path: Path) -> None:
    if (path / "config.toml").exists():
        raise WhenceError(f"{path} holds a run already: `whence resume {path}` goes on with it")
    if path.exists() and (not path.is_dir() or any(not is_traceless(p) for p in path.iterdir())):
        raise WhenceError(f"{path} exists and is not an empty folder")


def load_state(path: Path) -> Any:
    """A torch file, without running what it may contain."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise WhenceError(f"cannot read {path}: no such file") from None
    except Exception:  # torch raises many kinds for broken or hostile files, with bad advice
        raise WhenceError(
            f"{path}: not a checkpoint that can be read safely; it is damaged, or not Whence's"
        ) from None


def fingerprint(corpus: Corpus) -> str:
    """Of what a training reads: documents and training questions, and nothing of dev or test."""
    digest = hashlib.blake2b(digest_size=16)
    for document in corpus.documents():
        digest.update(f"{document.name}\t{document.text}\n".encode())
    for question in corpus.questions("train"):
        known = (question.text, question.answer, question.name, question.attribute)
        digest.update(f"{known!r}\n".encode())
    return digest.hexdigest()


def versions() -> dict[str, str | None]:
    return {
        "whence": whence.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the source that runs, with a plus where it was changed since."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        tracked = ["git", "-C", str(folder), "ls-files", "--error-unmatch", "run.py"]
        subprocess.run(tracked, capture_output=True, timeout=5, check=True)
        answer = subprocess.run(command, capture_output=True, timeout=5, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def usable_threads(asked: int) -> int:
    """As many as are asked for; 0: as many as there are cores that this process may use."""
    if asked:
        return asked
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system can say
        return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
