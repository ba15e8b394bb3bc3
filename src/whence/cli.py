"""The `whence` command. Torch is imported inside the commands, so that --help is instant."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from whence import __version__
from whence.course.commands import course
from whence.course.record import course_record
from whence.errors import WhenceError, out_of_memory
from whence.files import refuse_overwriting
from whence.lab.commands import claims, grade

EXPORTED = ("model.safetensors", "config.json", "vocab.json")
CORPUS_HELP = "Corpus instead of the recipe's: world, lahman or course:FOLDER."


class Commands(click.Group):
    """Every known error is one sentence on stderr and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except WhenceError as error:
            sentence = str(error)
        except OSError as error:  # of a broken pipe (`whence ls | head`) click takes care
            sentence = f"{error.filename or 'disk'}: {error.strerror or error}"
        except UnicodeEncodeError as error:
            sentence = f"{error.object[error.start]!r} cannot be written in {error.encoding}"
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            sentence = "not enough memory: a smaller model, context or batch needs less"
        click.echo(f"whence: {sentence}", err=True)
        sys.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="whence")
def main() -> None:
    """Train small transformers whose knowledge you control, and find out what they know."""


@main.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [runs/RECIPE].")
@click.option("--corpus", help=CORPUS_HELP)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the recipe.")
def train(recipe: Path, out: Path | None, corpus: str | None, changes: tuple[str, ...]) -> None:
    """Train one system: pretrain, finetune, evaluate; one run directory."""
    from whence.pipeline import begin
    from whence.recipe import load_recipe

    config = load_recipe(recipe, changes, corpus)
    _finish(begin(config, out or Path("runs") / recipe.stem, rename=out is None))


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
def resume(run: Path) -> None:
    """Go on after any interruption."""
    from whence.run import Run

    record = course_record(run)
    if record is not None:
        how = "it is finished" if record["finished"] else "the same command as before goes on"
        raise WhenceError(f"{run} is a training of `whence course`: {how}")
    _finish(Run.open(run))


def _finish(run: Any) -> None:
    """Train to the end and print the score; a signal saves and says how to go on."""
    from whence.pipeline import carry_out
    from whence.train import Interrupted

    try:
        result = carry_out(run)
    except (Interrupted, KeyboardInterrupt) as stop:
        again = f"whence resume {shlex.quote(str(run.path))}"
        click.echo(f"{str(stop) or 'stopped'}; go on with: {again}", err=True)
        sys.exit(130)
    low, high = result["interval"]
    click.echo(
        f"{run.path}: {result['correct']} of {result['total']} {result['split']} questions right, "
        f"{result['accuracy']:.1f} % (95 % interval {low:.1f} - {high:.1f}), "
        f"{result['seconds']:.0f} s of training"
    )


@main.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Study folder [studies/RECIPE].")
@click.option("--corpus", help=CORPUS_HELP)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the recipe.")
@click.option("--json", "as_json", is_flag=True, help="Print the study as JSON instead of a table.")
def study(
    recipe: Path, out: Path | None, corpus: str | None, changes: tuple[str, ...], as_json: bool
) -> None:
    """A table of systems: baselines, without and with pretraining, one row a mechanism."""
    from whence.recipe import load_recipe
    from whence.report import write_report
    from whence.study import free_folder, repeating, run_study, table
    from whence.train import Interrupted

    config = load_recipe(recipe, changes, corpus)
    folder = out or free_folder(Path("studies") / recipe.stem, config)
    command = repeating(sys.argv[1:])
    try:
        result = run_study(config, folder, command)
    except (Interrupted, KeyboardInterrupt) as stop:
        again = f"{command} --out {shlex.quote(str(folder))}"
        click.echo(f"{str(stop) or 'stopped'}; go on with: {again}", err=True)
        sys.exit(130)
    report = write_report(result, folder / "report.html")
    click.echo(json.dumps(result, ensure_ascii=False) if as_json else table(result))
    click.echo(f"\nreport: {report.resolve()}", err=as_json)


