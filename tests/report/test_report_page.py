"""The report without a browser: what goes into the file, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_example import example_study

from whence.errors import WhenceError
from whence.report import from_path, render, write_report
from whence.report import page as page_module
from whence.report.shape import ANSWER, CURVE, LOSS, STUDY, SYSTEM

HOSTILE = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=())),  # surrogates and controls as well
    st.sampled_from(
        [
            "</script><script>alert(1)</script>",
            "</SCRIPT\n>",
            "<!--<script>",
            "-->",
            "]]>",
            "{{study}} {{program}}",
            "\u2028\u2029",
            "\ud800",
            "\x00",
            "&lt;/script&gt;",
            '" onload="x',
            "\\u003c/script\\u003e",
        ]
    ),
)


class Page(HTMLParser):
    """The scripts and the title of a page, as a browser cuts them out."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self._open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._open == "title":
            self.title += data


def inlined(text: str) -> Any:
    scripts = Page(text).scripts
    assert [attributes.get("type") for attributes, _ in scripts] == [
        "application/json",
        None,
        None,
        "module",
    ]
    return json.loads(scripts[0][1])


@given(question=HOSTILE, answer=HOSTILE, title=HOSTILE)
@settings(max_examples=60, deadline=None)
def test_any_text_goes_into_the_page_and_comes_out_unchanged(
    question: str, answer: str, title: str
) -> None:
    study = example_study(trained=1, baselines=0, questions=1, points=2)
    study["title"] = title
    study["systems"][0]["label"] = title
    study["systems"][0]["answers"][0].update(question=question, answer=answer)
    text = render(study)
    assert inlined(text) == study
    text.encode("utf-8")


@given(HOSTILE)
def test_inlined_json_holds_no_character_that_html_reads(text: str) -> None:
    inside = page_module.inline({text: [text]})
    assert not set("<>&\u2028\u2029") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == {text: [text]}


def test_a_loss_that_is_no_number_becomes_a_gap(study: dict[str, Any]) -> None:
    study["systems"][-1]["loss"][3]["loss"] = math.nan
    study["systems"][-1]["loss"][4]["loss"] = math.inf
    loss = inlined(render(study))["systems"][-1]["loss"]
    assert [point["loss"] for point in loss[3:5]] == [None, None]


def test_only_the_scripts_of_the_page_may_run(study: dict[str, Any]) -> None:
    page = Page(render(study))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    script_source = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in script_source
    assert policy == page_module.policy(*(text for _, text in page.scripts[1:]))


def test_nothing_in_the_page_is_an_address_to_fetch(study: dict[str, Any]) -> None:
    for tag, attributes in Page(render(study)).tags:
        assert "src" not in attributes, tag
        if "href" in attributes:
            assert (attributes["href"] or "").startswith("data:"), tag


def test_our_scripts_make_no_markup_from_text() -> None:
    program = page_module.program()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in program
    assert not re.search(r"^(import|export)\b", program, re.MULTILINE)


def test_what_our_modules_import_is_exported() -> None:
    folder = resources.files("whence.report")
    sources = {name: folder.joinpath(name).read_text() for name in page_module.PROGRAM}
    for name, source in sources.items():
        for names, other in re.findall(r'import \{([^}]*)\} from "\./([a-z]+\.js)";', source):
            exported = set(re.findall(r"^export (?:function|const) (\w+)", sources[other], re.M))
            wanted = {word.strip() for word in names.split(",") if word.strip()}
            assert wanted <= exported, (name, wanted - exported)


def test_the_vendored_scripts_are_those_of_the_registry() -> None:
    folder = resources.files("whence.report").joinpath("vendor")
    entries = json.loads(folder.joinpath("VENDOR.json").read_text())
    assert {entry["name"] for entry in entries} == {"d3", "@observablehq/plot"}
    for entry in entries:
        content = folder.joinpath(entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert entry["version"].encode() in content[:100]
        assert "Permission to use" in folder.joinpath(entry["licence_file"]).read_text()
    scripts = {file.name for file in folder.iterdir() if file.name.endswith(".js")}
    assert scripts == {entry["file"] for entry in entries}


@pytest.mark.parametrize("key", ["format", *STUDY])
def test_a_study_without_a_key_is_refused_by_its_name(study: dict[str, Any], key: str) -> None:
    del study[key]
    with pytest.raises(WhenceError, match=f'has no "{key}"'):
        render(study)


@pytest.mark.parametrize("key", SYSTEM)
def test_a_system_without_a_key_is_refused_by_its_name(study: dict[str, Any], key: str) -> None:
    del study["systems"][1][key]
    with pytest.raises(WhenceError, match=rf'systems\[1\] has no "{key}"'):
        render(study)


@pytest.mark.parametrize(("where", "keys"), [("answers", ANSWER), ("curve", CURVE), ("loss", LOSS)])
def test_an_entry_without_a_key_is_refused_by_its_place(
    study: dict[str, Any], where: str, keys: dict[str, Any]
) -> None:
    for key in keys:
        entry = study["systems"][-1][where][2]
        value = entry.pop(key)
        with pytest.raises(WhenceError, match=rf'{where}\[2\] has no "{key}"'):
            render(study)
        entry[key] = value
    render(study)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "whence-study/9"}, "'whence-study/9'; this version of Whence draws"),
        ({"systems": []}, "no systems"),
        ({"systems": {}}, '"systems" of the study must be a list, not an object'),
        (
            {"seconds": "long"},
            '"seconds" of the study must be a whole number or a number, not text',
        ),
        ({"seed": True}, '"seed" of the study must be a whole number, not true or false'),
        ({"corpus": {}}, 'the study\'s corpus has no "name"'),
    ],
)
def test_a_study_of_another_shape_is_refused(
    study: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(WhenceError, match=re.escape(sentence)):
        render({**study, **change})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "other"}, 'systems[0].kind must be "baseline" or "trained"'),
        ({"interval": [1.0]}, "systems[0].interval must be two numbers"),
        ({"accuracy": "high"}, '"accuracy" of systems[0] must be a number or null, not text'),
    ],
)
def test_a_system_of_another_shape_is_refused(
    study: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    study["systems"][0].update(change)
    with pytest.raises(WhenceError, match=re.escape(sentence)):
        render(study)


def test_a_study_is_found_in_its_folder_or_as_a_file(study: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps(study))
    assert from_path(tmp_path) == from_path(file) == study


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "study.json: a study folder holds study.json"),
        (b'{"format":\n oops}', "study.json:2: not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[]", "study.json: a study must be a JSON object, not a list"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_study_is_refused(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(WhenceError, match=re.escape(sentence)):
        from_path(tmp_path)


def test_a_report_is_written_whole_or_not_at_all(study: dict[str, Any], tmp_path: Path) -> None:
    assert write_report(study, tmp_path) == tmp_path / "report.html"
    before = (tmp_path / "report.html").read_bytes()
    del study["systems"]
    with pytest.raises(WhenceError):
        write_report(study, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == before


def test_the_same_study_gives_the_same_page(study: dict[str, Any]) -> None:
    assert render(study) == render(json.loads(json.dumps(study)))


def test_the_report_needs_no_torch() -> None:
    code = "import sys, whence.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
