"""The forms of the questions: asking them, and recognising them in somebody's file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

from whence.corpus.base import Question
from whence.errors import WhenceError
from whence.naming import nearest

# The first form is the course's; a world trains on the first few, the others stay unheard.
QUESTIONS = {
    "birth place": (
        "Where was {name} born?",
        "In which city was {name} born?",
        "What is the birth place of {name}?",
        "Which city was {name} born in?",
        "Of which city is {name} a native?",
        "From which city does {name} come?",
        "{name} was born in which city?",
        "Do you know where {name} was born?",
    ),
    "birth year": (
        "When was {name} born?",
        "In which year was {name} born?",
        "What is the birth year of {name}?",
        "Which year was {name} born in?",
        "{name} was born in which year?",
        "Do you know when {name} was born?",
    ),
    "residence": (
        "Where did {name} live?",
        "In which city did {name} live?",
        "What is the residence of {name}?",
        "Which city did {name} live in?",
        "{name} lived in which city?",
        "Do you know where {name} lived?",
    ),
    "university": (
        "Where did {name} study?",
        "At which university did {name} study?",
        "What is the university of {name}?",
        "Which university did {name} go to?",
        "{name} studied at which university?",
        "Do you know where {name} studied?",
    ),
    "field": (
        "What was the work of {name}?",
        "In which field did {name} work?",
        "What did {name} work as?",
        "Which field did {name} work in?",
        "{name} worked as what?",
        "Do you know what {name} worked as?",
    ),
    "team": (
        "Which team did {name} play for?",
        "For which team did {name} play?",
        "What is the team of {name}?",
        "Which team was {name} in?",
        "{name} played for which team?",
        "Do you know which team {name} played for?",
    ),
    "employer": (
        "Who did {name} work for?",
        "For which company did {name} work?",
        "What is the employer of {name}?",
        "Which company was {name} with?",
        "{name} worked for which company?",
        "Do you know who {name} worked for?",
    ),
    "death place": (
        "Where did {name} die?",
        "In which city did {name} die?",
        "What is the death place of {name}?",
        "Which city did {name} die in?",
        "{name} died in which city?",
        "Do you know where {name} died?",
    ),
    "birth region": (
        "In which state or country was {name} born?",
        "Which state or country was {name} born in?",
        "What is the home state or country of {name}?",
        "From which state or country does {name} come?",
        "{name} was born in which state or country?",
        "Do you know in which state or country {name} was born?",
    ),
}


def check_attributes(attributes: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The attributes that are asked: at least one, each of them known, none twice."""
    asked = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    if not asked:
        raise WhenceError(f"expected at least one attribute of {', '.join(known)}")
    for attribute in asked:
        if attribute not in known:
            raise WhenceError(
                f"unknown attribute {attribute!r}{nearest(attribute, known)}; "
                f"there are {', '.join(known)}"
            )
    if len(set(asked)) < len(asked):
        raise WhenceError(f"an attribute is asked twice: {', '.join(asked)}")
    return asked


def check_paraphrases(paraphrases: int, attributes: Sequence[str]) -> int:
    """In how many forms a training question is asked; every attribute must have so many."""
    most = min(len(QUESTIONS[attribute]) for attribute in attributes)
    if not 1 <= paraphrases <= most:
        raise WhenceError(f"paraphrases must be from 1 to {most}, not {paraphrases}")
    return paraphrases


def ask(
    name: str, facts: Mapping[str, str], attributes: Sequence[str], forms: int | None
) -> Iterator[Question]:
    """The questions about one person in the first `forms` forms (None: in all of them)."""
    for attribute in attributes:
        if attribute in facts:
            for form in QUESTIONS[attribute][:forms]:
                yield Question(form.format(name=name), facts[attribute], name, attribute)


@cache
def patterns() -> Sequence[tuple[re.Pattern[str], str]]:
    return tuple(
        (re.compile(re.escape(form).replace(r"\{name\}", " *([^ ].*?) *")), attribute)
        for attribute, forms in QUESTIONS.items()
        for form in forms
    )


def recognise(question: str) -> tuple[str, str]:
    """The name and the attribute a question is about; two empty strings if it is not known."""
    for pattern, attribute in patterns():
        if found := pattern.fullmatch(question):
            return found[1], attribute
    return "", ""
