"""Reading text and question files without ever dropping or shifting a line.

What can be understood in one way only is read; everything else is refused with `file:line`.
"""

from __future__ import annotations

import re
from pathlib import Path

from whence.corpus.base import Question
from whence.corpus.questions import recognise
from whence.errors import WhenceError

BYTE_ORDER_MARK = "\ufeff"
# Characters that would be misread further on, each with what the user should know of it.
REFUSED = {
    "\x00": "a NUL character (is this a UTF-16 or a binary file?)",
    "\r": "a carriage return inside a line (expected line ends \\n or \\r\\n)",
    "□": "□, which stands for padding",
    "⁇": "⁇, which stands for the mask",
    BYTE_ORDER_MARK: "a byte order mark in the middle (were two files joined?)",
}
REFUSED_PATTERN = re.compile("[" + "".join(REFUSED) + "]")
SPACES_AFTER_QUESTION = re.compile(r"\? {2,}(?=[^ ])")


def read_bytes(path: Path | str) -> bytes:
    try:
        return Path(path).read_bytes()
    except IsADirectoryError:
        raise WhenceError(f"{path}: expected a file, this is a folder") from None
    except FileNotFoundError:
        raise WhenceError(f"{path}: there is no such file") from None
    except OSError as error:
        raise WhenceError(f"{path}: {error.strerror}") from error


def read_text(path: Path | str) -> str:
    """The text of a UTF-8 file, line ends as `\\n`, without a byte order mark."""
    return decode_text(read_bytes(path), str(path))


def decode_text(data: bytes, source: str) -> str:
    """Decode strictly; `source` names the file in errors."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise WhenceError(f"{source}:1: expected UTF-8, this is UTF-16; save the file as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        before = data[line_start : error.start].decode("utf-8")
        column = len(before.removeprefix(BYTE_ORDER_MARK) if line == 1 else before) + 1
        raise WhenceError(
            f"{source}:{line}:{column}: expected UTF-8 text, found byte 0x{data[error.start]:02x}"
        ) from None
    text = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")
    if found := REFUSED_PATTERN.search(text):
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        raise WhenceError(f"{source}:{line}:{column}: the text holds {REFUSED[found[0]]}")
    return text


def read_questions(path: Path | str, need_answers: bool = False) -> list[Question]:
    """One question per line, `question<TAB>answer` or `question`; item i is line i + 1."""
    return parse_questions(read_text(path), str(path), need_answers)


def parse_questions(text: str, source: str, need_answers: bool = False) -> list[Question]:
    lines = text.split("\n")
    # Blank lines at the end shift nothing; anywhere else they would.
    while lines and not lines[-1].strip(" \t"):
        lines.pop()
    if not lines:
        raise WhenceError(f"{source}: expected at least one question, the file is empty")
    questions: list[Question] = []
    for number, line in enumerate(lines, start=1):
        where = f"{source}:{number}"
        question, answer = split_line(line, where)
        if answer is None and (need_answers or (questions and questions[0].answer is not None)):
            as_before = "" if need_answers else ", as in line 1"
            raise WhenceError(f"{where}: expected an answer after a tab{as_before}: {line!r}")
        if answer is not None and questions and questions[0].answer is None:
            raise WhenceError(f"{where}: expected no answer, as in line 1: {line!r}")
        name, attribute = recognise(question)
        questions.append(Question(question, answer, name, attribute))
    return questions


def split_line(line: str, where: str) -> tuple[str, str | None]:
    """The question and, where there is one, the answer of a line."""
    body = line.rstrip(" \t")
    if not body:
        raise WhenceError(f"{where}: expected a question, the line is blank")
    question: str
    answer: str | None
    if "\t" in body:
        if body.count("\t") > 1:
            raise WhenceError(
                f"{where}: expected one tab, between question and answer, "
                f"found {body.count(chr(9))}: {line!r}"
            )
        question, answer = (part.strip(" ") for part in body.split("\t"))
    else:
        question, answer = split_at_spaces(body.strip(" "), where)
    if not question.endswith("?"):
        raise WhenceError(f"{where}: expected a question that ends in '?', found {question!r}")
    return question, answer


def split_at_spaces(body: str, where: str) -> tuple[str, str | None]:
    """A line without a tab: a bare question, or spaces where the tab should be."""
    gaps = list(SPACES_AFTER_QUESTION.finditer(body))
    if len(gaps) == 1:
        return body[: gaps[0].start() + 1], body[gaps[0].end() :]
    inner_marks = body[:-1].count("? ")
    if not gaps and inner_marks == 0:
        return body, None
    if not gaps and inner_marks == 1 and not body.endswith("?"):
        question, _, answer = body.partition("? ")
        return question + "?", answer
    raise WhenceError(
        f"{where}: expected a tab between question and answer; "
        f"without it this line can be read in two ways: {body!r}"
    )
