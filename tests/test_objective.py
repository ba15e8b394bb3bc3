"""Every rule of the public graders, on arbitrary text; nothing dropped, nothing shifted."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny import BORN, NAMES, sentence
from whence.corpus.base import Document, Question
from whence.errors import WhenceError
from whence.objective import (
    OBJECTIVES,
    Generator,
    NextCharacter,
    PickedSpan,
    QuestionAnswer,
    SalientSpan,
    SpanCorruption,
    integer,
    salient_words,
)
from whence.vocab import MASK, PAD, Vocab

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="□⁇"), max_size=200)
long_texts = st.text(st.sampled_from("ab ⅔Z.é"), min_size=112, max_size=300)
blocks = st.integers(8, 160)
seeds = st.integers(0, 2**32)


@st.composite
def generators(draw: st.DrawFn) -> Generator:
    seed = draw(seeds)
    return random.Random(seed) if draw(st.booleans()) else torch.Generator().manual_seed(seed)


def split_example(ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """`prefix ⁇ suffix ⁇ masked` -> the three parts."""
    first = ids.index(MASK)
    second = ids.index(MASK, first + 1)
    return ids[:first], ids[first + 1 : second], ids[second + 1 :]


@given(texts, blocks, generators())
def test_span_corruption_keeps_every_rule(text: str, block: int, generator: Generator) -> None:
    vocab = Vocab.from_text(text)
    x, y = SpanCorruption(block)(text, vocab, generator)
    assert x.dtype == y.dtype == torch.long
    assert x.shape == y.shape == (block - 1,)
    inputs, targets = x.tolist(), y.tolist()
    # The target is the input shifted by one, to the last place; padding only at the end.
    assert inputs[1:] == targets[:-1]
    whole = [inputs[0], *targets]
    while whole[-1] == PAD:
        whole.pop()
    assert PAD not in whole
    assert whole.count(MASK) == 2
    prefix, suffix, masked = split_example(whole)
    taken = vocab.decode([*prefix, *masked, *suffix])
    assert text.startswith(taken)
    assert len(taken) <= int(block * 7 / 8)
    assert len(taken) >= min(4, len(text))
    assert masked or not text
    assert len(masked) <= max(1, round(len(taken) / 4)) * 2 - 1


def test_every_length_occurs_and_a_quarter_is_masked_on_average() -> None:
    block, generator = 128, random.Random(0)
    text = "".join(random.Random(1).choices("abcdefgh .", k=300))
    vocab, objective = Vocab.from_text(text), SpanCorruption(block)
    by_length: dict[int, list[int]] = {}
    starts: set[int] = set()
    for _ in range(20_000):
        inputs, targets = objective.draw(Document(text), vocab, generator)
        prefix, suffix, masked = split_example([inputs[0], *targets])
        length = len(prefix) + len(suffix) + len(masked)
        by_length.setdefault(length, []).append(len(masked))
        starts.add(len(prefix))
    assert set(by_length) == set(range(4, 113))
    for length, masked_lengths in by_length.items():
        assert len(set(masked_lengths)) > 1 or length < 6
    lengths = [length for length, found in by_length.items() for _ in found]
    masked_all = [number for found in by_length.values() for number in found]
    assert abs(sum(masked_all) / len(masked_all) - sum(lengths) / len(lengths) / 4) < 0.3
    # The graders allow 1.5 for one length; so do we, with the draws that each length got.
    assert all(abs(sum(m) / len(m) - n / 4) <= 1.5 + 0.15 * n**0.5 for n, m in by_length.items())
    assert {0, 1} <= starts and len(starts) > 90  # the masked part may stand first


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "abcd"])
def test_the_shortest_documents(text: str) -> None:
    vocab = Vocab.from_text(text)
    for seed in range(50):
        inputs, targets = SpanCorruption().draw(Document(text), vocab, random.Random(seed))
        prefix, suffix, masked = split_example([inputs[0], *targets])
        assert vocab.decode([*prefix, *masked, *suffix]) == text


@given(texts, blocks, generators())
def test_next_character_is_a_stretch_of_the_text(text: str, block: int, g: Generator) -> None:
    vocab = Vocab.from_text(text)
    inputs, targets = NextCharacter(block).draw(Document(text), vocab, g)
    if not text:
        assert inputs == targets == [MASK]
        return
    assert len(inputs) == len(targets) == min(len(text), block - 1)
    assert inputs[0] == MASK and inputs[1:] == targets[:-1]
    assert vocab.decode(targets) in text
    if len(text) < block:
        assert vocab.decode(targets) == text


@given(long_texts, st.integers(8, 64))
def test_next_character_reaches_both_ends_of_a_long_text(text: str, block: int) -> None:
    """Every character is a target at some time, the last one too."""
    drawn = {integer(random.Random(s), 0, 5) for s in range(100)}
    assert drawn == set(range(6))
    marked = "".join(chr(0x4E00 + i) for i in range(len(text)))  # every character differs
    vocab = Vocab.from_text(marked)
    seen: set[int] = set()
    for seed in range(40 * (len(marked) - block + 2)):
        seen |= set(NextCharacter(block).draw(Document(marked), vocab, random.Random(seed))[1])
        if len(seen) == len(marked):
            break
    assert vocab.decode(sorted(seen)) == marked


names = st.text(st.characters(categories=["L"], exclude_characters="□⁇"), min_size=1, max_size=30)


@given(names, names, generators())
def test_name_examples(name: str, place: str, generator: Generator) -> None:
    question = f"Where was {name} born?"
    vocab = Vocab.from_text(question + place)
    x, y = QuestionAnswer(128)(Question(question, place, name), vocab, generator)
    assert x.shape == y.shape == (127,)
    whole = vocab.decode(x.tolist())
    assert whole == f"{question}⁇{place}⁇".ljust(127, "□")
    expected = "□" * len(question) + f"{place}⁇"
    assert vocab.decode(y.tolist()) == expected.ljust(127, "□")
    for before, after, target in zip(x.tolist(), x.tolist()[1:], y.tolist(), strict=False):
        assert target in (PAD, MASK, after), (before, after, target)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (Question("Where was A born?", None), "no answer to train on"),
        (Document("text"), "no answer to train on"),
        (Question("Where was A born?" * 9, "Rome"), "longer than the block of 128"),
        (Question("Where was ⁇ born?", "Rome"), "special character"),
        (Question("Where was A born?", "Ro□me"), "special character"),
        (Question("Where was Ω born?", "Rome"), r"'Ω' \(U\+03A9\) at position 11"),
    ],
)
def test_questions_that_cannot_be_trained_on(item: Document | Question, reason: str) -> None:
    vocab = Vocab.from_text("Where was A born?Rome")
    with pytest.raises(WhenceError, match=reason):
        QuestionAnswer(128)(item, vocab, random.Random(0))


@pytest.mark.parametrize("name", ["spans", "next"])
@pytest.mark.parametrize("text", ["Ann ⁇ Lee", "□Ann Lee", "Ann Lee" * 50 + "⁇"])
def test_special_characters_in_a_document_are_refused(name: str, text: str) -> None:
    """Its example could not be told from another's; whichever part of the text is drawn."""
    vocab = Vocab.from_text("An Le")
    for seed in range(20):
        with pytest.raises(WhenceError, match="special character"):
            OBJECTIVES[name](16)(text, vocab, random.Random(seed))


