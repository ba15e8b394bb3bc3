"""The course's files: folders and zips, complete and incomplete, clean and damaged."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whence.corpus import CourseCorpus, Split, archive
from whence.errors import WhenceError

WIKI = """\
Ann Lee. Ann Lee was born in Rome and lives in Oslo .
J. R. Smith. Born in Paris, Smith met Ann Lee in Oslo .
Zoë Ångström. She is a painter in Malmö .
Bo Ek. Ek (born 1900 in Lund) was a lawyer .
Ida Ro. Ro was born in Bari .
"""
FILES = {
    "wiki.txt": WIKI,
    "birth_places_train.tsv": "Where was Ann Lee born?\tRome\nWhere was J. R. Smith born?\tParis\n",
    "birth_dev.tsv": "Where was Zoë Ångström born?\tKiruna\nWhere was Bo Ek born?\tLund\n",
    "birth_test_inputs.tsv": "Where was Ida Ro born?\n",
}


def write_folder(folder: Path, files: Mapping[str, str | bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    return folder


def write_zip(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return path


def everything(corpus: CourseCorpus) -> tuple[object, ...]:
    splits: tuple[Split, ...] = ("train", "dev", "test")
    asked = tuple(tuple(corpus.questions(split)) for split in splits)
    text = corpus.vocabulary_text()
    return tuple(corpus.documents()), asked, tuple(corpus.people()), text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "course")


def test_documents_questions_and_ledger(folder: Path) -> None:
    corpus = CourseCorpus(folder)
    assert corpus.name == f"course:{folder}"
    assert [item.text for item in corpus.documents()] == WIKI.splitlines()
    assert [item.name for item in corpus.documents()] == [
        "Ann Lee", "J. R. Smith", "Zoë Ångström", "Bo Ek", "Ida Ro",
    ]  # fmt: skip
    assert [item.answer for item in corpus.questions("train")] == ["Rome", "Paris"]
    assert [item.answer for item in corpus.questions("test")] == [None]
    assert corpus.vocabulary_text() == WIKI
    ledger = {person.name: person for person in corpus.people()}
    assert {name: person.stated for name, person in ledger.items()} == {
        "Ann Lee": True, "J. R. Smith": True, "Zoë Ångström": False, "Bo Ek": True, "Ida Ro": None,
    }  # fmt: skip
    assert ledger["Ann Lee"].mentions == 2
    assert ledger["Bo Ek"].mentions == 1
    assert all(person.seen and not person.withheld for person in ledger.values())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n\n",
        lambda text: text.replace("\t", "    "),
        lambda text: "\ufeff" + text.replace("\n", "\r\n").rstrip(),
    ],
    ids=["windows", "mark", "no last newline", "blank end", "spaces", "several"],
)
def test_editors_change_nothing(tmp_path: Path, damage: Callable[[str], str]) -> None:
    clean = everything(CourseCorpus(write_folder(tmp_path / "clean")))
    damaged = {name: damage(content) for name, content in FILES.items()}
    found = everything(CourseCorpus(write_folder(tmp_path / "damaged", damaged)))
    assert found[:3] == clean[:3]


def test_blank_lines_between_documents_are_counted(tmp_path: Path) -> None:
    blank = FILES | {"wiki.txt": WIKI.replace("\nBo", "\n\n \nBo")}
    corpus = CourseCorpus(write_folder(tmp_path, blank))
    assert len(corpus.documents()) == 5
    assert corpus.describe()["blank_lines"] == 2


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    broken = FILES | {
        "birth_dev.tsv": "Where was Bo Ek born?\tLund\n\nWhere was Ida Ro born?\tBari\n",
        "wiki.txt": b"Ann Lee. fine .\nBo Ek. caf\xe9 .\n",
    }
    corpus = CourseCorpus(write_folder(tmp_path, broken))
    with pytest.raises(WhenceError, match=r"birth_dev\.tsv:2: expected a question"):
        corpus.questions("dev")
    with pytest.raises(WhenceError, match=r"wiki\.txt:2:11: expected UTF-8 text, found byte 0xe9"):
        corpus.vocabulary_text()


def test_a_missing_file_matters_only_when_asked_for(tmp_path: Path) -> None:
    only = {name: FILES[name] for name in ("wiki.txt", "birth_places_train.tsv")}
    corpus = CourseCorpus(write_folder(tmp_path, only))
    assert len(corpus.documents()) == 5
    assert [item.name for item in corpus.documents()][2:] == ["", "", ""]
    assert len(corpus.people()) == 2
    assert corpus.describe()["questions"] == {"train": 2}
    with pytest.raises(WhenceError, match=r"expected birth_dev\.tsv or .* for the dev questions"):
        corpus.questions("dev")
    with pytest.raises(WhenceError, match=r"unknown split 'tets' \(did you mean 'test'\?\)"):
        corpus.questions("tets")  # type: ignore[arg-type]


def test_no_documents(tmp_path: Path) -> None:
    corpus = CourseCorpus(write_folder(tmp_path, {"birth_test.tsv": "Where was A born?\tB\n"}))
    assert corpus.questions("test")[0].answer == "B"
    assert corpus.describe()["documents"] == 0
    with pytest.raises(WhenceError, match=r"expected wiki\.txt for the documents"):
        corpus.documents()


def test_a_folder_without_any_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match=rf"expected at least one of .* they are in {folder}"):
        CourseCorpus(folder.parent)
    with pytest.raises(WhenceError, match="there is no such folder or zip file"):
        CourseCorpus(tmp_path / "nowhere")


def test_a_zip_is_read_like_its_folder(folder: Path, tmp_path: Path) -> None:
    flat = write_zip(tmp_path / "flat.zip", FILES)
    nested = {f"a5/data/{name}": content for name, content in FILES.items()}
    shadows = {f"__MACOSX/a5/data/{name}": b"\x00" for name in FILES}
    deep = write_zip(tmp_path / "deep.zip", nested | shadows | {"a5/src/run.py": "pass"})
    expected = everything(CourseCorpus(folder))
    assert everything(CourseCorpus(flat)) == expected
    assert everything(CourseCorpus(deep)) == expected
    broken = write_zip(tmp_path / "broken.zip", nested | {"a5/data/birth_dev.tsv": "no\n"})
    with pytest.raises(WhenceError, match=r"broken\.zip/a5/data/birth_dev\.tsv:1: expected"):
        CourseCorpus(broken).questions("dev")


@pytest.mark.parametrize("outside", ["../wiki.txt", "/etc/wiki.txt", "C:\\wiki.txt", "a/../b"])
def test_a_zip_with_a_path_outside_is_refused(tmp_path: Path, outside: str) -> None:
    path = write_zip(tmp_path / "course.zip", {outside: "x"} | FILES)
    with pytest.raises(WhenceError, match="path outside itself"):
        CourseCorpus(path)


def test_zips_that_cannot_be_meant(tmp_path: Path) -> None:
    twice = {f"{place}/{name}": text for place in ("2023", "2024") for name, text in FILES.items()}
    with pytest.raises(WhenceError, match="in one folder of the zip, not in 2023, 2024"):
        CourseCorpus(write_zip(tmp_path / "twice.zip", twice))
    with pytest.raises(WhenceError, match="expected at least one of"):
        CourseCorpus(write_zip(tmp_path / "other.zip", {"readme.md": "hello"}))
    (tmp_path / "no.zip").write_bytes(b"not a zip")
    with pytest.raises(WhenceError, match="expected a folder or a zip file"):
        CourseCorpus(tmp_path / "no.zip")
    link = zipfile.ZipInfo("wiki.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as target:
        target.writestr(link, "/etc/passwd")
    with pytest.raises(WhenceError, match="symbolic link"):
        CourseCorpus(tmp_path / "link.zip").documents()


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_MEMBER", 2**20)
    path = write_zip(tmp_path / "bomb.zip", FILES | {"wiki.txt": b"a" * (2**20 + 1)})
    with pytest.raises(WhenceError, match="larger than 1 MiB"):
        CourseCorpus(path).documents()
    monkeypatch.setattr(archive, "MOST_MEMBERS", 3)
    with pytest.raises(WhenceError, match="4 files in one zip"):
        CourseCorpus(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_damaged_zip_is_read_rightly_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in FILES.items():
            target.writestr(f"course/{name}", content)
    damaged = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.zip"
    path.write_bytes(damaged)
    expected = everything(CourseCorpus(write_folder(tmp_path / "whole")))
    try:
        found = everything(CourseCorpus(path))
    except WhenceError:
        return
    assert found == expected


def test_withheld_people_are_in_no_line(folder: Path) -> None:
    shown, corpus = CourseCorpus(folder), CourseCorpus(folder, withhold=2)
    withheld = {person.name for person in corpus.people() if person.withheld}
    assert withheld == {"Bo Ek", "Zoë Ångström"}
    assert not any(name in item.text for name in withheld for item in corpus.documents())
    for person in corpus.people():
        assert person.seen == (person.name not in withheld)
        assert person.withheld == (person.name in withheld)
    assert corpus.questions("dev") == shown.questions("dev")
    assert corpus.questions("train") == shown.questions("train")
    assert corpus.vocabulary_text() == shown.vocabulary_text()
    with pytest.raises(WhenceError, match="withhold must be from 0 to 2"):
        CourseCorpus(folder, withhold=3)


def test_dev_answers_reach_nothing_but_dev(folder: Path, tmp_path: Path) -> None:
    poisoned = FILES | {"birth_dev.tsv": FILES["birth_dev.tsv"].replace("Lund", "Ystad")}
    clean, other = CourseCorpus(folder), CourseCorpus(write_folder(tmp_path / "other", poisoned))
    assert other.documents() == clean.documents()
    assert other.questions("train") == clean.questions("train")
    assert other.questions("test") == clean.questions("test")
    assert other.vocabulary_text() == clean.vocabulary_text()
    assert other.questions("dev") != clean.questions("dev")


def test_a_name_does_not_state_the_place(tmp_path: Path) -> None:
    files = {
        "wiki.txt": "Jack London. Jack London was a novelist .\nAnn Lee. Lee lived in London .\n",
        "birth_dev.tsv": "Where was Jack London born?\tLondon\nWhere was Ann Lee born?\tLondon\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    corpus = CourseCorpus(tmp_path)
    assert [corpus.states(question) for question in corpus.questions("dev")] == [False, True]


def test_two_people_of_one_name(tmp_path: Path) -> None:
    twice = FILES | {
        "wiki.txt": WIKI + "Bo Ek. Bo Ek left Kiruna .\n",
        "birth_places_train.tsv": "Where was Bo Ek born?\tKiruna\nWhere was Bo Ek born?\tKiruna\n",
    }
    corpus = CourseCorpus(write_folder(tmp_path, twice))
    assert len(corpus.questions("train")) == 2
    (person,) = [person for person in corpus.people() if person.name == "Bo Ek"]
    assert (person.stated, person.mentions) == (True, 2)
    assert corpus.describe()["names_asked_twice"] == 1


@pytest.fixture
def real() -> CourseCorpus:
    default = Path(__file__).parents[3] / "shared" / "course"
    path = Path(os.environ.get("WHENCE_COURSE", default))
    if not path.exists():
        pytest.skip(f"NO COURSE DATA: {path} is absent; set $WHENCE_COURSE to its folder")
    return CourseCorpus(path)


@pytest.mark.course
def test_the_facts_of_the_course_data(real: CourseCorpus) -> None:
    assert len(real.documents()) == 2937
    train, dev, test = (real.questions(split) for split in ("train", "dev", "test"))
    assert (len(train), len(dev), len(test)) == (2000, 500, 437)
    assert len(set(real.vocabulary_text())) + 2 == 256
    assert sum(bool(real.states(item)) for item in train) == 1904
    assert sum(bool(real.states(item)) for item in dev) == 479
    assert {real.states(item) for item in test} == {None}
    assert sum(item.answer == "London" for item in dev) == 25
    # Line i of the text belongs to question i: the names were matched by themselves.
    asked = [item.name for item in (*train, *dev, *test)]
    assert [item.name for item in real.documents()] == asked
    assert all(person.seen and person.mentions >= 1 for person in real.people())


@pytest.mark.course
def test_the_course_data_from_a_zip(real: CourseCorpus, tmp_path: Path) -> None:
    files = {f"course/{name}": (real.path / name).read_bytes() for name in FILES}
    zipped = CourseCorpus(write_zip(tmp_path / "course.zip", files))
    assert zipped.documents() == real.documents()
    assert zipped.people() == real.people()


@pytest.mark.course
def test_withholding_course_people(real: CourseCorpus) -> None:
    corpus = CourseCorpus(real.path, withhold=100, seed=1)
    gone = [person for person in corpus.people() if person.withheld]
    assert len(gone) == 100
    assert len(corpus.documents()) == 2837
    assert all(
        (person.seen, person.mentions, person.stated) == (False, 0, False) for person in gone
    )
