"""`whence course ...`: the course's command lines, unchanged. Torch is imported when needed."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from whence.config import MOST_THREADS, Precision
from whence.errors import WhenceError
from whence.files import refuse_overwriting

VARIANTS = ("vanilla", "synthesizer", "perceiver", "rope")
FILE = click.Path(path_type=Path)
COURSE = "The course's options"
OWN = "Whence's own (not in the course); with a bound, the rate falls to the end of it"

EXAMPLES = """
\b
The course's command lines, with `python src/run.py` replaced by `whence course`:
  whence course pretrain vanilla wiki.txt --writing_params_path vanilla.pretrain.params
  whence course finetune vanilla wiki.txt --reading_params_path vanilla.pretrain.params \\
    --writing_params_path vanilla.finetune.params --finetune_corpus_path birth_places_train.tsv
  whence course evaluate vanilla wiki.txt --reading_params_path vanilla.finetune.params \\
    --eval_corpus_path birth_dev.tsv --outputs_path vanilla.pretrain.dev.predictions
  whence course pretrain perceiver wiki.txt --bottleneck_dim 64 --pretrain_lr 6e-3 ...
  whence course pretrain wiki.txt ...       (the version without variants: vanilla)
  whence course dataset namedata            (python src/dataset.py namedata)
  whence course london birth_dev.tsv        (python src/london_baseline.py)
"""


class Positive(click.FloatRange):
    """A number above zero; click's own range lets NaN and infinity through."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return number


