"""The invented people of the world: names, and facts that hang together loosely, as real ones do.

Nobody here exists: given names and surnames are combined at random, every fact is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any

from whence.corpus.draw import Draw, zipf

# People of an origin are mostly, not always, born at home: names hint, they do not tell.
BORN_AT_HOME, BORN_IN_REGION = 0.45, 0.15

# How many cities a world of so many people has. Chosen so that about nine in ten dev places
# are also somebody's place in train, as in the course data.
CITIES_BY_PEOPLE = ((200, 45), (500, 100), (2_000, 300), (10_000, 750), (100_000, 2_600))

ATHLETES = (
    "footballer", "cricketer", "goalkeeper", "cyclist", "sprinter", "rower", "swimmer", "coach",
)  # fmt: skip
OTHER_FIELDS = (
    "painter", "chemist", "lawyer", "poet", "engineer", "nurse", "historian", "architect",
    "sculptor", "botanist", "printer", "surgeon", "pianist", "teacher", "astronomer", "novelist",
    "geologist", "translator", "economist", "photographer",
)  # fmt: skip
TEAMS = ("United", "Rovers", "Athletic", "Wanderers", "Rangers", "Stars", "Lions", "Eagles")
EMPLOYERS = ("Press", "Works", "Labs", "Mills", "Bank", "Studios", "Motors")


@dataclass(frozen=True, slots=True)
class Biography:
    """All that is true of one invented person; `facts` maps an attribute to its value."""

    name: str
    surname: str
    pronoun: str  # "he" or "she"
    origin: str
    facts: Mapping[str, str]
    death_year: str  # "" for the living


@dataclass(frozen=True, slots=True)
class Origin:
    """Where names come from, with the cumulative weights its lists are drawn by."""

    origin: str
    country: str
    region: str
    given: Mapping[str, Sequence[str]]
    surnames: Mapping[str, Sequence[str]]
    weights: Mapping[int, Sequence[int]]  # by length of the list


@cache
def tables() -> tuple[tuple[Origin, ...], tuple[int, ...], Mapping[str, tuple[str, ...]]]:
    """The frozen origins, their cumulative weights, and each country's cities by size."""
    source = files("whence.corpus").joinpath("world_tables.json").read_text(encoding="utf-8")
    raw: dict[str, Any] = json.loads(source)
    origins = []
    for entry in raw["origins"]:
        given = {pronoun: tuple(entry[pronoun]) for pronoun in ("he", "she")}
        both = entry["surnames"].get("they")
        surnames = {
            pronoun: tuple(both if both else entry["surnames"][pronoun])
            for pronoun in ("he", "she")
        }
        sizes = {len(names) for names in (*given.values(), *surnames.values())}
        # A shift of 12: the commonest name is several times, not a hundred times, the rarest.
        weights = {size: zipf(size, 12) for size in sizes}
        origins.append(
            Origin(entry["origin"], entry["country"], entry["region"], given, surnames, weights)
        )
    shares = tuple(accumulate(entry["weight"] for entry in raw["origins"]))
    return tuple(origins), shares, {key: tuple(names) for key, names in raw["cities"].items()}


def city_count(people: int) -> int:
    """How many cities a world of `people` has, interpolated between the chosen sizes."""
    previous, count = CITIES_BY_PEOPLE[0]
    for size, cities in CITIES_BY_PEOPLE[1:]:
        if people <= size:
            return count + (cities - count) * (people - previous) // (size - previous)
        previous, count = size, cities
    return count


