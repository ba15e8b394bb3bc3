"""The course's two trainings as stages of Whence's loop.

Same objective, model, optimiser, schedule and number of epochs; but batches without padding, a dev
score on the way, saves every half minute, and the same command goes on after an interruption.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.answer import LONGEST_ANSWER
from whence.config import Config, CorpusConfig, Precision, StageConfig, TrainConfig
from whence.corpus.base import Document, Question
from whence.course.checkpoint import write_checkpoint
from whence.course.layout import BLOCK
from whence.course.loading import Say, load_model, new_model
from whence.course.material import CourseFiles, CourseText, file_digest, nearby
from whence.course.perceiver import CoursePerceiver
from whence.course.record import COURSE, course_record
from whence.errors import WhenceError
from whence.evaluate import accuracy
from whence.files import is_traceless, write_json
from whence.model import GPT
from whence.precision import refuse_unusable
from whence.progress import Progress
from whence.recipe import to_toml
from whence.run import ELSEWHERE, TRAINING, Run
from whence.train import Interrupted, log_score, train

PRETRAIN_EPOCHS = 650
EPOCHS_AFTER_PRETRAINING = 10
EPOCHS_WITHOUT_PRETRAINING = 75
WARMUP_TOKENS = 512 * 20
EVALUATIONS = 8  # times that the dev questions are asked during a finetuning
SPAN_EXAMPLE = 60  # characters in a span corruption of a long text, masks included, on average


@dataclass(frozen=True)
class Request:
    """What a command line asked for."""

    function: str  # pretrain or finetune
    variant: str
    corpus: Path
    writing: Path
    reading: Path | None = None
    finetune_corpus: Path | None = None
    bottleneck: int | None = None
    pretrain_rate: float = 6e-3
    finetune_rate: float = 6e-4
    name: str = "run"
    epochs: float | None = None
    steps: int | None = None
    seconds: float | None = None
    seed: int = 0
    threads: int = 0
    precision: Precision = "float32"

    @property
    def folder(self) -> Path:
        """Where the course's program keeps its log; never outside of `expt`."""
        if ".." in Path(self.name).parts:
            raise WhenceError(f"--tb_expt_name {self.name} would lead out of expt/{self.function}")
        rates = f"pt_lr_{self.pretrain_rate:f}_ft_lr_{self.finetune_rate:f}"
        return Path(f"expt/{self.function}/{self.name}_{self.variant}_{rates}")


def decay_epochs(function: str, variant: str) -> float:
    """The epochs of the pretraining text over which the course's cosine falls.

    From 2024 on it falls to the end of pretraining; before, and when finetuning, 200 epochs of 128
    positions, after which it rises again.
    """
    return PRETRAIN_EPOCHS if function == "pretrain" and variant in ("vanilla", "rope") else 200


def make_stage(
    request: Request, documents: Sequence[Document], questions: Sequence[Question]
) -> StageConfig:
    """Epochs, batch and schedule of the course; bounds that are given bend the schedule to fit."""
    pretraining = request.function == "pretrain"
    items = len(documents if pretraining else questions)
    if pretraining:
        epochs, rows = float(PRETRAIN_EPOCHS), 128
        length = min(SPAN_EXAMPLE, 2 + sum(len(document.text) for document in documents) / items)
    else:
        pretrained = request.reading is not None
        epochs = float(EPOCHS_AFTER_PRETRAINING if pretrained else EPOCHS_WITHOUT_PRETRAINING)
        length = sum(len(q.text) + len(q.answer or "") + 1 for q in questions) / items
        rows = 256
    # The course counts every position of its padded examples as a token, 127 an example.
    warmup = WARMUP_TOKENS / (items * (BLOCK - 1))
    falling = decay_epochs(request.function, request.variant)
    final = falling * len(documents) * BLOCK / (items * (BLOCK - 1))
    bounded = bool(request.epochs or request.steps or request.seconds)
    decay = 0.0 if bounded else final - warmup
    return StageConfig(
        name=request.function,
        mixture={"spans": 1.0} if pretraining else {"questions": 1.0},
        epochs=request.epochs or (0.0 if bounded else epochs),
        steps=request.steps or 0,
        # A batch ends with its epoch there: files smaller than one are a step an epoch.
        batch=max(1, round(min(rows, items) * length)),
        rate=request.pretrain_rate if pretraining else request.finetune_rate,
        schedule="cosine" if bounded or falling > 200 else "cosine-rebound",
        unit="epochs",
        warmup=0.0 if bounded else warmup,  # the course's is shorter than its first step
        decay=decay,
    )


def make_config(request: Request, stage: StageConfig, model: GPT, dev: bool) -> Config:
    return Config(
        seed=request.seed,
        corpus=CorpusConfig(name=f"files:{request.corpus}"),
        model=model.config,
        train=TrainConfig(
            seconds=request.seconds or 0.0,
            evaluations=min(EVALUATIONS, request.steps or EVALUATIONS) if dev else 0,
            threads=request.threads,
            precision=request.precision,
        ),
        stages=(stage,),
    )


