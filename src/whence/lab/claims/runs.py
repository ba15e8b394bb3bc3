"""The trained models behind the claims about knowledge: made once, kept, resumed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import WhenceError
from whence.lab.claim import Setting

if TYPE_CHECKING:
    from whence.config import Config
    from whence.corpus.base import Corpus, Question
    from whence.run import Run

# A text of thousands of people takes longer than the small world; see knowledge.toml for that one.
LONGER = {"train.steps": 4000, "corpus.withhold": 100}


def recipe(setting: Setting) -> Config:
    """The recipe for the asked corpus and seed."""
    from whence.config import CorpusConfig
    from whence.recipe import change, load_recipe, to_table

    with as_file(files("whence.lab.claims").joinpath("knowledge.toml")) as path:
        config = load_recipe(path)
    changes: dict[str, Any] = {"seed": setting.seed}
    if setting.corpus != "world":
        changes["corpus"] = to_table(CorpusConfig(name=setting.corpus))
        changes |= LONGER
    return change(config, changes)


def cache_folder(setting: Setting) -> Path:
    if setting.cache is not None:
        return setting.cache
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "whence" / "claims"


def trained(system: str, setting: Setting) -> Run:
    """The finished run of one system of knowledge.toml; trains, resumes or only opens it."""
    from whence.pipeline import begin, carry_out
    from whence.run import Run
    from whence.study import system_config

    config = recipe(setting)
    rows = {row.name: row for row in config.study.systems}
    if system not in rows:
        raise WhenceError(f"knowledge.toml has no system {system!r}; it has {', '.join(rows)}")
    own = system_config(config, rows[system])
    # Another recipe is another folder: a kept result always belongs to the recipe that is asked
    # for. What the recipe leaves at its default is left out, or each new option would be a new
    # recipe.
    mark = zlib.crc32(json.dumps(written(own), sort_keys=True).encode())
    kind = setting.corpus.partition(":")[0]
    path = cache_folder(setting) / f"{kind}-{system}-{mark:08x}"
    run = Run.open(path) if (path / "config.toml").exists() else begin(own, path)
    if not run.finished:
        setting.report(f"training {rows[system].label} on {kind}; kept in {path}")
        carry_out(run, system)
    return run


def written(value: Any) -> Any:
    """A recipe as plain data, without what stands at its default."""
    if is_dataclass(value):
        return {
            item.name: written(getattr(value, item.name))
            for item in fields(value)
            if getattr(value, item.name) != _default(item)
        }
    return [written(each) for each in value] if isinstance(value, list | tuple) else value


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def answers(system: str, setting: Setting) -> list[dict[str, Any]]:
    """The system's answers to the dev questions, one record each."""
    from whence.files import read_lines

    return read_lines(trained(system, setting).path / "answers.jsonl")


def corpus(setting: Setting) -> Corpus:
    from whence.pipeline import open_corpus

    return open_corpus(recipe(setting).corpus)


def ask(system: str, setting: Setting, questions: Sequence[Question]) -> list[str]:
    """The system's answers to other questions than those it was evaluated on."""
    from whence.answer import answer_questions

    run = trained(system, setting)
    found = answer_questions(run.model(), run.vocab(), [question.text for question in questions])
    return [answer.text for answer in found]


def strangers(setting: Setting, count: int) -> tuple[list[Question], dict[str, str]]:
    """Questions about people of another world, of whom no text speaks, and their names' origins.

    Only names that the model can spell, and that nobody in its own world has.
    """
    from whence.corpus import load_corpus

    own = corpus(setting)
    seed = setting.seed + 1000
    other = load_corpus("world", people=2 * count, seed=seed, dev_share=0.9, test_share=0.0)
    taken, letters = {person.name for person in own.people()}, set(own.vocabulary_text())
    questions = [
        question
        for question in other.questions("dev")
        if question.name not in taken and set(question.text) <= letters
    ]
    origins = {person.name: str(person.origin) for person in other.people()}
    return questions[:count], origins
