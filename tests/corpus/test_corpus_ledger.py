"""Names in documents: matched as the longest opening, counted as whole words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.corpus.ledger import count_mentions, name_of, occurs

dotted = st.text(st.sampled_from("ab. "), max_size=12)


@given(st.frozensets(dotted, max_size=6), dotted)
def test_the_longest_name_wins(names: frozenset[str], text: str) -> None:
    openings = [name for name in names if text.startswith(f"{name}. ")]
    assert name_of(text, names) == max(openings, key=len, default="")


def test_names_with_dots() -> None:
    names = {"J", "J. R. Smith", "J. R. Smith Jr."}
    assert name_of("J. R. Smith. He was born in Rome .", names) == "J. R. Smith"
    assert name_of("J. R. Smith Jr.. He was born. in Rome .", names) == "J. R. Smith Jr."
    assert name_of("J. Cole. He was born in Rome .", names) == "J"
    assert name_of("K. Cole. He was born in Rome .", names) == ""


@given(
    st.lists(st.text(st.sampled_from("abc "), min_size=1, max_size=5)),
    st.lists(st.text(st.sampled_from("abc ."), max_size=20)),
)
def test_mentions_are_counted_as_by_hand(names: list[str], texts: list[str]) -> None:
    counted = count_mentions(names, texts)
    for name in names:
        whole = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        assert counted[name] == sum(bool(whole.search(text)) for text in texts)


@pytest.mark.parametrize(
    ("text", "found"),
    [("Ann Lee sang", True), ("Ann Leeds sang", False), ("Joann Lee", False), ("(Ann Lee)", True)],
)
def test_a_mention_is_whole_words(text: str, found: bool) -> None:
    assert occurs("Ann Lee", text) is found
