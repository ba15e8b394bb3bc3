"""Characters and ids: nothing is lost on the way there and back, nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.errors import WhenceError
from whence.vocab import MASK, MASK_CHARACTER, PAD, PAD_CHARACTER, Vocab

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts)
def test_ids_are_sorted_characters_after_the_two_special_ones(text: str) -> None:
    vocab = Vocab.from_text(text)
    assert vocab.characters[:2] == (PAD_CHARACTER, MASK_CHARACTER) == ("\u25a1", "\u2047")
    assert (PAD, MASK) == (0, 1)
    assert list(vocab.characters[2:]) == sorted(set(text) - {"□", "⁇"})
    assert len(vocab) == 2 + len(set(text) - {"□", "⁇"})


@given(texts)
def test_decoding_undoes_encoding(text: str) -> None:
    vocab = Vocab.from_text(text)
    ids = vocab.encode(text)
    assert len(ids) == len(text)
    assert vocab.decode(ids) == text


@given(texts, texts)
def test_an_unknown_character_is_named_with_its_position(known: str, text: str) -> None:
    vocab = Vocab.from_text(known)
    unknown = vocab.unknown(text)
    assert unknown == list(dict.fromkeys(c for c in text if c not in vocab))
    if not unknown:
        assert vocab.decode(vocab.encode(text)) == text
        return
    with pytest.raises(WhenceError) as error:
        vocab.encode(text)
    position = text.index(unknown[0]) + 1
    assert f"position {position} of" in str(error.value)
    assert f"U+{ord(unknown[0]):04X}" in str(error.value)
    assert "\n" not in str(error.value)


@given(texts)
def test_a_saved_vocabulary_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("vocab") / "vocab.json"
    vocab = Vocab.from_text(text)
    vocab.save(path)
    loaded = Vocab.load(path)
    assert loaded == vocab and hash(loaded) == hash(vocab)
    assert json.loads(path.read_text(encoding="utf-8")) == list(vocab.characters)


def test_order_of_the_text_does_not_matter() -> None:
    assert Vocab.from_text("cab") == Vocab.from_text("bacca")
    assert Vocab.from_text("cab") != Vocab.from_text("ca")
    assert Vocab.from_text("cab") != "cab"


@pytest.mark.parametrize("ids", [[-1], [5], [0, 99]])
def test_ids_that_do_not_exist_cannot_be_decoded(ids: list[int]) -> None:
    with pytest.raises(WhenceError, match=r"outside 0\.\.4"):
        Vocab.from_text("abc").decode(ids)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "not JSON"),
        ("{}", "list of characters"),
        ("[1, 2]", "list of characters"),
        ('["a", "b"]', "starts with"),
        ('["□", "⁇", "ab"]', "single characters"),
        ('["□", "⁇", "a", "a"]', "each of them once"),
    ],
)
def test_a_broken_file_is_refused_with_its_path(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(WhenceError, match=reason) as error:
        Vocab.load(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match="No such file"):
        Vocab.load(tmp_path / "vocab.json")
