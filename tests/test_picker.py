"""The picker: learns from training questions where answers stand, and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tiny import BORN, NAMES, TinyCorpus, sentence, write_course
from whence.batches import Batches, Place, check_mixture
from whence.corpus.base import Document, Question, Split
from whence.corpus.course import CourseCorpus
from whence.errors import WhenceError
from whence.picker import Form, Picker, candidate_spans, pick_spans
from whence.vocab import Vocab

DEATHS = {name: place for name, place in zip(NAMES, reversed(list(BORN.values())), strict=True)}


def documents() -> list[Document]:
    """Birth and death place in either order: only the words around them tell which is which."""
    found = []
    for number, name in enumerate(NAMES):
        born, died = f"was born in {BORN[name]}", f"died in {DEATHS[name]}"
        first, second = (born, died) if number % 3 else (died, born)
        found.append(Document(f"{name}. A painter who {first} and {second} .", name))
    return found


def questions(answers: dict[str, str], names: list[str]) -> list[Question]:
    return [Question(f"Where was {name} born?", answers[name], name) for name in names]


def test_it_learns_what_is_asked_for() -> None:
    texts = documents()
    for answers in (BORN, DEATHS):
        picks = pick_spans(texts, questions(answers, NAMES[::2]))
        unseen = [document for document in texts if document.name in NAMES[1::2]]
        right = sum(d.text[slice(*picks[d][0])] == answers[d.name] for d in unseen)
        assert right >= len(unseen) - 1


def test_each_thing_that_is_asked_has_its_own_picker() -> None:
    texts = documents()
    asked = questions(BORN, NAMES[::2])
    asked += [Question(f"Where did {n} die?", DEATHS[n], n, "death place") for n in NAMES[::2]]
    picks = pick_spans(texts, asked)
    unseen = [document for document in texts if document.name in NAMES[1::2]]
    found = [[d.text[slice(*span)] for span in picks[d]] for d in unseen]
    wanted = [list(dict.fromkeys([BORN[d.name], DEATHS[d.name]])) for d in unseen]
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) >= len(unseen) - 2


def test_the_picker_never_sees_a_question_of_dev_or_test() -> None:
    class Sealed(TinyCorpus):
        def questions(self, split: Split) -> Sequence[Question]:
            assert split == "train", f"{split} questions were asked for"
            return super().questions(split)

    corpus = Sealed()
    vocab = Vocab.from_text(TinyCorpus().vocabulary_text())
    mixture = {"picked": 0.8, "questions": 0.2}
    batches = Batches(corpus, vocab, mixture, block=128, positions=512, seed=0, stage="a")
    batch, _ = next(batches.read(Place()))
    assert batch.examples > 1


def test_of_dev_and_test_the_course_gives_names_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose line it is, is told by the names that are asked about; answers are not looked at."""
    corpus = CourseCorpus(write_course(tmp_path))
    answers = {q.answer for split in ("dev", "test") for q in corpus.questions(split)}
    documents = corpus.documents()
    assert answers and documents

    def only_train(split: Split) -> Sequence[Question]:
        assert split == "train", f"{split} questions were asked for"
        return CourseCorpus.questions(corpus, split)

    monkeypatch.setattr(corpus, "questions", only_train)
    vocab = Vocab.from_text(corpus.vocabulary_text())
    mixture = {"picked": 0.8, "questions": 0.2}
    batches = Batches(corpus, vocab, mixture, block=128, positions=512, seed=0, stage="a")
    assert next(batches.read(Place()))[0].examples > 1


@pytest.mark.parametrize("work", ["botanist", "civil engineer"])
def test_answers_without_capitals_are_found(work: str) -> None:
    works = [work, "painter", "rower"]
    texts = [
        Document(f"{name} grew up as a child of {BORN[name]} and was a {works[i % 3]} later.", name)
        for i, name in enumerate(NAMES)
    ]
    asked = [
        Question(f"{name} worked as what?", works[i % 3], name, "field")
        for i, name in enumerate(NAMES)
    ]
    picks = pick_spans(texts, asked[::2])
    found = [text.text[slice(*picks[text][0])] for text in texts[1::2]]
    assert found == [question.answer for question in asked[1::2]]


def test_nothing_to_pick_is_said_before_the_first_step() -> None:
    class Unknown(TinyCorpus):
        def questions(self, split: Split) -> Sequence[Question]:
            asked = super().questions(split)
            return [Question(f"Of what town is it, {q.name}?", q.answer) for q in asked]

    with pytest.raises(WhenceError, match=r"nothing to learn picking from.* questions have a form"):
        check_mixture(Unknown(), Vocab.from_text(Unknown().vocabulary_text()), ["picked"], 64)