class Section(click.Option):
    """An option that is listed under a heading of its own."""

    def __init__(self, *arguments: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class Sectioned(click.Command):
    """Lists its options under their headings, and takes beginnings of them that can only be one,
    as the course's program does (argparse)."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(context) for name in parameter.opts}
        whole = []
        for word in args:
            name, equals, value = word.partition("=")
            meant = [option for option in known if option.startswith(name)]
            short = name.startswith("--") and len(name) > 2 and name not in known
            whole.append(meant[0] + equals + value if short and len(meant) == 1 else word)
        return super().parse_args(context, whole)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for heading in sorted(sections, key=lambda name: name == "Options"):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


class Scripts(click.Group):
    """Knows the course's scripts by their file names as well."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        stem = name.removeprefix("src/").removesuffix(".py")
        return super().get_command(context, {"london_baseline": "london"}.get(stem, stem))

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Click asks for the name again after it was found; give it the one it is listed under.
        _, command, rest = super().resolve_command(context, args)
        return (command.name if command else None), command, rest


@click.group(cls=Scripts, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def course() -> None:
    """The course's program, faster, and it tells you what went wrong.

    Reads and writes the course's checkpoints (*.params) and prediction files. Trainings show how
    far they are, save every half minute, and go on where they were if the same command is given
    again after an interruption.
    """


def course_options(function: Callable[..., None]) -> Callable[..., None]:
    """All options of the course's program: it takes every one of them in every function."""
    rows: Sequence[tuple[str, Any, Any, str]] = (
        ("--reading_params_path", FILE, None, "Checkpoint to start from (finetune, evaluate)."),
        ("--writing_params_path", FILE, None, "Checkpoint to write (pretrain, finetune)."),
        ("--finetune_corpus_path", FILE, None, "Questions with answers to train on (finetune)."),
        ("--eval_corpus_path", FILE, None, "Questions to answer (evaluate)."),
        ("--outputs_path", FILE, None, "Prediction file, one line a question (evaluate)."),
        (
            "--bottleneck_dim",
            click.IntRange(min=0),
            None,
            "Latents of the perceiver [32; of a checkpoint that is read, its own].",
        ),
        ("--pretrain_lr", Positive(), 6e-3, "Rate of pretrain."),
        ("--finetune_lr", Positive(), 6e-4, "Rate of finetune."),
        (
            "--tb_expt_name",
            str,
            "run",
            "Names the training's folder, expt/FUNCTION/NAME_VARIANT_..., which holds its log "
            "(metrics.jsonl instead of tensorboard events) and what resuming needs.",
        ),
    )
    positive = Positive()
    own: Sequence[tuple[str, Any, Any, str]] = (
        ("--epochs", positive, None, "Passes over the data instead of the course's number."),
        ("--steps", click.IntRange(min=1), None, "Stop after so many steps."),
        ("--seconds", positive, None, "Stop after so many seconds of training."),
        (
            "--seed",
            click.IntRange(0, 2**63 - 1),
            0,
            "Of weights, order of the examples and dropout.",
        ),
        ("--threads", click.IntRange(0, MOST_THREADS), 0, "0: as many as the machine has cores."),
        (
            "--precision",
            click.Choice(get_args(Precision)),
            "float32",
            "Of the matrix products of a training; auto: bfloat16 where it works and pays.",
        ),
    )
    for section, listed in ((OWN, own), (COURSE, rows)):
        for name, kind, default, text in reversed(listed):
            function = click.option(
                name,
                type=kind,
                default=default,
                show_default=default is not None,
                cls=Section,
                section=section,
                help=text,
            )(function)
    return click.argument("words", nargs=-1, required=True, metavar="[VARIANT] CORPUS")(function)


@course.command(cls=Sectioned, short_help="Train on spans of the pretraining text.")
@course_options
def pretrain(words: tuple[str, ...], **options: Any) -> None:
    """Span corruption on CORPUS: 650 epochs, batches of 128 examples.

    VARIANT is vanilla, synthesizer, perceiver or rope; left out, vanilla, or perceiver with
    --bottleneck_dim.
    """
    train("pretrain", words, options)


@course.command(cls=Sectioned, short_help="Train on questions and answers.")
@course_options
def finetune(words: tuple[str, ...], **options: Any) -> None:
    """Questions and answers: 10 epochs from a checkpoint, 75 without one.

    VARIANT is vanilla, synthesizer, perceiver or rope; left out, vanilla, or perceiver with
    --bottleneck_dim. CORPUS is the pretraining text, which gives the vocabulary. Where
    birth_dev.tsv lies beside the files, its score is shown on the way; it is never trained on.
    """
    train("finetune", words, options)


@course.command(cls=Sectioned, short_help="Write predictions and print the score.")
@course_options
def evaluate(words: tuple[str, ...], **options: Any) -> None:
    """Answer questions with a checkpoint: predictions, and the score where there are answers.

    VARIANT is vanilla, synthesizer, perceiver or rope; left out, vanilla, or perceiver with
    --bottleneck_dim. CORPUS is the pretraining text, which gives the vocabulary.
    """
    used = {"reading_params_path", "eval_corpus_path", "outputs_path", "bottleneck_dim", "threads"}
    variant, corpus = read_words(words, options)
    needed(options, "evaluate", "reading_params_path", "eval_corpus_path", "outputs_path")
    mention_unused("evaluate", variant, used)

    refuse_overwriting(
        options["outputs_path"], corpus, options["reading_params_path"], options["eval_corpus_path"]
    )
    import torch

    from whence.course.evaluation import evaluate as answer_file

    if options["threads"]:
        torch.set_num_threads(options["threads"])
    for line in answer_file(
        corpus,
        variant,
        options["reading_params_path"],
        options["eval_corpus_path"],
        options["outputs_path"],
        options["bottleneck_dim"] or None,
        say,
    ):
        click.echo(line)


def train(function: str, words: tuple[str, ...], options: dict[str, Any]) -> None:
    used = {"writing_params_path", "bottleneck_dim", "tb_expt_name", f"{function}_lr"}
    used |= {"epochs", "steps", "seconds", "seed", "threads", "precision"}
    if function == "finetune":
        used |= {"reading_params_path", "finetune_corpus_path"}
    variant, corpus = read_words(words, options)
    needed(options, function, "writing_params_path")
    if function == "finetune":
        needed(options, function, "finetune_corpus_path")
    mention_unused(function, variant, used)

    refuse_overwriting(options["writing_params_path"], corpus, options["finetune_corpus_path"])
    from whence.course.training import Request, run_training
    from whence.train import Interrupted

    finetuning = function == "finetune"
    request = Request(
        function=function,
        variant=variant,
        corpus=corpus,
        writing=options["writing_params_path"],
        reading=options["reading_params_path"] if finetuning else None,
        finetune_corpus=options["finetune_corpus_path"] if finetuning else None,
        bottleneck=options["bottleneck_dim"] or None,
        pretrain_rate=options["pretrain_lr"],
        finetune_rate=options["finetune_lr"],
        name=options["tb_expt_name"],
        epochs=options["epochs"],
        steps=options["steps"],
        seconds=options["seconds"],
        seed=options["seed"],
        threads=options["threads"],
        precision=options["precision"],
    )
    try:
        run_training(request, say, click.echo)
    except Interrupted as interruption:
        say(str(interruption))
        sys.exit(130)


@course.command(short_help="Print four examples as the model is fed them.")
@click.argument("kind", type=click.Choice(["namedata", "charcorruption"]))
@click.option(
    "--corpus",
    type=FILE,
    default=Path("wiki.txt"),
    show_default=True,
    help="The pretraining text.",
)
@click.option(
    "--questions",
    type=FILE,
    default=Path("birth_places_train.tsv"),
    show_default=True,
    help="For namedata.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For charcorruption.")
def dataset(kind: str, corpus: Path, questions: Path, seed: int) -> None:
    """Print four examples as the model is fed them (the course's dataset.py)."""
    from whence.course.examples import name_examples, span_examples

    mention_unused("dataset", kind, {"corpus", "questions" if kind == "namedata" else "seed"})
    lines = name_examples(corpus, questions) if kind == "namedata" else span_examples(corpus, seed)
    for line in lines:
        click.echo(line)


@course.command(short_help="The score of answering London to everything.")
@click.argument("file", type=FILE, default=Path("birth_dev.tsv"))
def london(file: Path) -> None:
    """The score of answering London to everything in FILE [birth_dev.tsv].

    Also writes it to london_baseline_accuracy.txt, as the course's script does from 2024 on.
    """
    from whence.course.evaluation import london as london_lines

    for line in london_lines(file, Path("london_baseline_accuracy.txt")):
        click.echo(line)


def read_words(words: tuple[str, ...], options: dict[str, Any]) -> tuple[str, Path]:
    """`vanilla wiki.txt`, or `wiki.txt` alone as in the version without variants."""
    if len(words) == 2:
        variant, corpus = words
        if variant not in VARIANTS:
            close = difflib.get_close_matches(variant, VARIANTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(VARIANTS)}"
            raise WhenceError(f"unknown variant {variant!r}: {hint}")
        if variant == "perceiver" and options["bottleneck_dim"] == 0:
            raise WhenceError("a perceiver needs --bottleneck_dim of at least 1")
        return variant, Path(corpus)
    if len(words) > 2:
        raise WhenceError(f"expected [VARIANT] CORPUS, found {len(words)} words: {' '.join(words)}")
    if words[0] in VARIANTS and not Path(words[0]).exists():
        raise WhenceError(f"the corpus is missing: expected {words[0]} CORPUS, e.g. wiki.txt")
    return ("perceiver" if options["bottleneck_dim"] else "vanilla"), Path(words[0])


def needed(options: dict[str, Any], function: str, *names: str) -> None:
    for name in names:
        if options[name] is None:
            raise WhenceError(f"{function} needs --{name}")


def mention_unused(function: str, variant: str, used: set[str]) -> None:
    """The course's program takes any option anywhere; one that does nothing must not seem to."""
    context = click.get_current_context()
    if variant != "perceiver":
        used = used - {"bottleneck_dim"}
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
        if isinstance(parameter, click.Option) and given and name not in used:
            say(f"--{name} changes nothing in {function} {variant}")


def say(line: str) -> None:
    """Remarks go to stderr: stdout is for results."""
    click.echo(line, err=True)