class Places:
    """The cities of one world, drawn by Zipf's law per country and over the whole world."""

    def __init__(self, people: int) -> None:
        origins, shares, cities = tables()
        self.origins = origins
        self.shares = shares
        total = city_count(people)
        weights = [after - before for before, after in zip((0, *shares), shares, strict=False)]
        self.by_country: dict[str, tuple[str, ...]] = {}
        for origin, weight in zip(origins, weights, strict=True):
            room = max(1, (total * weight + shares[-1] // 2) // shares[-1])
            self.by_country[origin.country] = cities[origin.country][:room]
        self.weights = {country: zipf(len(names), 1) for country, names in self.by_country.items()}
        ranked = sorted(range(len(origins)), key=lambda index: -weights[index])
        countries = [self.by_country[origins[index].country] for index in ranked]
        longest = max(len(names) for names in countries)
        # Every country's largest city first, then every second one: London leads the world.
        self.everywhere = tuple(
            names[rank] for rank in range(longest) for names in countries if rank < len(names)
        )
        # In a small sample a steep law would by chance give one city a tenth of the people.
        self.world_weights = zipf(len(self.everywhere), 8 if people < 1_000 else 2)
        regions: dict[str, list[int]] = {}
        for index, origin in enumerate(origins):
            regions.setdefault(origin.region, []).append(index)
        self.regions = {
            region: (
                [origins[index].country for index in members],
                list(accumulate(weights[index] for index in members)),
            )
            for region, members in regions.items()
        }

    def origin(self, draw: Draw) -> Origin:
        return draw.weighted(self.origins, self.shares)

    def near(self, draw: Draw, origin: Origin) -> str:
        """A city as somebody of this origin is born in: at home, in the region or anywhere."""
        where = draw.random()
        if where < BORN_AT_HOME:
            country = origin.country
        elif where < BORN_AT_HOME + BORN_IN_REGION:
            country = draw.weighted(*self.regions[origin.region])
        else:
            return draw.weighted(self.everywhere, self.world_weights)
        return draw.weighted(self.by_country[country], self.weights[country])


class Names:
    """Unique full names; no name stands inside another, so a mention is never ambiguous."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.parts: set[str] = set()  # of three words the first two, and the last two

    def draw(self, draw: Draw, origin: Origin, pronoun: str) -> tuple[str, str]:
        """A new full name and its surname."""
        given_names, surnames = origin.given[pronoun], origin.surnames[pronoun]
        for attempt in range(1_000):
            given = draw.weighted(given_names, origin.weights[len(given_names)])
            surname = draw.weighted(surnames, origin.weights[len(surnames)])
            kind = draw.random()
            # Small tables run out of pairs in large worlds; initials make room.
            if kind < 0.06:
                middle = draw.weighted(given_names, origin.weights[len(given_names)])
            elif kind < 0.08 or attempt > 20:
                middle = chr(ord("A") + draw.below(26)) + "."
            else:
                middle = ""
            if given == surname or middle in (given, surname):
                continue
            name = f"{given} {middle} {surname}" if middle else f"{given} {surname}"
            parts = {f"{given} {middle}", f"{middle} {surname}"} if middle else set()
            if name not in self.taken and name not in self.parts and not parts & self.taken:
                self.taken.add(name)
                self.parts |= parts
                return name, surname
        raise AssertionError(f"no free name left for {origin.origin}")


def biographies(people: int, seed: int) -> Iterator[Biography]:
    """`people` invented people, the same for the same seed on every machine."""
    places = Places(people)
    names = Names()
    employers = employer_names(places.origins, max(12, len(places.everywhere) // 4))
    employer_weights = zipf(len(employers), 3)
    draw_name, draw_fact = Draw(seed, 1), Draw(seed, 2)
    for _ in range(people):
        origin = places.origin(draw_name)
        pronoun = "he" if draw_name.random() < 0.5 else "she"
        name, surname = names.draw(draw_name, origin, pronoun)
        employer = draw_fact.weighted(employers, employer_weights)
        birth, residence, university, death, home_of_team = distinct_places(
            draw_fact, places, origin, (name, employer)
        )
        year = 1860 + draw_fact.below(140)
        # All who were born up to 1945 are dead by 2025, all others live.
        age = 41 + draw_fact.below(40)
        dead = year <= 1945
        athlete = draw_fact.random() < 0.4
        facts = {
            "birth place": birth,
            "birth year": str(year),
            "residence": residence,
            "university": f"University of {university}",
            "field": draw_fact.pick(ATHLETES if athlete else OTHER_FIELDS),
        }
        if athlete:
            facts["team"] = f"{home_of_team} {TEAMS[len(home_of_team) % len(TEAMS)]}"
        else:
            facts["employer"] = employer
        if dead:
            facts["death place"] = death
        yield Biography(name, surname, pronoun, origin.origin, facts, str(year + age) * dead)


def distinct_places(
    draw: Draw, places: Places, origin: Origin, texts: Iterable[str]
) -> Sequence[str]:
    """Five cities of one life, none of them inside another nor inside one of `texts`.

    A birth place that is not stated must not stand in the sentence by accident either.
    """
    found: list[str] = []
    for index in range(5):
        for _ in range(1_000):
            city = places.near(draw, origin)
            if any(city in text for text in texts):
                continue
            if not any(city in other or other in city for other in found):
                break
        else:
            raise AssertionError(f"no city number {index + 1} left for {origin.origin}")
        found.append(city)
    return found


def employer_names(origins: Sequence[Origin], count: int) -> list[str]:
    names: list[str] = []
    for number in range(count):
        surnames = origins[number % len(origins)].surnames["he"]
        surname = surnames[(number // len(origins)) % len(surnames)]
        names.append(f"{surname} {EMPLOYERS[number % len(EMPLOYERS)]}")
    return list(dict.fromkeys(names))
