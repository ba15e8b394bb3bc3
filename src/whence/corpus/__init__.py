"""Documents, questions and the ledger of people: the world, the course's files, Lahman's data."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from whence.corpus.base import Corpus, Document, Person, Question, Split
from whence.corpus.course import CourseCorpus
from whence.corpus.lahman import LahmanCorpus
from whence.corpus.reading import read_questions, read_text
from whence.corpus.world import WorldCorpus
from whence.errors import WhenceError
from whence.naming import nearest

__all__ = [
    "Corpus",
    "CourseCorpus",
    "Document",
    "LahmanCorpus",
    "Person",
    "Question",
    "Split",
    "WorldCorpus",
    "load_corpus",
    "read_questions",
    "read_text",
]

KINDS: dict[str, Callable[..., Corpus]] = {
    "world": WorldCorpus,
    "course": CourseCorpus,
    "lahman": LahmanCorpus,
}


def load_corpus(name: str, **options: Any) -> Corpus:
    """The corpus `world`, `lahman`, `lahman:PATH`, `course:FOLDER` or `course` ($WHENCE_COURSE).

    The options are those of the corpus's class; one that is None counts as not given.
    """
    kind, _, path = name.partition(":")
    if kind not in KINDS:
        raise WhenceError(
            f"unknown corpus {name!r}{nearest(kind, KINDS)}; "
            "expected world, course:FOLDER, lahman or lahman:PATH"
        )
    build = KINDS[kind]
    if kind == "course":
        path = path or os.environ.get("WHENCE_COURSE", "")
        if not path:
            raise WhenceError("corpus 'course' needs its folder: course:FOLDER or $WHENCE_COURSE")
    known = [option for option in inspect.signature(build).parameters if option != "path"]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known:
            raise WhenceError(
                f"corpus {kind!r} has no option {option!r}{nearest(option, known)}; "
                f"it has {', '.join(known)}"
            )
    if path:
        if kind == "world":
            raise WhenceError(f"corpus 'world' takes no path, found {name!r}")
        given["path"] = path
    return build(**given)
