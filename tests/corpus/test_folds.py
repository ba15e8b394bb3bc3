"""Folds: every training person is asked about in exactly one, and the real dev people in none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tiny import TinyCorpus, write_course
from whence.config import CorpusConfig
from whence.corpus import load_corpus
from whence.corpus.fold import FOLDS, FoldedCorpus
from whence.errors import WhenceError
from whence.pipeline import open_corpus


def test_the_folds_part_the_training_questions() -> None:
    whole = open_corpus(CorpusConfig(people=400))
    every = list(whole.questions("train"))
    asked = []
    for fold in range(FOLDS):
        folded = open_corpus(CorpusConfig(people=400, fold=fold))
        dev, train = folded.questions("dev"), folded.questions("train")
        assert {q.name for q in dev}.isdisjoint(q.name for q in train)
        assert sorted([*dev, *train], key=repr) == sorted(every, key=repr)
        assert {q.name for q in dev}.isdisjoint(q.name for q in whole.questions("dev"))
        assert folded.documents() == whole.documents()
        assert folded.vocabulary_text() == whole.vocabulary_text()
        assert folded.describe()["fold"] == fold and f"fold {fold}" in folded.name
        asked += dev
    assert sorted(asked, key=repr) == sorted(every, key=repr)


def test_a_fold_knows_what_its_corpus_knows() -> None:
    config = CorpusConfig(people=300, attributes=("birth place", "residence"), stated=0.5)
    whole, folded = open_corpus(config), open_corpus(replace(config, fold=1))
    asked = folded.questions("dev")
    assert [folded.states(q) for q in asked] == [whole.states(q) for q in asked]
    assert {folded.states(q) for q in asked} == {True, False}
    described = folded.describe()
    assert described["name"] == folded.name
    counts = {split: len(folded.questions(split)) for split in ("dev", "train")}
    assert described["questions"] == counts
    train = whole.questions("train")
    for split in ("dev", "train"):
        for number, question in enumerate(folded.questions(split)):
            place = folded.place_of(split, number)
            assert place == whole.place_of("train", train.index(question))


def test_what_a_fold_refuses() -> None:
    with pytest.raises(WhenceError, match=r"corpus\.fold must lie in 0\.\.3"):
        FoldedCorpus(TinyCorpus(), 4)
    with pytest.raises(WhenceError, match="asked without one"):
        FoldedCorpus(TinyCorpus(), 0).questions("test")
    with pytest.raises(WhenceError, match="too few"):
        FoldedCorpus(TinyCorpus(questions={"train": [], "dev": [], "test": []}), 0)


def test_a_fold_says_where_test_questions_stand(tmp_path: Path) -> None:
    folded = FoldedCorpus(load_corpus(f"course:{write_course(tmp_path)}"), 0)
    assert folded.place_of("test", 0).endswith("birth_test.tsv:1")
