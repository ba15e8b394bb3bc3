"""One system from its recipe to its evaluation, in one run directory."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence.answer import read_prompt
from whence.batches import check_mixture
from whence.config import Config, CorpusConfig
from whence.corpus import load_corpus
from whence.corpus.base import Corpus, Split
from whence.corpus.course import TEXT
from whence.corpus.fold import FoldedCorpus
from whence.corpus.splits import SPLITS
from whence.errors import WhenceError
from whence.evaluate import check_answers, evaluate, score, write_predictions
from whence.files import read_fields, refuse_overwriting, write_json, write_lines
from whence.precision import refuse_unusable
from whence.progress import Progress, clock
from whence.recipe import renamed, to_table
from whence.run import OWN_FILES, Run, fingerprint
from whence.train import build_model, log_score, train
from whence.vocab import Vocab

SCORED = ("accuracy", "correct", "total", "interval", "seconds", "steps")  # of evaluation.json


def open_corpus(config: CorpusConfig) -> Corpus:
    """The corpus that a recipe names, with the options that the recipe gives."""
    options = to_table(config)
    fold = options.pop("fold", None)
    corpus = load_corpus(options.pop("name"), **options)
    return corpus if fold is None else FoldedCorpus(corpus, fold)


def make_vocab(corpus: Corpus) -> Vocab:
    return Vocab.from_text(corpus.vocabulary_text())


def check(config: Config, corpus: Corpus | None = None) -> None:
    """Refuse now what would stop the recipe later; `corpus` saves loading its corpus again."""
    refuse_unusable(config.train.precision)
    corpus = corpus or open_corpus(config.corpus)
    vocab = make_vocab(corpus)
    sees = build_model(config, vocab).context
    for stage in config.stages:
        check_mixture(corpus, vocab, stage.mixture, config.model.context)
    check_answers(corpus.questions("dev"), f"{corpus.name}, dev")
    check_prompts(corpus, "dev", vocab, sees)
    if has_test(corpus):
        check_prompts(corpus, "test", vocab, sees)


def has_test(corpus: Corpus) -> bool:
    """A folder of the course's may lack the file: it is needed only to answer it."""
    try:
        return bool(corpus.questions("test"))
    except WhenceError:
        return False


def check_prompts(corpus: Corpus, split: Split, vocab: Vocab, context: int) -> None:
    """Refuse questions that could not be asked, with the file and the line if they have one."""
    for number, question in enumerate(corpus.questions(split)):
        try:
            read_prompt(question.text, vocab, context)
        except WhenceError as error:
            raise WhenceError(f"{corpus.place_of(split, number)}: {error}") from None


def begin(config: Config, path: Path, *, rename: bool = False) -> Run:
    """Check that the recipe can run, then make its directory: a bad one leaves nothing.

    `rename`: path-2, path-3, ... if that name is taken.
    """
    config = with_full_path(config)
    check(config)
    return Run.create(claim(path) if rename else path, config)


def claim(path: Path) -> Path:
    """Make a new folder of that name, or with a number: of several that try, each gets its own."""
    number, candidate = 1, path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                candidate.mkdir()
                return candidate
            except FileExistsError:
                number += 1
                candidate = path.with_name(f"{path.name}-{number}")
    except OSError as error:
        raise WhenceError(f"cannot make {candidate}: {error.strerror or error}") from error


def with_full_path(config: Config) -> Config:
    """The corpus's folder with its full path: `whence resume` may be called from elsewhere."""
    kind, _, path = config.corpus.name.partition(":")
    if kind == "course" and not path:
        path = os.environ.get("WHENCE_COURSE", "")
    if not path:
        return config
    name = f"{kind}:{Path(path).expanduser().resolve()}"
    return replace(config, corpus=replace(config.corpus, name=name))


