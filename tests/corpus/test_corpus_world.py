"""The world: the same for ever, and its ledger tells the truth."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from whence.corpus import Split, WorldCorpus
from whence.corpus.biography import biographies, tables
from whence.corpus.ledger import count_mentions, name_of, occurs
from whence.corpus.questions import QUESTIONS
from whence.corpus.sentences import ALONE, ATTRIBUTES, WITH_BIRTH_PLACE, WITHOUT_BIRTH_PLACE
from whence.errors import WhenceError

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
# Another value means another world: recipes, studies and models built on the old one are void.
GOLDEN_TABLE = "3afc3614d132160f0c9fdc94aec715ab87d02fc85563004f71ae42e87cabf873"
GOLDEN = "62e858745a4559d41e77dcfc5bc8f313571e13b620a0b9d318952fe49e10156c"


def fingerprint(corpus: WorldCorpus) -> str:
    lines = [item.text for item in corpus.documents()]
    lines += [f"{item.text}\t{item.answer}" for split in SPLITS for item in corpus.questions(split)]
    lines += [str(person) for person in corpus.people()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_the_world_stays_the_same_for_ever() -> None:
    assert fingerprint(WorldCorpus(people=200, seed=0)) == GOLDEN


def test_the_table_stays_the_same_for_ever() -> None:
    table = Path(str(files("whence.corpus").joinpath("world_tables.json"))).read_bytes()
    assert hashlib.sha256(table).hexdigest() == GOLDEN_TABLE
    assert len(table) < 400_000


def test_the_documentation_shows_this_world() -> None:
    shown = (Path(__file__).parents[2] / "docs" / "world.md").read_text(encoding="utf-8")
    assert "\n".join(item.text for item in WorldCorpus(200).documents()[:5]) in shown


def test_another_process_finds_the_same_world() -> None:
    program = (
        "from whence.corpus.sentences import ATTRIBUTES\n"
        "from whence.corpus.world import WorldCorpus\n"
        "corpus = WorldCorpus(300, seed=5, withhold=9, attributes=ATTRIBUTES)\n"
        "print(ascii([*corpus.documents(), *corpus.questions('dev'), *corpus.people()]))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    corpus = WorldCorpus(300, seed=5, withhold=9, attributes=ATTRIBUTES)
    expected = ascii([*corpus.documents(), *corpus.questions("dev"), *corpus.people()])
    assert [text.strip() for text in found] == [expected, expected]


def test_another_seed_is_another_world() -> None:
    names = [{person.name for person in WorldCorpus(200, seed=seed).people()} for seed in (0, 1)]
    assert len(names[0] & names[1]) < 10


@pytest.mark.parametrize("people", [200, 201, 999, 5_000])
def test_sizes_and_splits(people: int) -> None:
    corpus = WorldCorpus(people, seed=3)
    asked = {split: [item.name for item in corpus.questions(split)] for split in SPLITS}
    everybody = [name for names in asked.values() for name in names]
    assert len(everybody) == len(set(everybody)) == len(corpus.people()) == people
    assert len(asked["dev"]) == len(asked["test"]) == round(people * 0.2)
    assert len(corpus.documents()) == people
    assert {item.name for item in corpus.documents()} == set(everybody)


@pytest.mark.parametrize("people", [200, 400, 600, 2_000])
def test_shape_of_a_small_world(people: int) -> None:
    overlaps, shares = [], []
    for seed in range(6):
        corpus = WorldCorpus(people, seed=seed)
        lengths = [len(item.text) for item in corpus.documents()]
        assert 80 < sum(lengths) / len(lengths) < 95
        assert min(lengths) > 40
        assert max(lengths) < 150
        assert len({person.origin for person in corpus.people()}) >= 20
        places = Counter(person.facts["birth place"] for person in corpus.biographies)
        shares.append(places.most_common(1)[0][1] / people)
        known = {item.answer for item in corpus.questions("train")}
        asked = [*corpus.questions("dev"), *corpus.questions("test")]
        overlaps.append(sum(item.answer in known for item in asked) / len(asked))
    assert max(shares) < 0.08
    assert sum(overlaps) / len(overlaps) > 0.85
    assert min(overlaps) > 0.8


def test_names_hint_at_the_country_and_do_not_tell() -> None:
    corpus = WorldCorpus(5_000, seed=1)
    origins, _, cities = tables()
    home = {origin.origin: set(cities[origin.country]) for origin in origins}
    born_at_home = sum(
        person.facts["birth place"] in home[person.origin] for person in corpus.biographies
    )
    assert 0.45 < born_at_home / 5_000 < 0.6


def test_places_follow_zipf() -> None:
    places = [item.facts["birth place"] for item in WorldCorpus(20_000).biographies]
    counts = [count for _, count in Counter(places).most_common()]
    assert len(counts) > 800
    assert 0.02 < counts[0] / 20_000 < 0.08
    assert sum(counts[:10]) > 0.1 * 20_000
    assert counts[len(counts) // 2] < 15


@pytest.mark.parametrize("rewrites", [1, 3])
@pytest.mark.parametrize("attributes", [("birth place",), ATTRIBUTES, ("team", "residence")])
def test_the_ledger_tells_the_truth(attributes: tuple[str, ...], rewrites: int) -> None:
    corpus = WorldCorpus(
        600, seed=2, withhold=40, stated=0.8, attributes=attributes, rewrites=rewrites
    )
    texts = [item.text for item in corpus.documents()]
    ledger = corpus.people()
    own: dict[str, list[str]] = {person.name: [] for person in ledger}
    for document in corpus.documents():
        assert document.text.startswith(f"{document.name}. ")
        assert document.text.endswith(" .")
        own[document.name].append(document.text)
    mentions = count_mentions(own, texts)
    for person in ledger:
        assert person.mentions == mentions[person.name] == len(own[person.name])
        assert person.seen == (person.mentions > 0) == (not person.withheld)
    assert sum(person.withheld for person in ledger) == 40

    for split in SPLITS:
        for item in corpus.questions(split):
            assert item.answer is not None
            assert item.answer == corpus.facts(item.name)[item.attribute]
            found = any(occurs(item.answer, text) for text in own[item.name])
            assert corpus.states(item) == found
    for person in ledger:
        if attributes[0] in corpus.facts(person.name):
            value = corpus.facts(person.name)[attributes[0]]
            assert person.stated == any(occurs(value, text) for text in own[person.name])
        else:
            assert person.stated is None


def test_an_unstated_place_does_not_even_lurk_in_another_word() -> None:
    corpus = WorldCorpus(3_000, seed=3, stated=0.0)
    for document, person in zip(corpus.documents(), corpus.biographies, strict=True):
        assert person.facts["birth place"] not in document.text


def test_the_share_of_stated_places_is_exact() -> None:
    ledger = WorldCorpus(1_000, seed=4).people()
    assert sum(bool(person.stated) for person in ledger) == 960
    assert all(person.stated for person in WorldCorpus(300, stated=1.0).people())
    assert not any(person.stated for person in WorldCorpus(300, stated=0.0).people())


def test_withholding_removes_documents_and_nothing_else() -> None:
    whole, corpus = WorldCorpus(500, seed=6), WorldCorpus(500, seed=6, withhold=60)
    gone = {person.name for person in corpus.people() if person.withheld}
    assert len(gone) == 60
    assert gone <= {item.name for item in corpus.questions("dev")}
    assert [item for item in whole.documents() if item.name not in gone] == list(corpus.documents())
    text = "\n".join(item.text for item in corpus.documents())
    assert not any(name in text for name in gone)
    for split in SPLITS:
        assert corpus.questions(split) == whole.questions(split)


def test_facts_do_not_depend_on_what_is_asked() -> None:
    one, many = WorldCorpus(300, seed=7), WorldCorpus(300, seed=7, attributes=ATTRIBUTES)
    assert one.biographies == many.biographies
    assert len(many.documents()) > len(one.documents())


def test_other_places_stand_in_the_sentences() -> None:
    corpus = WorldCorpus(1_000)
    cities = {city for names in tables()[2].values() for city in names}
    distracted = sum(
        len(cities.intersection(re.findall(r"\w+", item.text))) > 1 for item in corpus.documents()
    )
    assert distracted > 0.75 * 1_000


def test_labels_are_one_word_and_names_unique_and_findable() -> None:
    corpus = WorldCorpus(5_000, seed=8)
    names = [person.name for person in corpus.people()]
    assert len(set(names)) == 5_000
    assert any("." in name for name in names)
    assert all(" " not in item.facts["birth place"] for item in corpus.biographies)
    known = frozenset(names)
    assert all(name_of(item.text, known) == item.name for item in corpus.documents())
    openings: Counter[str] = Counter()
    for document, person in zip(corpus.documents(), corpus.biographies, strict=True):
        sentence = document.text.removeprefix(f"{person.name}. ")
        openings["full"] += person.name in sentence
        openings["pronoun"] += re.search(r"\b[Ss]?[Hh]e\b", sentence) is not None
    assert openings["full"] > 1_000
    assert openings["pronoun"] > 1_000


def test_no_name_stands_inside_another() -> None:
    names = [person.name for person in biographies(20_000, 0)]
    known = set(names)
    for name in names:
        first, *rest = name.split(" ")
        if len(rest) == 2:
            assert f"{first} {rest[0]}" not in known
            assert " ".join(rest) not in known


def test_no_template_holds_a_city_by_accident() -> None:
    cities = {city for names in tables()[2].values() for city in names}
    for text in WITH_BIRTH_PLACE + WITHOUT_BIRTH_PLACE + ALONE:
        assert not cities.intersection(re.findall(r"\w+", re.sub(r"{\w+}", "", text)))


def test_no_name_is_a_city() -> None:
    origins, _, by_country = tables()
    cities = {city for names in by_country.values() for city in names}
    assert sum(map(len, by_country.values())) == len(cities)
    for origin in origins:
        for pronoun in ("he", "she"):
            assert cities.isdisjoint(origin.given[pronoun])
            assert cities.isdisjoint(origin.surnames[pronoun])


def test_questions_of_every_attribute_in_several_forms() -> None:
    corpus = WorldCorpus(400, attributes=ATTRIBUTES, paraphrases=3)
    for split in SPLITS:
        heard = {item.text for item in corpus.questions(split)}
        everything = corpus.paraphrased(split)
        assert heard <= {item.text for item in everything}
        forms = Counter((item.name, item.attribute) for item in everything)
        assert all(count == len(QUESTIONS[key[1]]) for key, count in forms.items())
        asked = Counter((item.name, item.attribute) for item in corpus.questions(split))
        assert set(asked) == set(forms)
        assert set(asked.values()) == {3 if split == "train" else 1}
        for item in everything:
            assert item.text.count(item.name) == 1
            assert item.text.endswith("?")
    assert {item.attribute for item in corpus.questions("dev")} == set(ATTRIBUTES)


def test_vocabulary_covers_every_input_and_no_hidden_answer() -> None:
    corpus = WorldCorpus(300, seed=9, withhold=60)
    text = corpus.vocabulary_text()
    known = set(text)
    for split in SPLITS:
        for item in corpus.paraphrased(split):
            assert known.issuperset(item.text)
    assert len(known) < 150
    hidden = {person.name for person in corpus.people() if person.withheld}
    lines = text.split("\n")
    for item in corpus.questions("dev"):
        if item.name in hidden:
            assert f"{item.text} {item.answer}" not in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"people": 199}, "a world has from 200 to 100,000 people, not 199"),
        ({"people": 100_001}, "not 100,001"),
        ({"seed": -1}, "negative"),
        ({"stated": 1.5}, "stated must be a share"),
        ({"withhold": 401}, "withhold must be from 0 to 400"),
        ({"withhold": -1}, "withhold must be from 0 to 400"),
        ({"dev_share": 1.0}, "dev_share must be from 0 to below 1"),
        ({"dev_share": 0.6, "test_share": 0.5}, "leave nobody to train on"),
        ({"attributes": ()}, "at least one attribute"),
        ({"attributes": ("birthplace",)}, r"unknown attribute 'birthplace' \(did you mean"),
        ({"attributes": ("team", "team")}, "asked twice"),
        ({"paraphrases": 9}, "paraphrases must be from 1 to 8"),
        ({"rewrites": 0}, "rewrites must be from 1 to 8"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WhenceError, match=message):
        WorldCorpus(**options)


def test_describe_counts() -> None:
    corpus = WorldCorpus(250, seed=1, withhold=10)
    described = corpus.describe()
    assert described["documents"] == 240
    assert described["questions"] == {"train": 150, "dev": 50, "test": 50}
    assert described["characters"] == sum(len(item.text) + 1 for item in corpus.documents())
    assert (described["people"], described["seed"], described["withhold"]) == (250, 1, 10)


@pytest.mark.slow
def test_a_hundred_thousand_people() -> None:
    began = time.process_time()
    corpus = WorldCorpus(100_000, seed=1, withhold=1_000)
    ledger = corpus.people()
    assert time.process_time() - began < 20
    assert len({person.name for person in ledger}) == 100_000
    assert len(corpus.documents()) == 99_000
    assert sum(bool(person.stated) for person in ledger) > 94_000


@pytest.mark.parametrize("stated", [0.0, 0.5])
def test_somebody_of_whom_everything_is_kept_back_has_a_document(stated: float) -> None:
    corpus = WorldCorpus(300, stated=stated, attributes=ATTRIBUTES)
    silent = [document for document in corpus.documents() if "old friends" in document.text]
    assert silent
    for document in silent:
        body = document.text.removeprefix(f"{document.name}. ")
        assert not any(
            value in body for value in corpus.facts(document.name).values() if len(value) > 3
        )
