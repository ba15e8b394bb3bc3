"""Documents, questions and the ledger of people: the world, the course's files, Lahman's data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from whence.corpus.base import Corpus, Document, Person, Question, Split
from whence.corpus.naming import nearest
from whence.corpus.world import WorldCorpus
from whence.errors import WhenceError

__all__ = ["Corpus", "Document", "Person", "Question", "Split", "WorldCorpus", "load_corpus"]

KINDS: dict[str, Callable[..., Corpus]] = {"world": WorldCorpus}


def load_corpus(name: str, **options: Any) -> Corpus:
    """The corpus called `world`; an option that is None counts as not given."""
    kind, _, place = name.partition(":")
    if kind not in KINDS or place:
        raise WhenceError(
            f"unknown corpus {name!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}"
        )
    build = KINDS[kind]
    given = {option: value for option, value in options.items() if value is not None}
    known = list(inspect.signature(build).parameters)
    for option in given:
        if option not in known:
            raise WhenceError(
                f"corpus {kind!r} has no option {option!r}{nearest(option, known)}; "
                f"it has {', '.join(known)}"
            )
    return build(**given)
