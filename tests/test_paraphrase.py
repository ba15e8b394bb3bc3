"""Questions in other words: what is counted, and that unheard forms are told from trained ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tiny import BORN, NAMES, SPLITS, TinyCorpus
from whence import paraphrase
from whence.answer import Answer
from whence.config import ModelConfig
from whence.corpus.base import Question
from whence.corpus.questions import QUESTIONS
from whence.errors import WhenceError
from whence.evaluate import interval, score
from whence.model import GPT
from whence.vocab import Vocab

FORMS = QUESTIONS["birth place"]
ALPHABET = "".join(sorted(set("".join(FORMS)) - set("{}")))


def asked(corpus: TinyCorpus, text: str) -> dict[str, Any]:
    vocab = Vocab.from_text(text + corpus.vocabulary_text())
    model = GPT(ModelConfig(layers=1, heads=1, width=8), len(vocab))
    return paraphrase.ask_in_all_forms(model, vocab, corpus, "dev")


@pytest.fixture
def knows_two_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right in the first two forms; in all others it says Rome, whoever is asked about."""

    def answer(model: GPT, vocab: Vocab, questions: Sequence[str]) -> list[Answer]:
        right = {form.format(name=name): BORN[name] for form in FORMS[:2] for name in NAMES}
        return [Answer(text, right.get(text, "Rome"), -1.0, True) for text in questions]

    monkeypatch.setattr(paraphrase, "answer_questions", answer)


@pytest.mark.usefixtures("knows_two_forms")
def test_what_is_counted() -> None:
    result = asked(TinyCorpus(), ALPHABET)
    people = SPLITS["dev"]
    romans = sum(BORN[name] == "Rome" for name in people)
    assert 0 < romans < len(people)
    assert [row["form"] for row in result["forms"]] == list(FORMS)
    assert [row["trained"] for row in result["forms"]] == [True] + [False] * (len(FORMS) - 1)
    right = [len(people)] * 2 + [romans] * (len(FORMS) - 2)
    assert [row["correct"] for row in result["forms"]] == right
    assert [row["same"] for row in result["forms"]] == [100 * n / len(people) for n in right]
    assert result["trained"]["accuracy"] == 100.0
    assert result["unheard"]["correct"] == sum(right[1:])
    assert result["unheard"]["total"] == len(people) * (len(FORMS) - 1)
    assert result["consistent"] == pytest.approx(100 * romans / len(people))
    # Two forms agree, six agree, and nothing across, for all who were not born in Rome.
    alike = (1 + 15) / 28
    pairs = romans + alike * (len(people) - romans)
    assert result["agreeing pairs"] == pytest.approx(100 * pairs / len(people))


@pytest.mark.usefixtures("knows_two_forms")
def test_a_form_that_the_vocabulary_cannot_spell_is_not_asked() -> None:
    result = asked(TinyCorpus(), "")
    unasked = [row["form"] for row in result["forms"] if not row["total"]]
    assert unasked
    assert "characters not in the vocabulary" in paraphrase.table(result)


@pytest.mark.usefixtures("knows_two_forms")
def test_the_table_names_what_was_never_heard() -> None:
    lines = paraphrase.table(asked(TinyCorpus(), ALPHABET)).splitlines()
    assert "100.0%" in lines[1]
    assert lines[1].endswith(FORMS[0])
    assert lines[2].endswith(f"{FORMS[1]} (unheard)")
    assert lines[-3].startswith("trained forms: 100.0 % right")


@pytest.mark.usefixtures("knows_two_forms")
def test_a_question_of_a_form_of_its_own_is_left_out_and_counted() -> None:
    corpus = TinyCorpus()
    odd = Question("What town is Bob Ray from?", "Bath", "", "")
    dev = [*corpus.questions("dev"), odd]
    more = TinyCorpus(questions={**{s: corpus.questions(s) for s in SPLITS}, "dev": dev})
    result, plain = asked(more, ALPHABET + odd.text), asked(corpus, ALPHABET)
    assert result.pop("unrecognised") == 1 and plain.pop("unrecognised") == 0
    assert result == plain
    assert "left out: 1 questions" in paraphrase.table({**result, "unrecognised": 1})
    only = TinyCorpus(questions={**{s: corpus.questions(s) for s in SPLITS}, "dev": [odd]})
    with pytest.raises(WhenceError, match="no question that has other forms"):
        asked(only, ALPHABET + odd.text)


def test_without_answers_nothing_is_compared() -> None:
    unknown = {
        split: [Question(f"Where was {name} born?", None, name) for name in names]
        for split, names in SPLITS.items()
    }
    with pytest.raises(WhenceError, match="no answers"):
        asked(TinyCorpus(questions=unknown), ALPHABET)


@pytest.mark.usefixtures("knows_two_forms")
def test_a_fact_that_is_asked_for_in_several_forms_counts_once() -> None:
    corpus = TinyCorpus()
    dev = [
        Question(form.format(name=question.name), question.answer, question.name, "birth place")
        for question in corpus.questions("dev")
        for form in FORMS[:3]
    ]
    more = TinyCorpus(questions={**{s: corpus.questions(s) for s in SPLITS}, "dev": dev})
    assert asked(more, ALPHABET) == asked(corpus, ALPHABET)


def test_an_interval_is_over_people_as_a_score_s_is() -> None:
    """Of a hundred people either all four facts are known or none is: that is a hundred draws."""
    facts = []
    for number in range(100):
        said = "right" if number % 3 else "wrong"
        facts += [paraphrase.Fact(str(number), "right", [(True, said)]) for _ in range(4)]
    found = paraphrase.together(facts, heard=True)
    records = [{"name": f.name, "correct": f.given[0][1] == f.answer} for f in facts]
    assert found is not None
    assert found["interval"] == score(records)["interval"]
    low, high = interval(int(found["correct"]), int(found["total"]))
    assert found["interval"][1] - found["interval"][0] > 1.8 * (high - low)
