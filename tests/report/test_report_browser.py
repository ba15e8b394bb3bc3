"""The report in a real browser: it shows what the study holds and answers to the reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from study_example import example_study

from whence.report import page as page_module

pytestmark = pytest.mark.browser

Open = Callable[..., Any]


def rows(page: Any) -> int:
    return int(page.locator(".questions tbody tr").count())


def test_every_system_stands_in_the_table(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    for system in study["systems"]:
        row = page.locator(f".systems tbody tr:has-text('{system['label']}')")
        assert f"{system['accuracy']:.1f}" in row.inner_text().replace("\u00a0", " ")
        assert row.locator("svg.interval .whisker").count() == 3
    assert page.locator(".systems .baselines tr[data-system]").count() == 3
    assert page.locator(".systems .trained tr").count() == 3
    assert study["title"] in page.locator("h1").inner_text()


def test_the_table_sorts_within_its_groups(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    page.locator(".systems th button[data-key=accuracy]").click()
    shown = page.locator(".systems td.accuracy").all_inner_texts()
    figures = [float(text.split()[0]) for text in shown]
    assert figures[:3] == sorted(figures[:3], reverse=True)
    assert figures[3:] == sorted(figures[3:], reverse=True)
    assert page.locator(".systems th.accuracy").get_attribute("aria-sort") == "descending"


def test_the_curves_of_every_trained_system_are_drawn(
    open_report: Open, study: dict[str, Any]
) -> None:
    page = open_report(study)
    page.wait_for_selector("#learning svg path")
    drawn = page.evaluate(
        """() => [...new Set([...document.querySelectorAll(
             "#learning .chart g[aria-label=line][data-system]")].map(g => g.dataset.system))]"""
    )
    assert sorted(drawn) == ["3", "4", "5"]
    assert page.locator("#learning figure").count() == 3  # accuracy, two stages of loss
    captions = page.locator("#learning figcaption strong").all_inner_texts()
    assert captions == ["Accuracy during training.", "Loss, pretrain.", "Loss, finetune."]
    page.get_by_role("button", name="steps").click()
    assert page.locator("#learning svg >> text=steps").count() >= 1


def test_pointing_at_a_system_lights_its_curves(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    page.wait_for_selector("#learning svg path")
    page.hover(".systems tr[data-system='4'] .pin")
    assert page.locator("#report.highlighting").count() == 1
    lit = page.locator("#learning .chart .lit")
    assert lit.count() > 0
    assert set(lit.evaluate_all("nodes => nodes.map(n => n.dataset.system)")) == {"4"}
    faded = page.locator("#learning .chart g[data-system='5']").first
    assert float(faded.evaluate("node => getComputedStyle(node).opacity")) < 0.5
    page.hover("h1")
    assert page.locator("#report.highlighting").count() == 0


def test_a_pressed_system_stays_lit_until_escape(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    pin = page.locator(".systems tr[data-system='4'] .pin")
    pin.focus()
    page.keyboard.press("Enter")
    page.hover("h1")
    assert pin.get_attribute("aria-pressed") == "true"
    assert page.locator("#report.highlighting").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#report.highlighting").count() == 0


def test_search_and_filters_narrow_the_questions(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    answers = study["systems"][3]["answers"]
    count = page.locator(".count")
    assert count.inner_text() == "120 of 120 questions"

    page.fill("input[type=search]", answers[7]["name"].upper())
    assert count.inner_text() == "1 of 120 questions"
    assert answers[7]["name"] in page.locator(".questions tbody").inner_text()
    assert page.locator(".questions mark").count() >= 1
    page.fill("input[type=search]", "nobody is called so")
    assert "No question fits" in page.locator(".questions tbody").inner_text()
    page.fill("input[type=search]", "")

    for chip in page.locator(".chip[data-choice][aria-pressed=true]").all():
        if chip.get_attribute("data-choice") != "3":
            chip.click()
    wrong = sum(not answer["correct"] for answer in answers)
    page.get_by_role("button", name="wrong", exact=True).click()
    assert count.inner_text() == f"{wrong} of 120 questions"
    page.select_option(".knowledge-choice", "unstated")
    both = sum(not answer["correct"] and not answer["stated"] for answer in answers)
    assert count.inner_text() == f"{both} of 120 questions"


def test_questions_sort_by_probability(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    for chip in page.locator(".chip[data-choice][aria-pressed=true]").all():
        if chip.get_attribute("data-choice") != "3":
            chip.click()
    shown = []
    for _ in range(3):
        page.locator(".questions th button[data-key='3']").click()
        figures = page.locator(".questions .figure").all_inner_texts()
        shown.append([float(figure) for figure in figures])
    assert shown[0] == sorted(shown[0], reverse=True)
    assert shown[1] == sorted(shown[1])
    first = study["systems"][3]["answers"][0]["name"]
    assert first in page.locator(".questions tbody tr").first.inner_text()


def test_scrolling_brings_the_rest_of_the_questions(open_report: Open) -> None:
    page = open_report(example_study(trained=1, questions=400, points=5))
    assert rows(page) < 400
    page.locator(".scroller").evaluate("node => node.scrollTop = node.scrollHeight")
    page.wait_for_function(
        "() => document.querySelectorAll('.questions tbody tr').length > 100", timeout=3000
    )
    page.get_by_role("button", name="Show all rows").click()
    assert rows(page) == 400


def test_dark_and_light_follow_the_reader(open_report: Open, study: dict[str, Any]) -> None:
    def darkness(page: Any) -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    light = open_report(study, color_scheme="light")
    dark = open_report(study, color_scheme="dark")
    assert darkness(light) == "rgb(252, 251, 248)"
    assert darkness(dark) == "rgb(21, 23, 27)"
    for _ in range(2):
        light.click(".theme")
    assert darkness(light) == darkness(dark)


def test_the_command_and_the_recipe_can_be_copied(open_report: Open, study: dict[str, Any]) -> None:
    page = open_report(study)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name, text in (("Command", study["command"]), ("Recipe", study["recipe"])):
        block = page.locator(f".code:has(pre[aria-label={name}])").first
        block.get_by_role("button", name="Copy").click()
        block.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("() => navigator.clipboard.readText()") == text
    page.get_by_role("button", name="Copy the table as Markdown").click()
    table = page.evaluate("() => navigator.clipboard.readText()")
    assert len(table.splitlines()) == 2 + len(study["systems"])


def test_the_study_can_be_saved_from_its_report(
    open_report: Open, study: dict[str, Any], tmp_path: Path
) -> None:
    page = open_report(study)
    with page.expect_download() as download:
        page.get_by_role("button", name="save it").click()
    download.value.save_as(tmp_path / "saved.json")
    assert json.loads((tmp_path / "saved.json").read_text()) == study


def test_what_really_ran_is_told(open_report: Open, study: dict[str, Any]) -> None:
    study["systems"][4]["describe"]["attention"]["form"] = "a form of its own"
    page = open_report(study)
    details = page.locator("details[data-system='4']")
    details.locator("summary").click()
    assert "a form of its own" in details.inner_text()
    everything = page.locator("#repeat").inner_text()
    for told in (study["versions"]["torch"], study["machine"]["cpu"], str(study["seed"])):
        assert told in everything


def test_hostile_text_is_shown_as_text(open_report: Open, study: dict[str, Any]) -> None:
    attack = "</script><img src=x onerror=\"document.title='taken'\"><!--<script>"
    study["title"] = attack
    for system in study["systems"]:
        system["label"] = system["name"] = attack
        system["describe"] = {attack: attack}
        system["answers"][0].update(question=attack, answer=attack, name=attack)
    study["corpus"]["name"] = study["command"] = study["recipe"] = attack
    page = open_report(study)
    assert page.locator("h1").inner_text() == attack
    assert attack in page.locator(".questions tbody").inner_text()
    assert page.locator("img").count() == 0
    assert page.title() == f"{attack} · Whence"


def test_the_policy_lets_no_other_script_run_and_nothing_out(
    open_report: Open, study: dict[str, Any]
) -> None:
    page = open_report(study)
    taken = page.evaluate(
        """async () => {
             const script = document.createElement("script");
             script.textContent = "window.taken = true";
             document.body.append(script);
             const went = await fetch("https://example.org/").then(() => true, () => false);
             return [window.taken === true, went];
           }"""
    )
    assert taken == [False, False]
    assert page.complaints  # the browser said so; that was wanted here
    page.complaints.clear()


@pytest.mark.parametrize(
    "shape",
    [
        {"trained": 1, "baselines": 0},
        {"trained": 0, "baselines": 1},
        {"trained": 2, "points": 0},
        {"trained": 1, "points": 1, "questions": 1},
        {"trained": 1, "questions": 0},
    ],
    ids=["one run", "baselines only", "no curves", "one of each", "no questions"],
)
def test_small_and_empty_studies_are_drawn(open_report: Open, shape: dict[str, int]) -> None:
    page = open_report(example_study(**{"questions": 30, **shape}))
    page.wait_for_timeout(200)
    text = page.locator("main").inner_text()
    assert "NaN" not in text
    assert "undefined" not in text
    assert "Infinity" not in text
    if shape.get("points") == 0:
        assert "No accuracy was measured during training." in text
        assert "No loss was logged." in text


def test_a_run_without_marks_is_drawn(open_report: Open) -> None:
    study = example_study(trained=1, baselines=0, questions=20)
    study["systems"][0].update(
        accuracy=None, interval=None, correct=None, total=None, seconds=None, describe=None
    )
    for answer in study["systems"][0]["answers"]:
        answer.update(expected=None, correct=None, probability=None, stated=None, seen=None)
    study["systems"][0]["answers"][0]["answer"] = ""
    study["systems"][0]["loss"][0]["loss"] = None
    page = open_report(study)
    text = page.locator("main").inner_text()
    assert "No system of this study was evaluated yet." in text
    assert "(empty)" in text
    assert "NaN" not in text
    assert "null" not in text


def test_twelve_systems_with_a_thousand_answers_load_quickly(open_report: Open) -> None:
    """Counted in the page's own processor seconds: others' work on the machine is not its fault."""
    page = open_report(example_study(trained=12, questions=1000, points=400))
    page.wait_for_selector("#learning svg path")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "ProcessTime"))

    loaded = spent()
    assert 0.1 < loaded < 5
    page.fill("input[type=search]", "ana")
    assert page.locator(".questions mark").count() > 0
    assert spent() - loaded < 1


def test_a_narrow_window_needs_no_sideways_scrolling(
    open_report: Open, study: dict[str, Any]
) -> None:
    page = open_report(study, viewport={"width": 360, "height": 740})
    page.wait_for_selector("#learning svg path")
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 360


def test_the_modules_work_unjoined_as_a_live_page_will_load_them(
    browser: Any, study: dict[str, Any]
) -> None:
    """The same files served one by one: an import that names nothing fails here."""
    folder = resources.files("whence.report")
    shell = (
        '<!doctype html><div id="report"></div>'
        f'<script type="application/json" id="study">{page_module.inline(study)}</script>'
        '<script src="vendor/d3.min.js"></script><script src="vendor/plot.umd.min.js"></script>'
        '<script type="module" src="report.js"></script>'
    )
    page = browser.new_page()
    errors: list[str] = []

    def serve(route: Any) -> None:
        name = route.request.url.removeprefix("http://whence.test/")
        if name == "":
            route.fulfill(body=shell, content_type="text/html")
        elif name == "favicon.ico":
            route.fulfill(status=204)
        else:
            text = folder.joinpath(name).read_text(encoding="utf-8")
            route.fulfill(body=text, content_type="text/javascript")

    page.route("**/*", serve)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("http://whence.test/")
    page.wait_for_selector("main", timeout=5000)
    assert errors == []
    page.close()
