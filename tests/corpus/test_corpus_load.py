"""load_corpus: the name chooses, what does not apply is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from whence.corpus import CourseCorpus, WorldCorpus, load_corpus
from whence.errors import WhenceError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wiki.txt").write_text("Ann Lee. Born in Rome .\n")
    return tmp_path


def test_the_world_with_options() -> None:
    corpus = load_corpus("world", people=210, seed=4, withhold=3, stated=None)
    assert isinstance(corpus, WorldCorpus)
    assert corpus.name == "world"
    assert corpus.describe()["people"] == 210
    assert corpus.describe()["stated"] == 0.96


def test_the_course(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load_corpus(f"course:{folder}"), CourseCorpus)
    monkeypatch.chdir(folder.parent)
    assert load_corpus(f"course:{folder.name}").name == f"course:{folder.name}"
    monkeypatch.delenv("WHENCE_COURSE", raising=False)
    with pytest.raises(WhenceError, match=r"needs its folder: course:FOLDER or \$WHENCE_COURSE"):
        load_corpus("course")
    monkeypatch.setenv("WHENCE_COURSE", str(folder))
    assert len(load_corpus("course").documents()) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrold", {}, r"unknown corpus 'wrold' \(did you mean 'world'\?\); expected world, course"),
        ("corse:x", {}, r"did you mean 'course'"),
        ("", {}, "unknown corpus ''"),
        ("world:here", {}, "takes no path"),
        (
            "world",
            {"pepole": 3},
            r"has no option 'pepole' \(did you mean 'people'\?\); it has people",
        ),
        ("course:x", {"people": 300}, "corpus 'course' has no option 'people'"),
        ("lahman", {"stated": 0.5}, "corpus 'lahman' has no option 'stated'"),
        ("course:/nowhere/at/all", {}, "/nowhere/at/all: there is no such folder"),
    ],
)
def test_mistakes(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(WhenceError, match=message):
        load_corpus(name, **options)
