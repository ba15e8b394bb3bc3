"""A real Chromium for the tests of pages: every request that leaves the file is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from study_example import example_study

from whence.report import write_report

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def study() -> dict[str, Any]:
    return example_study(trained=3, questions=120)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        sentence = "NO CHROMIUM: the report was not opened in a browser (apt install chromium)"
        if os.environ.get("WHENCE_REQUIRE_BROWSER") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Render a study, open the file; at the end nothing may have been fetched or complained."""
    complaints: list[str] = []
    pages = []

    def open_page(study: dict[str, Any], **options: Any) -> Any:
        path = write_report(study, tmp_path / f"report-{len(pages)}.html")
        page = browser.new_page(reduced_motion="reduce", **options)
        pages.append(page)

        def judge(route: Any) -> None:
            address = route.request.url
            if address.split("#")[0] == path.as_uri() or address.startswith("data:"):
                route.continue_()
            else:
                complaints.append(f"request to {address}")
                route.abort()

        page.route("**/*", judge)
        page.on(
            "console",
            lambda message: (
                complaints.append(f"console: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.goto(path.as_uri())
        page.wait_for_selector("main", timeout=5000)
        page.complaints = complaints
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
