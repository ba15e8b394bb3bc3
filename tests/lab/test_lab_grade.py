"""Answer files, rubrics, folders, and the command."""

from __future__ import annotations

import csv
import io
import json
import time
import tomllib

import pytest
from click.testing import CliRunner
from test_lab_judges import RIGHT, WRONG

from whence.errors import WhenceError
from whence.lab.commands import grade as command
from whence.lab.grader.answers import Rubric, read_answers, read_rubric, rubric_text, template
from whence.lab.grader.grade import as_csv, as_text, grade_file, grade_files
from whence.lab.grader.parts import PARTS, VERSIONS


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def filled(version, table, student="Ada"):
    """A submission of one version with the first answer of `table` for each part."""
    first = {}
    for part, texts, *_ in table:
        first.setdefault(part, texts)
    lines = [f'version = "{version}"', f'student = "{student}"']
    for part in VERSIONS[version]:
        lines.append(f"[{part}]")
        if part in first:
            keys = PARTS[part].answers
            lines += [f'{key} = "{text}"' for key, text in zip(keys, first[part], strict=True)]
    return "\n".join(lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_template_is_empty_complete_and_gradable(version, tmp_path):
    text = template(version)
    document = tomllib.loads(text)
    assert [name for name in document if name not in ("version", "student")] == list(
        VERSIONS[version]
    )
    submission = grade_file(write(tmp_path / "a.toml", text), Rubric())
    assert submission.points == 0
    assert {grade.finding.outcome for grade in submission.grades} == {"missing"}
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("version", VERSIONS)
def test_all_right_and_all_wrong(version, tmp_path):
    right = grade_file(write(tmp_path / "r.toml", filled(version, RIGHT)), Rubric())
    assert right.points == right.out_of == len(VERSIONS[version])
    wrong = grade_file(write(tmp_path / "w.toml", filled(version, WRONG)), Rubric())
    assert wrong.points == 0 and not wrong.error
    text = as_text(wrong)
    assert "counter-example" in text and "hint" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = '1999'", "version must be one of"),
        ("version = '2022'\n[averge]\nq = 'C'", "did you mean average"),
        ("[average]\nqq = 'C'", "did you mean q"),
        ("[average]\nq = ['C']", "a formula in quotes"),
        ("average = 'C'", "write [average]"),
        ("version = '2022'\n[kqv]\nV = 'I'", "no part 'kqv' in version 2022"),
        ("[average\nq = 'C'", "not TOML"),
        ("[average]\nq = C*k_a", "a text stands in quotes"),
        ("student = 3", "student must be a text"),
        ("a = " + "[" * 5000, "not TOML"),
        ("#" * 40000, "larger than"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_sentence(text, words, tmp_path):
    path = write(tmp_path / "answers.toml", text)
    with pytest.raises(WhenceError) as caught:
        read_answers(path)
    message = str(caught.value)
    assert words in message and str(path) in message and "\n" not in message


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "answers.toml"
    path.write_bytes(b"student = '\xff\xfe'")
    assert "UTF-8" in grade_file(path, Rubric()).error
    assert "cannot read" in grade_file(tmp_path / "absent.toml", Rubric()).error
    path.write_bytes("\ufeff[average]\nq = 'C*(k_a+k_b)'".encode())
    assert grade_file(path, Rubric()).points == 1


def test_half_a_part_is_missing_and_says_so(tmp_path):
    path = write(tmp_path / "a.toml", "[two]\nq1 = 'C*mu_a'")
    finding = grade_file(path, Rubric()).grades[0].finding
    assert finding.outcome == "missing" and "q2" in finding.hint


def test_a_rubric_changes_the_points(tmp_path):
    rubric = write(
        tmp_path / "rubric.toml",
        "points = 2\nconditional = 0.25\n[parts.average]\npoints = 4\n[parts.select]\nconditional "
        "= 1.0",
    )
    points = read_rubric(rubric)
    answers = write(
        tmp_path / "a.toml",
        "[average]\nq = '10*(k_a+k_b)'\n[select]\nM = 'A@A.T/m'\n[copy]\nq = 'C*k_j'",
    )
    submission = grade_file(answers, points)
    assert [grade.points for grade in submission.grades] == [1.0, 2.0, 2.0]
    assert submission.out_of == 8
    again = read_rubric(write(tmp_path / "again.toml", rubric_text(points)))
    assert all(again.out_of(part) == points.out_of(part) for part in PARTS)
    assert all(again.earned(p, "right if") == points.earned(p, "right if") for p in PARTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pionts = 1", "did you mean points"),
        ("points = 'x'", "must be a number"),
        ("conditional = 2", "from 0 to 1"),
        ("[parts.averag]\npoints = 1", "did you mean average"),
        ("parts = 3", "write [parts.NAME]"),
        ("[parts]\naverage = 3", "must be a table"),
    ],
)
def test_a_wrong_rubric_is_refused(text, words, tmp_path):
    with pytest.raises(WhenceError, match=r"rubric\.toml") as caught:
        read_rubric(write(tmp_path / "rubric.toml", text))
    assert words in str(caught.value)


def test_the_command_grades_one_file(tmp_path):
    path = write(tmp_path / "a.toml", filled("2022", RIGHT))
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 0, result.output
    assert "7 of 7 points" in result.output
    result = CliRunner().invoke(command, [str(path), "--json"])
    record = json.loads(result.output)[0]
    assert record["points"] == 7 and record["parts"][0]["instances"] >= 1000


def test_the_command_grades_a_folder_and_names_what_it_cannot_read(tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    write(folder / "a.toml", filled("2022", RIGHT))
    write(folder / "b.toml", filled("2021", WRONG, student="=HYPERLINK(1)"))
    write(folder / "c.toml", "[broken")
    out = tmp_path / "points.csv"
    result = CliRunner().invoke(command, [str(folder), "--output", str(out)])
    assert result.exit_code == 2
    assert "c.toml: not TOML" in result.stderr and "1 of 3" in result.stderr
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["points"] for row in rows] == ["7", "0", "0"]
    assert rows[0]["two"] == "right" and rows[1]["kqv"] == "wrong" and rows[0]["kqv"] == ""
    assert rows[1]["student"] == "'=HYPERLINK(1)"
    assert "not TOML" in rows[2]["error"]


def test_marks_do_not_overwrite_answers(tmp_path):
    answers = tmp_path / "answers.toml"
    write(answers, filled("2022", RIGHT))
    before = answers.read_bytes()
    for arguments in ([answers, "--output", answers], [tmp_path, "--output", answers]):
        result = CliRunner().invoke(command, [str(argument) for argument in arguments])
        assert isinstance(result.exception, WhenceError) and answers.read_bytes() == before


def test_the_command_writes_templates_and_rubrics(tmp_path):
    out = tmp_path / "answers.toml"
    assert CliRunner().invoke(command, ["--template", "2023", "--output", str(out)]).exit_code == 0
    assert tomllib.loads(out.read_text())["version"] == "2023"
    again = CliRunner().invoke(command, ["--template", "2023", "--output", str(out)])
    assert isinstance(again.exception, WhenceError)
    newest = CliRunner().invoke(command, ["--template"])
    assert tomllib.loads(newest.output)["version"] == "2026"
    unknown = CliRunner().invoke(command, ["--template", "2020"])
    assert isinstance(unknown.exception, WhenceError)
    rubric = CliRunner().invoke(command, ["--write-rubric"])
    assert tomllib.loads(rubric.output)["points"] == 1
    nothing = CliRunner().invoke(command, [])
    assert isinstance(nothing.exception, WhenceError)
    empty = CliRunner().invoke(command, [str(tmp_path / "void")])
    assert empty.exit_code == 2


def distinct(number):
    """A submission unlike all others, so that nothing can be remembered from one to the next."""
    table = [
        (part, [f"{1 + number / 7919:.9f} * ({text})" for text in texts]) for part, texts in RIGHT
    ]
    return filled(list(VERSIONS)[number % 6], table, student=str(number))


def test_processes_and_one_process_agree(tmp_path):
    paths = [write(tmp_path / f"{number:03}.toml", distinct(number)) for number in range(20)]
    alone = list(grade_files(paths, Rubric(), workers=1))
    together = list(grade_files(paths, Rubric(), workers=2))
    assert as_csv(alone) == as_csv(together)


@pytest.mark.slow
def test_a_thousand_submissions_within_a_minute(tmp_path):
    paths = [write(tmp_path / f"{number:04}.toml", distinct(number)) for number in range(1000)]
    start = time.perf_counter()
    graded = list(grade_files(paths, Rubric(), workers=2))
    assert time.perf_counter() - start < 60
    assert len(graded) == 1000 and not any(submission.error for submission in graded)


@pytest.mark.parametrize("table", ["[copy]\nq = 0x{}", "version = 0x{}"])
def test_a_number_without_end_does_not_stop_the_others(tmp_path, table):
    write(tmp_path / "a.toml", table.format("F" * 4000))
    write(tmp_path / "b.toml", filled("2022", RIGHT))
    result = CliRunner().invoke(command, [str(tmp_path), "--csv"])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert [row["points"] for row in csv.DictReader(io.StringIO(result.stdout))] == ["0", "7"]


def test_an_answer_cannot_write_on_the_terminal(tmp_path):
    write(tmp_path / "a.toml", '[copy]\nq = "\\u001b[2Jx\\ncopy: right  [1/1]"')
    result = CliRunner().invoke(command, [str(tmp_path / "a.toml")])
    assert "\x1b" not in result.output
    assert not any(line.startswith("copy: right") for line in result.output.splitlines())
    assert "\\x1b[2Jx\\ncopy: right" in result.output