def carry_out(run: Run, title: str = "") -> dict[str, Any]:
    """Train to the end, from wherever the run stands, and score the dev questions."""
    with run.held():
        if run.finished:
            run.forget_training()  # a kill may have come right before it
            return read_fields(run.path / "evaluation.json", *SCORED)
        corpus = open_corpus(run.config.corpus)
        if not (run.path / "vocab.json").exists():
            make_vocab(corpus).save(run.path / "vocab.json")
        vocab = run.vocab()
        model = build_model(run.config, vocab)
        begun_with = run.origin().get("content")
        if not run.origin():
            run.write_origin(corpus, model)
        elif begun_with is not None and begun_with != fingerprint(corpus):
            raise WhenceError(
                f"{corpus.name} is not what {run.path} began with: documents, training "
                "questions or the names asked about have changed, so the run cannot go on"
            )
        progress = Progress(title or run.path.name)
        said = model.describe()
        if json.loads(json.dumps(said)) != run.origin()["model"]:
            raise WhenceError(
                f"{run.path} was begun with another model than this version of Whence makes of its "
                "recipe: go on with the version that began it, or begin again"
            )
        progress.say(
            f"{title or run.path.name}: {said['attention']['mechanism']} attention, "
            f"{said['parameters']:,} parameters"
        )
        spent = train(run, corpus, vocab, model, progress)
        run.save_model(model, vocab)
        split: Split = "dev"
        began = time.monotonic()
        answers = evaluate(model, vocab, corpus, split)
        result: dict[str, Any] = {
            "split": split,
            **score(answers),
            "seconds": round(spent.seconds, 3),
            "steps": spent.step,
            "characters": spent.characters,
            "precision": spent.precision,
            "answering_seconds": round(time.monotonic() - began, 3),
        }
        log_score(run, spent, result["correct"], result["total"])
        write_lines(run.path / "answers.jsonl", answers)
        write_json(run.path / "evaluation.json", result)  # last: its presence means finished
        run.forget_training()
        progress.say(
            f"{title or run.path.name}: {result['correct']} of {result['total']} right "
            f"({result['accuracy']:.1f} %) after {clock(spent.seconds)}"
        )
        return result


def evaluate_run(
    path: Path,
    split: str,
    corpus_name: str | None = None,
    predictions: Path | None = None,
    answers: Path | None = None,
) -> dict[str, Any]:
    """Ask a split of the run's corpus (or another); score it, or only write the predictions."""
    run, corpus, asked = _asked(path, split, corpus_name)
    if not corpus.questions(asked):
        raise WhenceError(f"{corpus.name}, {asked}, has no questions")
    if predictions is None and answers is None:
        check_answers(
            corpus.questions(asked),
            f"{corpus.name}, {asked}",
            "predictions can be written (--predictions FILE), a score cannot be claimed",
        )
    _, _, source = (corpus_name or run.config.corpus.name).partition(":")
    read = [Path(source)] if source else []  # an archive, or a table
    read += [run.path / name for name in OWN_FILES] + files_of(corpus)
    for target in (predictions, answers):
        if target is not None:
            refuse_overwriting(target, *read)
    if predictions is not None and answers is not None and predictions == answers:
        raise WhenceError(f"--predictions and --answers would both write {answers}")
    model, vocab = run.model(), run.vocab()
    check_prompts(corpus, asked, vocab, model.context)
    found = evaluate(model, vocab, corpus, asked)
    if predictions is not None:
        write_predictions(predictions, [record["answer"] for record in found])
    if answers is not None:
        write_lines(answers, found)
    if any(record["correct"] is None for record in found):
        return {"split": asked, "correct": None, "total": len(found), "accuracy": None}
    return {"split": asked, **score(found)}


def files_of(corpus: Corpus) -> list[Path]:
    """The files that a corpus was read from, as far as it says where its questions stand."""
    found = []
    for split in SPLITS:
        try:
            place, _, _ = corpus.place_of(split, 0).rpartition(":")
        except (WhenceError, IndexError):  # no such file; nobody of that split
            continue
        if place:
            found += [Path(place), Path(place).with_name(TEXT)]
    return found


def paraphrase_run(path: Path, split: str, corpus_name: str | None = None) -> dict[str, Any]:
    """Ask a split in all the forms that its questions have."""
    from whence.paraphrase import ask_in_all_forms

    run, corpus, asked = _asked(path, split, corpus_name)
    return ask_in_all_forms(run.model(), run.vocab(), corpus, asked)


def _asked(path: Path, split: str, corpus_name: str | None) -> tuple[Run, Corpus, Split]:
    """The run, the corpus that it is asked about (its own, or another), and the split."""
    run = Run.open(path)
    config = run.config.corpus if corpus_name is None else renamed(run.config.corpus, corpus_name)
    asked: Split = "train" if split == "train" else "test" if split == "test" else "dev"
    return run, open_corpus(config), asked