def test_answers_of_several_words_are_found() -> None:
    corpus = TinyCorpus()
    picks = pick_spans(corpus.documents(), corpus.questions("train"))
    assert any(place == "New York" for place in BORN.values())
    for document in corpus.documents():
        ((start, stop),) = picks[document]
        assert document.text[start:stop] == BORN[document.name]


def test_the_order_of_the_questions_does_not_matter() -> None:
    texts, asked = documents(), questions(BORN, NAMES[::2])
    shuffled = random.Random(0).sample(asked, len(asked))
    assert pick_spans(texts, asked) == pick_spans(texts, shuffled)


def test_nothing_to_learn_from_is_no_error() -> None:
    texts = [Document(""), Document("nothing stands out"), Document(sentence(NAMES[0]), NAMES[0])]
    stranger = Question("Where was Nobody Known born?", "Rome", "Nobody Known")
    trade = Question(f"What was {NAMES[0]}?", "painter", NAMES[0])  # no candidate is lower case
    nameless = Question("Where was it?", sentence(NAMES[0]).split()[-2])
    for asked in ([], [stranger], [trade], [nameless]):
        assert pick_spans(texts, asked) == {}
        assert Picker.fit(texts, asked).pick(texts) == {}


def test_nothing_is_picked_from_a_document_that_does_not_say_it() -> None:
    """Each person has one document about the birth and two about something else."""
    texts = []
    for number, name in enumerate(NAMES):
        born = Document(f"{name}. A painter who was born in {BORN[name]} in 1901 .", name)
        died = Document(f"{name}. In 1970 {name.split()[0]} died in {DEATHS[name]} .", name)
        lived = Document(f"{name}. Lived in Ulm and worked for Brown Mills .", name)
        texts += [died, born, lived] if number % 2 else [born, lived, died]
    picks = pick_spans(texts, questions(BORN, NAMES[::2]))
    unseen = [document for document in texts if document.name in NAMES[1::2]]
    told = [d for d in unseen if "born in" in d.text]
    assert all(d.text[slice(*picks[d][0])] == BORN[d.name] for d in told)
    # Where somebody died where they were born, that document holds the same answer.
    other = [d for d in unseen if "born in" not in d.text and BORN[d.name] not in d.text]
    assert len(other) > len(told) and not any(d in picks for d in other)


def test_nothing_is_picked_about_people_of_whom_it_cannot_be_asked() -> None:
    """Of every third person no team is told: what scores best there is no answer."""
    names = [f"{one.split()[0]} {two.split()[-1]}" for one in NAMES[:10] for two in NAMES[:10]]
    places = list(BORN.values())
    born = {name: places[number * 7 % len(places)] for number, name in enumerate(names)}
    teams = {name: f"{place} Rovers" for name, place in born.items()}
    texts = [
        Document(f"{name}. Was born in {born[name]} and paints in Ulm for Brown Mills .", name)
        if number % 3 == 2
        else Document(f"{name}. Was born in Ulm and plays for {teams[name]} .", name)
        for number, name in enumerate(names)
    ]
    players = [name for number, name in enumerate(names) if number % 3 == 0]
    picks = pick_spans(texts, questions(teams, players))
    for number, document in enumerate(texts):
        if number % 3 == 2:
            assert document not in picks
        else:
            assert document.text[slice(*picks[document][0])] == teams[document.name]


def test_two_questions_are_enough_to_find_others() -> None:
    """Too few right answers say nothing about how high others score."""
    picks = pick_spans(documents(), questions(BORN, NAMES[:2]))
    assert len(picks) == len(NAMES)


def test_candidates_are_spans_of_the_text() -> None:
    text = "Ann Lee. Ann was born in New York City, not in Old York ."
    spans = candidate_spans(Document(text, "Ann Lee"), Form(3))
    found = [text[start:stop] for start, stop in spans]
    assert {"New", "New York", "New York City", "York City", "Old York"} <= set(found)
    assert "City, not" not in found and "Ann" not in found


def test_answers_that_are_joined_by_small_words_are_found() -> None:
    """What may stand inside an answer is learned from the training answers too."""
    places = {name: f"University of {BORN[name]}" for name in NAMES}
    texts = [
        Document(f"{name}. Went from the School of Arts to the {places[name]} in Rome .", name)
        for name in NAMES
    ]
    assert Form.of(places.values()) == Form(3, frozenset({" ", " of "}))
    picks = pick_spans(texts, questions(places, NAMES[::2]))
    for document in texts:
        assert document.text[slice(*picks[document][0])] == places[document.name]