@pytest.mark.parametrize("name", ["spans", "next"])
def test_a_character_outside_the_vocabulary_is_one_sentence(name: str) -> None:
    vocab = Vocab.from_text("abc")
    with pytest.raises(WhenceError, match=r"character 'ä' \(U\+00E4\) at position 2 of 'bä'"):
        OBJECTIVES[name]()("bä", vocab, random.Random(0))


documents = st.builds(
    lambda name, body: Document(f"{name}. {body}", name),
    st.lists(st.text("AbcÉ'-", min_size=1, max_size=9), min_size=1, max_size=3).map(" ".join),
    st.lists(st.text("AbCé1(,'-", min_size=1, max_size=200), max_size=12).map(" ".join),
)


@given(documents | texts.map(Document), st.integers(16, 160), generators())
def test_salient_spans_ask_for_a_word_of_the_document(
    item: Document, block: int, generator: Generator
) -> None:
    vocab = Vocab.from_text(item.text + item.name + ". ")
    inputs, targets = SalientSpan(block).draw(item, vocab, generator)
    assert len(inputs) == len(targets) <= block - 1
    spans = [item.text[a:b] for a, b in salient_words(item)]
    if not spans:
        assert vocab.decode(targets) in (item.text or "⁇")
        return
    mask = inputs.index(MASK)
    prompt, span = vocab.decode(inputs[:mask]), vocab.decode(inputs[mask + 1 :])
    assert targets == [PAD] * mask + inputs[mask + 1 :] + [MASK]
    assert span in [whole[: block // 2] for whole in spans]
    assert f"{item.name}. ".startswith(prompt[: len(item.name) + 2]) or not item.name
    assert all(word in item.text for word in prompt.split()) or len(prompt) < len(item.name) + 2


def test_salient_words_are_names_places_and_numbers_but_not_ones_own_name() -> None:
    text = "Ann Lee. Ann was born in New York on 3 May 1900, a Lund-born painter of the Louvre ."
    found = [text[a:b] for a, b in salient_words(Document(text, "Ann Lee"))]
    assert found == ["New", "York", "3", "May", "1900", "Lund", "Lund-born", "Louvre"]
    names = [text[a:b] for a, b in salient_words(Document(text, "Ann Lee"), numbers=False)]
    assert names == ["New", "York", "May", "Lund", "Lund-born", "Louvre"]


def test_numbers_are_asked_for_unless_the_stage_says_no() -> None:
    item = Document("Ann Lee. Born 1900 in Rome .", "Ann Lee")
    vocab = Vocab.from_text(item.text)

    def spans(numbers: bool) -> set[str]:
        drawn = [
            SalientSpan(128, numbers=numbers).draw(item, vocab, random.Random(s)) for s in range(60)
        ]
        return {vocab.decode(inputs[inputs.index(MASK) + 1 :]) for inputs, _ in drawn}

    assert spans(numbers=True) == {"Born", "1900", "Rome"}
    assert spans(numbers=False) == {"Born", "Rome"}


def test_salient_context_shrinks_down_to_the_name_alone() -> None:
    item = Document(sentence(NAMES[0]), NAMES[0])
    vocab = Vocab.from_text(item.text)
    prompts = set()
    for seed in range(100):
        inputs, _ = SalientSpan(128).draw(item, vocab, random.Random(seed))
        prompts.add(vocab.decode(inputs[: inputs.index(MASK)]))
    name = NAMES[0]
    assert prompts == {f"{name}. ", f"{name}. in ", f"{name}. born in ", f"{name}. was born in "}


def test_picked_spans_ask_mostly_for_the_pick() -> None:
    item = Document("Ann Lee. Ann was born in Rome and died in Oslo .", "Ann Lee")
    vocab = Vocab.from_text(item.text)
    start = item.text.index("Oslo")
    objective = PickedSpan(128, picks={item: [(start, start + 4)]})
    answers = []
    for seed in range(400):
        inputs, _ = objective.draw(item, vocab, random.Random(seed))
        answers.append(vocab.decode(inputs[inputs.index(MASK) + 1 :]))
    assert set(answers) == {"Oslo", "Rome"}
    assert 0.93 < answers.count("Oslo") / 400 < 1


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_one_seed_one_example(name: str) -> None:
    item: Document | Question = Document(sentence(NAMES[0]), NAMES[0])
    if name == "questions":
        item = Question(f"Where was {NAMES[0]} born?", BORN[NAMES[0]], NAMES[0])
    vocab = Vocab.from_text(sentence(NAMES[0]) + "Where was born?")
    draws = [OBJECTIVES[name]().draw(item, vocab, random.Random(5)) for _ in range(3)]
    assert all(a == b for a, b in pairwise(draws))
    state = torch.random.get_rng_state()
    OBJECTIVES[name]().draw(item, vocab, torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), state)  # no global generator is touched


def test_a_block_that_is_too_short_is_refused() -> None:
    with pytest.raises(WhenceError, match="at least 8"):
        SpanCorruption(7)
