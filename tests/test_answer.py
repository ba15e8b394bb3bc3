"""Answers: hundreds at once, the same as one after the other without a cache."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import NAMES, TinyCorpus
from whence import answer as answering
from whence.answer import Answerer, answer_questions, as_question, read_prompt
from whence.attention import MECHANISMS
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.model import GPT
from whence.vocab import MASK, Vocab

VOCAB = Vocab.from_text(TinyCorpus().vocabulary_text())
CONTEXT = 48
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"attention": name} for name in MECHANISMS},
    "bottleneck": {"bottleneck": 12, "layers": 3},
    "modern": {"positions": "rope", "norm": "rms", "qk_norm": True, "activation": "relu2"},
}


def build(seed: int = 0, **changes: Any) -> GPT:
    """Random weights that end answers now and then, so that rows leave at different times."""
    torch.manual_seed(seed)
    fields = {"layers": 2, "heads": 2, "width": 16, "context": CONTEXT, **changes}
    model = GPT(ModelConfig(**fields), len(VOCAB))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.4)
        model.head.weight[MASK] *= 1.5
    return model.eval()


def build_both_ends(**changes: Any) -> GPT:
    """A model that closes some of its answers and not others."""
    for seed in range(100):
        model = build(seed, **changes)
        closed = sum(a.closed for a in answer_questions(model, VOCAB, many_questions(16)))
        if 2 < closed < 14:
            return model
    raise AssertionError("no seed closes some answers")


@torch.no_grad()
def naive(model: GPT, question: str, longest: int = 32) -> tuple[str, float, bool]:
    """As a reader of the course would write it: the whole text through the model every time."""
    ids = [*VOCAB.encode(question), MASK]
    start, probability = len(ids), 0.0
    while len(ids) - start < longest and len(ids) <= model.context:
        chances = model(torch.tensor([ids]))[0, -1].double().log_softmax(-1)
        best = int(chances.argmax())
        probability += float(chances[best])
        if best == MASK:
            return VOCAB.decode(ids[start:]), probability, True
        ids.append(best)
    return VOCAB.decode(ids[start:]), probability, False


def many_questions(count: int) -> list[str]:
    """Of all lengths, in no order, some of them twice."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 26, (count,), generator=generator).tolist()
    letters = "abcdeilno"
    return [
        f"Where was {''.join(letters[(i * 7 + k * k) % 9] for k in range(n))} born?"
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_cached_answers_equal_naive_ones(variant: str, count: int) -> None:
    model = build_both_ends(**VARIANTS[variant])
    questions = many_questions(count)
    expected = [naive(model, question) for question in questions]
    answers = answer_questions(model, VOCAB, questions)
    assert [answer.question for answer in answers] == questions
    assert [answer.text for answer in answers] == [text for text, _, _ in expected]
    assert [answer.closed for answer in answers] == [closed for _, _, closed in expected]
    for answer, (_, log_probability, _) in zip(answers, expected, strict=True):
        assert answer.log_probability == pytest.approx(log_probability, abs=2e-3)
    assert 0 < sum(answer.closed for answer in answers) < count  # both ways of ending occur
    assert len({len(answer.text) for answer in answers}) > 3


@torch.no_grad()
def test_the_probability_is_the_product_over_all_characters_and_the_closing_mask() -> None:
    model = build_both_ends()
    for answer in answer_questions(model, VOCAB, many_questions(40)):
        prompt = [*VOCAB.encode(answer.question), MASK]
        said = [*VOCAB.encode(answer.text), *([MASK] if answer.closed else [])]
        chances = model(torch.tensor([(prompt + said)[:CONTEXT]]))[0].softmax(-1)
        steps = zip(range(len(prompt) - 1, CONTEXT), said, strict=False)
        product = math.prod(chances[place, token].item() for place, token in steps)
        assert answer.probability == pytest.approx(product, rel=1e-3)
        assert answer.probability == math.exp(answer.log_probability)


@given(st.permutations(range(12)))
@settings(max_examples=10)
def test_the_order_is_that_of_the_questions(order: list[int]) -> None:
    model, questions = build(), many_questions(12)
    straight = answer_questions(model, VOCAB, questions)
    mixed = answer_questions(model, VOCAB, [questions[i] for i in order])
    for answer, number in zip(mixed, order, strict=True):
        assert answer.question == questions[number]
        assert answer.text == straight[number].text
        assert answer.probability == pytest.approx(straight[number].probability, rel=1e-3)


def test_batches_of_questions_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, questions = build(), many_questions(50)
    expected = answer_questions(model, VOCAB, questions)
    monkeypatch.setattr(answering, "TOGETHER", 7)
    for one, other in zip(expected, answer_questions(model, VOCAB, questions), strict=True):
        assert (one.question, one.text, one.closed) == (other.question, other.text, other.closed)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_answers_do_not_depend_on_lanes(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, questions = build_both_ends(**VARIANTS[variant]), many_questions(50)
    monkeypatch.setattr(answering, "TOGETHER", 30)  # two rounds of three lanes
    threads, lanes, decode = torch.get_num_threads(), set(), answering._decode

    def watched(*arguments: Any) -> Any:
        lanes.add(threading.current_thread().name)
        assert torch.get_num_threads() == (1 if worth == 1 else 3)
        return decode(*arguments)

    monkeypatch.setattr(answering, "_decode", watched)
    found = {}
    try:
        torch.set_num_threads(3)
        for worth in (10**12, 1):
            monkeypatch.setattr(answering, "WORTH", worth)
            found[worth] = answer_questions(model, VOCAB, questions)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert len(lanes) > 2  # the caller's own, and more than one lane
    for alone, beside in zip(found[10**12], found[1], strict=True):
        assert (alone.question, alone.text, alone.closed) == (
            beside.question,
            beside.text,
            beside.closed,
        )
        assert alone.log_probability == pytest.approx(beside.log_probability, abs=1e-3)


def test_no_questions_no_answers() -> None:
    assert answer_questions(build(), VOCAB, []) == []


@pytest.mark.parametrize("longest", [1, 5])
def test_an_answer_ends_at_the_longest(longest: int) -> None:
    model = build(2)
    with torch.no_grad():
        model.head.weight[MASK] = -100 * model.head.weight.mean(0)
    for answer in answer_questions(model, VOCAB, many_questions(20), longest):
        assert (len(answer.text) <= longest and len(answer.text) == longest) or answer.closed


def test_a_question_that_fills_the_context_gets_one_character() -> None:
    model = build()
    question = "W" * (CONTEXT - 2) + "?"
    (answer,) = answer_questions(model, VOCAB, [question])
    assert (answer.text, answer.closed) == (naive(model, question)[0], naive(model, question)[2])
    assert len(answer.text) <= 1


def test_the_synthesizer_s_missing_column_shortens_what_is_seen() -> None:
    options = {"form": "course", "columns": CONTEXT - 1}
    model = build(attention="synthesizer", options=options)
    assert model.context == CONTEXT - 1
    for length in range(CONTEXT - 30, CONTEXT - 1):
        question = "a" * (length - 1) + "?"
        (answer,) = answer_questions(model, VOCAB, [question])
        assert len(answer.text) <= model.context - length
    with pytest.raises(WhenceError, match=f"the model sees {CONTEXT - 2}"):
        answer_questions(model, VOCAB, ["a" * (CONTEXT - 2) + "?"])


def test_asking_leaves_the_model_as_it_was() -> None:
    model = build(dropout=0.5)
    model.train()
    state = torch.random.get_rng_state()
    first = answer_questions(model, VOCAB, many_questions(5))
    assert model.training and first == answer_questions(model, VOCAB, many_questions(5))
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(WhenceError):
        answer_questions(model, VOCAB, ["no mark"])
    assert model.training


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Where was Ada born", "has no question mark; expected e.g. 'Where was NAME born?'"),
        ("Where was Ωmega born?", "character 'Ω' (U+03A9) at position 11"),
        ("Where was ⁇ born?", "special character"),
        ("Where was □ born?", "special character"),
        (f"Where was {'Ada' * 20} born?", f"has 76 characters; the model sees {CONTEXT - 1}"),
    ],
)
def test_questions_that_cannot_be_answered(question: str, reason: str) -> None:
    with pytest.raises(WhenceError) as error:
        read_prompt(question, VOCAB, CONTEXT)
    assert reason in str(error.value)
    with pytest.raises(WhenceError):
        answer_questions(build(), VOCAB, ["Where was Ada born?", question])


def test_names_become_questions() -> None:
    answerer = Answerer(build(), VOCAB)
    asked = [NAMES[0], f"Where was {NAMES[1]} born?"]
    assert [a.question for a in answerer.ask(asked)] == [f"Where was {n} born?" for n in NAMES[:2]]
    assert as_question("What is it ?") == "What is it ?"
    assert as_question("  Ada Dunn\t") == "Where was Ada Dunn born?"
    assert as_question("Where was Ada Dunn born? ") == "Where was Ada Dunn born?"
    assert as_question("Ada Dunn Jr.") == "Where was Ada Dunn Jr. born?"
    assert as_question("Howard Whichcote") == "Where was Howard Whichcote born?"
    for nothing in ("", "  ", "?", " . "):
        with pytest.raises(WhenceError, match="neither a name nor a question"):
            as_question(nothing)
    for lost in ("Where was Ada Dunn born", " When was Ada Dunn born "):
        with pytest.raises(WhenceError, match=r"has no question mark; did you mean '.* born\?'"):
            as_question(lost)
    for lost in ("where was Ada Dunn from.", "Who is Ada Dunn", "in what town was Ada Dunn born!"):
        with pytest.raises(WhenceError, match="has no question mark"):
            as_question(lost)
