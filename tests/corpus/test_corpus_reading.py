"""The readers: what was written is what is read, line for line, or it is refused with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from whence.corpus import read_questions, read_text
from whence.corpus.questions import QUESTIONS, recognise
from whence.corpus.reading import REFUSED, decode_text, parse_questions
from whence.errors import WhenceError

# What a field may hold: anything but what separates fields and lines, or is refused outright.
SPECIAL = "".join(REFUSED) + "\t\n"
characters = st.characters(exclude_characters=SPECIAL, exclude_categories=["Cs"])
fields = st.text(characters, min_size=1).map(lambda text: text.strip(" ")).filter(bool)
bare_fields = fields.filter(lambda text: "?" not in text)
line_ends = st.sampled_from(["\n", "\r\n"])
bad_bytes = st.sampled_from([b"\xff", b"\xe9", b"\xc3(", b"\xf0\x9f\x92"])


@given(
    st.lists(st.tuples(fields, fields), min_size=1),
    line_ends,
    st.booleans(),
    st.sampled_from(["", "\n", "\r\n\r\n", "\n  \n\t\n"]),
)
def test_what_is_written_is_read(
    pairs: list[tuple[str, str]], line_end: str, mark: bool, ending: str
) -> None:
    text = line_end.join(f"{question}?\t{answer}" for question, answer in pairs) + ending
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    questions = parse_questions(decode_text(data, "file"), "file", need_answers=True)
    assert [(item.text, item.answer) for item in questions] == [
        (f"{question}?", answer) for question, answer in pairs
    ]


@given(st.lists(st.tuples(bare_fields, bare_fields), min_size=1), st.integers(1, 9))
def test_spaces_instead_of_the_tab(pairs: list[tuple[str, str]], spaces: int) -> None:
    gap = " " * spaces
    text = "\n".join(f"{question}?{gap}{answer}" for question, answer in pairs)
    questions = parse_questions(text, "file")
    assert [(item.text, item.answer) for item in questions] == [
        (f"{question}?", answer) for question, answer in pairs
    ]


@given(st.lists(bare_fields, min_size=1), line_ends)
def test_questions_without_answers(texts: list[str], line_end: str) -> None:
    data = line_end.join(f"{text}?" for text in texts).encode()
    questions = parse_questions(decode_text(data, "file"), "file")
    assert [item.text for item in questions] == [f"{text}?" for text in texts]
    assert all(item.answer is None for item in questions)


@given(st.text(st.sampled_from("ab?? \t\t\n"), max_size=60))
def test_nothing_is_dropped_and_nothing_shifts(text: str) -> None:
    """Of any text: refused with its line, or every visible character is in the right item."""
    lines = re.sub(r"[ \t\n]+$", "", text).split("\n")
    try:
        questions = parse_questions(text, "file")
    except WhenceError as error:
        assert re.match(r"file(:\d+)?: expected ", str(error))
        return
    assert len(questions) == len(lines)
    for line, item in zip(lines, questions, strict=True):
        read = item.text + (item.answer or "")
        assert re.sub(r"[ \t]", "", line) == re.sub(r"[ \t]", "", read)
        assert item.text.endswith("?")
        if "\t" in line.rstrip():
            assert item.text == line.split("\t")[0].strip(" ")


@given(st.binary(max_size=80))
def test_any_bytes_are_text_or_refused(data: bytes) -> None:
    try:
        text = decode_text(data, "file")
    except WhenceError as error:
        assert re.match(r"file:\d+(:\d+)?: ", str(error))
    else:
        expected = data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
        assert text == expected


@given(st.lists(bare_fields, min_size=1), bad_bytes, st.data())
def test_a_bad_byte_is_found_where_it_is(lines: list[str], bad: bytes, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, len(lines[row])))
    encoded = [line.encode() for line in lines]
    encoded[row] = lines[row][:column].encode() + bad + lines[row][column:].encode()
    # A cut-off sequence may be completed by what follows it.
    assume(not _is_utf8(encoded[row]))
    with pytest.raises(WhenceError, match=rf"^file:{row + 1}:{column + 1}: expected UTF-8 text"):
        decode_text(b"\xef\xbb\xbf" + b"\r\n".join(encoded), "file")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("character", list(REFUSED))
def test_characters_that_would_be_misread_are_refused(character: str) -> None:
    with pytest.raises(WhenceError, match=r"^file:2:3: the text holds "):
        decode_text(f"first\nab{character}c\n".encode(), "file")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(encoding: str) -> None:
    with pytest.raises(WhenceError, match="UTF-16"):
        decode_text("Where was Ann born?\tRome\n".encode(encoding), "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file: expected at least one question"),
        ("\n \n", "file: expected at least one question"),
        ("A?\tB\n\nC?\tD\n", "file:2: expected a question, the line is blank"),
        ("A?\tB\tC\n", "file:1: expected one tab, between question and answer, found 2"),
        ("A?\t\tB\n", "file:1: expected one tab"),
        ("\tB\n", "file:1: expected a question that ends in"),
        ("A\tB\n", "file:1: expected a question that ends in '\\?', found 'A'"),
        ("question\tanswer\nA?\tB\n", "file:1: expected a question that ends in"),
        ("A\n", "file:1: expected a question that ends in"),
        ("A?\tB\nC?\n", "file:2: expected an answer after a tab, as in line 1"),
        ("A?\nC?\tD\n", "file:2: expected no answer, as in line 1"),
        ("A? B?\n", "file:1: expected a tab .* two ways"),
        ("A? B? C\n", "file:1: expected a tab .* two ways"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(WhenceError, match="^" + message):
        parse_questions(text, "file")


def test_answers_are_demanded_where_needed() -> None:
    with pytest.raises(WhenceError, match=r"^file:1: expected an answer after a tab: 'A\?\\t'"):
        parse_questions("A?\t\n", "file", need_answers=True)


def test_duplicates_stay() -> None:
    assert len(parse_questions("A?\tB\nA?\tB\nA?\tC\n", "file")) == 3


@pytest.mark.parametrize("attribute", list(QUESTIONS))
@pytest.mark.parametrize("name", ["Ann Lee", "J. R. O'Neil-Smith", "Łódź  born", "was born"])
def test_every_form_is_recognised(attribute: str, name: str) -> None:
    for form in QUESTIONS[attribute]:
        assert recognise(form.format(name=name)) == (name, attribute)


def test_an_unknown_question_has_no_name() -> None:
    assert recognise("Is it raining?") == ("", "")
    assert recognise("Where was  born?") == ("", "")
    assert recognise("Where was   Ann Lee  born?") == ("Ann Lee", "birth place")


def test_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "questions.tsv"
    file.write_bytes("\ufeffWhere was Zoë Ångström born?\tMalmö\r\n".encode())
    (question,) = read_questions(file, need_answers=True)
    assert (question.text, question.answer) == ("Where was Zoë Ångström born?", "Malmö")
    assert (question.name, question.attribute) == ("Zoë Ångström", "birth place")
    assert read_text(file) == "Where was Zoë Ångström born?\tMalmö\n"
    with pytest.raises(WhenceError, match="there is no such file"):
        read_text(tmp_path / "absent.txt")
    with pytest.raises(WhenceError, match="this is a folder"):
        read_questions(tmp_path)
