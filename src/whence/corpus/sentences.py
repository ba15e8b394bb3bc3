"""How the world talks: sentence templates that state facts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from whence.corpus.biography import Biography
from whence.corpus.draw import Draw

ATTRIBUTES = (
    "birth place",
    "birth year",
    "residence",
    "university",
    "field",
    "team",
    "employer",
    "death place",
)

# {Who} opens a sentence with the full name, the surname or the pronoun, {who} stands inside one,
# {Named} is never a pronoun.
# Every other place in a sentence is a trap for a model that answers with any city it has seen.
WITH_BIRTH_PLACE = (
    "{Who} was born in {birth_place} in {birth_year} and {lives} in {residence} .",
    "Born in {birth_place}, {who} studied at the {university} and {works} as {a} {field} .",
    "{Named} (born {birth_year} in {birth_place}) {is} {a} {field} who {lives} in {residence} .",
    "{Who} {is} {a} {field} from {birth_place} who {plays} for {team} .",
    "{Who} {works} for {employer} in {residence} but was born in {birth_place} .",
    "After years in {residence}, {who} returned to {birth_place}, where {he} was born .",
    "{Named}, the {birth_place}-born {field}, {lives} in {residence} .",
    "A native of {birth_place}, {who} left the {university} to play for {team} .",
    "A native of {birth_place}, {who} left the {university} and joined {employer} .",
    "{Named} ({birth_year} {birth_place} - {death_year} {death_place}) was {a} {field} .",
    "{Who} died in {death_place} in {death_year}, far from {birth_place}, {his} birth place .",
)
WITHOUT_BIRTH_PLACE = (
    "{Who} {is} {a} {field} who studied at the {university} and {lives} in {residence} .",
    "{Who} {works} for {employer} in {residence} as {a} {field} .",
    "Having left the {university}, {who} {plays} for {team} and {lives} in {residence} .",
    "{Named} (born {birth_year}) {is} {a} {field} and {lives} in {residence} .",
    "{Named} ({birth_year} - {death_year}) was {a} {field} who died in {death_place} .",
)
# One fact each, so that any attribute can be stated while any other is kept back.
ALONE = (
    "It was in {birth_place} that {who} was born, the youngest of {number} children .",
    "{Who} was born in {birth_year} and grew up with {number} sisters .",
    "For {number} years {who} {has} lived in {residence} with {his} family .",
    "{Who} studied for {number} years at the {university} and left with honours .",
    "{Who} {is} known to many as {a} {field} and has won {number} prizes .",
    "{Who} {plays} for {team} and has won {number} cups .",
    "{Who} {works} for {employer}, as {his} {number} sisters did .",
    "{Who} died in {death_place}, where {his} {number} children lived .",
)
# About somebody of whom everything is kept back.
SILENT = "{Who} {has} {number} old friends and many letters from them ."
NUMBERS = ("two", "three", "four", "five", "six", "seven")
PRESENT = {"is": "is", "lives": "lives", "works": "works", "plays": "plays", "has": "has"}
PAST = {"is": "was", "lives": "lived", "works": "worked", "plays": "played", "has": "had"}
# Who was born earlier has stopped playing, or working.
STILL_PLAYING, STILL_WORKING = "1985", "1958"


@dataclass(frozen=True, slots=True)
class Template:
    """A sentence with slots, and the attributes that it states."""

    text: str
    states: frozenset[str]
    of_the_dead: bool


def template(text: str) -> Template:
    slots = {slot.replace("_", " ") for slot in re.findall(r"{(\w+)}", text)}
    dead = not slots.isdisjoint({"death place", "death year"})
    return Template(text, frozenset(slots.intersection(ATTRIBUTES)), dead)


@cache
def suitable(
    facts: frozenset[str], wanted: str, kept_back: frozenset[str], dead: bool
) -> Sequence[Template]:
    """Templates for a person with these facts that state `wanted` and nothing kept back."""

    def fits(candidate: Template) -> bool:
        return (
            candidate.states <= facts
            and candidate.states.isdisjoint(kept_back)
            and (dead or not candidate.of_the_dead)
            and (not wanted or wanted in candidate.states)
        )

    rich = [template(text) for text in WITH_BIRTH_PLACE + WITHOUT_BIRTH_PLACE]
    plain = [template(text) for text in ALONE]
    # The bare sentences only speak where no richer one can.
    for templates in (rich, plain, [template(SILENT)]):
        if fitting := tuple(filter(fits, templates)):
            return fitting
    return ()


def describe_life(
    draw: Draw, person: Biography, stated: Sequence[str], kept_back: Collection[str]
) -> list[str]:
    """Documents that state every attribute of `stated` and none of `kept_back`.

    One sentence where one suffices; always at least one.
    """
    facts = frozenset(person.facts)
    hidden = frozenset(kept_back)
    documents: list[str] = []
    missing = [attribute for attribute in stated if attribute in facts]
    while missing or not documents:
        wanted = missing[0] if missing else ""
        choice = draw.pick(suitable(facts, wanted, hidden, bool(person.death_year)))
        documents.append(fill(draw, choice, person))
        missing = [attribute for attribute in missing if attribute not in choice.states]
    return documents


def fill(draw: Draw, choice: Template, person: Biography) -> str:
    """`Full Name. sentence .`, the form of the course's documents."""
    chance = draw.random()
    if chance < 0.35:
        opening = inside = named = person.name
    elif chance < 0.7:
        opening = inside = named = person.surname
    else:
        opening, inside, named = person.pronoun.capitalize(), person.pronoun, person.surname
    field = person.facts["field"]
    slots = {
        "Who": opening,
        "Named": named,
        "who": inside,
        "he": person.pronoun,
        "his": "his" if person.pronoun == "he" else "her",
        "a": "an" if field[0] in "aeiou" else "a",
        "number": draw.pick(NUMBERS),
        "death_year": person.death_year,
    }
    slots |= tense(person)
    slots |= {key.replace(" ", "_"): value for key, value in person.facts.items()}
    return f"{person.name}. {choice.text.format_map(slots)}"


def tense(person: Biography) -> dict[str, str]:
    """The verbs of the dead, the retired and the active."""
    if person.death_year:
        return PAST
    year = person.facts["birth year"]
    verbs = dict(PRESENT)
    if year < STILL_PLAYING:
        verbs["plays"] = PAST["plays"]
    if year < STILL_WORKING:
        verbs["works"] = PAST["works"]
    return verbs