@main.command("ls")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def list_runs(folder: Path) -> None:
    """List the runs in FOLDER [runs] with their state, score and cost."""
    from whence.listing import list_folder

    for line in list_folder(folder):
        click.echo(line)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--split", type=click.Choice(["train", "dev", "test"]), default="dev", show_default=True
)
@click.option("--corpus", help=CORPUS_HELP)
@click.option("--predictions", type=click.Path(path_type=Path), help="Write one answer a line.")
@click.option(
    "--answers", type=click.Path(path_type=Path), help="Write JSON lines, one a question."
)
@click.option(
    "--paraphrases", is_flag=True, help="Ask in other words too, also words never trained on."
)
@click.option("--json", "as_json", is_flag=True, help="Print the score as JSON.")
def evaluate(
    run: Path,
    split: str,
    corpus: str | None,
    predictions: Path | None,
    answers: Path | None,
    paraphrases: bool,
    as_json: bool,
) -> None:
    """Score a split, or write predictions where it has no answers."""
    from whence.pipeline import evaluate_run, paraphrase_run

    if corpus is None and course_record(run) is not None:
        raise WhenceError(
            f"{run} is a training of `whence course` on single files: give --corpus course:FOLDER"
        )
    if paraphrases:
        if predictions or answers:
            raise WhenceError("--paraphrases prints a table; it writes no predictions or answers")
        from whence.paraphrase import table

        asked = paraphrase_run(run, split, corpus)
        click.echo(json.dumps(asked) if as_json else table(asked))
        return
    result = evaluate_run(run, split, corpus, predictions, answers)
    if as_json:
        click.echo(json.dumps(result))
    elif result["accuracy"] is None:
        click.echo(f"{result['total']} questions answered; what is right is not known: no score")
    else:
        low, high = result["interval"]
        click.echo(
            f"{result['correct']} of {result['total']} right: {result['accuracy']:.1f} % "
            f"(95 % interval {low:.1f} - {high:.1f})"
        )


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("asked", nargs=-1, required=True, metavar="'NAME or question' ...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def ask(run: Path, asked: tuple[str, ...], as_json: bool) -> None:
    """Ask a trained model about people: the answer and its probability."""
    from whence.answer import Answerer

    for answer in Answerer.open(run).ask(asked):
        if as_json:
            record = {"question": answer.question, "answer": answer.text}
            click.echo(json.dumps({**record, "probability": answer.probability}))
        else:
            click.echo(f"{answer.question}\t{answer.text}\t{answer.probability:.3f}")


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="HTML file [PATH/report.html].")
def report(path: Path, out: Path | None) -> None:
    """One self-contained HTML file from a study's or a run's files."""
    from whence.report import from_path, write_report

    if (path / "config.toml").is_file():
        from whence.run import OWN_FILES
        from whence.study import study_of_run

        content = study_of_run(path)
        read = [path / name for name in OWN_FILES]
    else:
        content = from_path(path)
        read = [path / "study.json" if path.is_dir() else path]
    folder = path if path.is_dir() else path.parent
    if out is not None:
        refuse_overwriting(out, *read)
    click.echo(write_report(content, out or folder / "report.html"))


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def export(run: Path, folder: Path) -> None:
    """Write safetensors, configuration and vocabulary for other tools."""
    from whence.run import Run

    opened = Run.open(run)
    model, vocab = opened.model(), opened.vocab()
    there = [name for name in EXPORTED if (folder / name).exists()]
    if there:
        raise WhenceError(f"{folder} already has {there[0]}; name another folder")
    model.save_pretrained(folder)
    vocab.save(folder / "vocab.json")
    click.echo(f"{folder}: {', '.join(EXPORTED)}")


main.add_command(course)
main.add_command(claims)
main.add_command(grade)


if __name__ == "__main__":
    main()