def find_dev(request: Request, text: CourseText, say: Say) -> list[Question]:
    """Dev questions to watch a finetuning by; they are never trained on."""
    path = nearby("dev", request.finetune_corpus, request.corpus)
    if request.function != "finetune" or path is None:
        return []
    try:
        questions = text.questions(path)
    except WhenceError as error:  # nobody asked for this file: it must not stop a training
        say(f"no dev score on the way: {error}")
        return []
    if any(len(question.text) > BLOCK - 1 - LONGEST_ANSWER for question in questions):
        say(f"no dev score on the way: {path} has questions that are too long to answer at once")
        return []
    return questions if all(question.answer for question in questions) else []


def run_training(request: Request, say: Say, print_line: Callable[[str], None]) -> None:
    """Train as asked, from wherever an interrupted training of the same command stands."""
    check_writable(request.writing)
    refuse_unusable(request.precision)
    text = CourseText(request.corpus)
    questions: list[Question] = []
    if request.finetune_corpus is not None:
        questions = text.questions(request.finetune_corpus, need_answers=True)
    dev = find_dev(request, text, say)
    if request.reading is not None:
        near = request.finetune_corpus
        model = load_model(request.reading, request.variant, request.bottleneck, text, near, say)
    else:
        model = new_model(request.variant, len(text.vocab), request.bottleneck or 32, request.seed)
    stage = make_stage(request, text.documents, questions)
    config = make_config(request, stage, model, bool(dev))
    print_line(text.greeting())
    print_line(f"number of parameters: {model.parameter_count()}")
    corpus = CourseFiles(text, questions, dev)
    run, known = open_run(request, config, say)
    with run.held():
        text.vocab.save(run.path / "vocab.json")
        run.write_origin(corpus, model, str(request.reading) if request.reading else None)
        if isinstance(model, CoursePerceiver):
            # Whence's own format does not say how a student wired the outer blocks.
            write_json(run.path / ELSEWHERE, {"weights": str(request.writing.resolve())})
        title = f"{request.function} {request.variant}"
        progress = Progress(title)
        try:
            clock = train(run, corpus, text.vocab, model, progress)
        except Interrupted as interruption:
            raise Interrupted(
                f"{interruption}, saved in {run.path}; the same command goes on from there"
            ) from None
        write_checkpoint(request.writing, model)
        if dev:
            right, total = accuracy(model, text.vocab, dev)
            log_score(run, clock, right, total)
            say(f"{title}: dev {right} of {total} right ({100 * right / total:.1f} %)")
        finish(run, model, text, {**known, "precision": clock.precision})
        speed = clock.characters / max(clock.seconds, 1e-9)
        say(
            f"{title}: {clock.step} steps in {clock.seconds:.0f} s, {speed:,.0f} characters/s "
            f"in {clock.precision}; wrote {request.writing}, log in {run.path}"
        )


def open_run(request: Request, config: Config, say: Say) -> tuple[Run, dict[str, Any]]:
    """The folder of this training: a new one, or the one that the same command left unfinished."""
    known: dict[str, Any] = {
        "finished": False,
        "command": {
            "function": request.function,
            "variant": request.variant,
            "writing": str(request.writing),
            "files": {
                "corpus": file_digest(request.corpus),
                # What the training itself overwrites has changed when its last moment is repeated.
                "reading": None if overwritten(request) else file_digest(request.reading),
                "finetune": file_digest(request.finetune_corpus),
            },
            "recipe": to_toml(config),
        },
    }
    path, number = request.folder, 1
    while (before := course_record(path)) is not None or is_foreign(path):
        if before is not None and not before["finished"]:
            if before["command"] == known["command"]:
                if (path / TRAINING).exists():
                    say(f"going on with {path} (delete that folder to start over)")
                return Run.open(path), known
            say(f"{path} holds a training of other files or options, not finished: left alone")
        number += 1
        path = request.folder.with_name(f"{request.folder.name}-{number}")
    # A kill may have come between the two files of a new folder.
    fresh = not (path / "config.toml").exists() or to_toml(Run.open(path).config) != to_toml(config)
    run = Run.create(path, config) if fresh else Run.open(path)
    write_json(path / COURSE, known)
    return run, known


def overwritten(request: Request) -> bool:
    """Whether the checkpoint that is read is the one that will be written."""
    return request.reading is not None and request.reading.resolve() == request.writing.resolve()


def is_foreign(path: Path) -> bool:
    """The course's own program logs into folders of these names; what it left there stays."""
    if not path.is_dir() or (path / "config.toml").exists():
        return False
    return any(not is_traceless(inside) for inside in path.iterdir())


def finish(run: Run, model: GPT, text: CourseText, known: dict[str, Any]) -> None:
    if not isinstance(model, CoursePerceiver):
        run.save_model(model, text.vocab)
    write_json(run.path / COURSE, {**known, "finished": True})
    run.forget_training()  # last: killed before it, the training would begin anew


def check_writable(path: Path) -> None:
    """Hours of training must not end in front of a closed door."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if path.is_dir():
        raise WhenceError(f"cannot write {path}: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise WhenceError(f"cannot write {path}: {folder} is not a folder that can be written to")
