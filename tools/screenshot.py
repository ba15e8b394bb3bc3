"""Take a picture of a report for the README: `tools/screenshot.py PATH.html OUT.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the HTML file")
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in CSS pixels")
    parser.add_argument("--height", type=int, help="cut here (default: the whole page)")
    parser.add_argument("--dark", action="store_true", help="as a reader with a dark theme sees it")
    parser.add_argument("--scale", type=float, default=1.0, help="pixels per CSS pixel")
    parser.add_argument("--only", metavar="SELECTOR", help="only this element, such as '#learning'")
    parser.add_argument("--point", metavar="SELECTOR", help="point at this element first")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="the Chromium to drive")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.browser, args=ARGUMENTS)
        page = browser.new_page(
            viewport={"width": given.width, "height": given.height or 900},
            color_scheme="dark" if given.dark else "light",
            device_scale_factor=given.scale,
            reduced_motion="reduce",
        )
        page.goto(given.page.resolve().as_uri())
        page.wait_for_selector("main")
        page.wait_for_timeout(300)  # charts are drawn once their width is known
        if given.point:
            page.hover(given.point)
            page.wait_for_timeout(200)
        if given.only:
            page.add_style_tag(content="nav { position: static !important; }")
            page.locator(given.only).first.screenshot(path=given.picture)
        else:
            page.screenshot(path=given.picture, full_page=given.height is None)
        browser.close()


if __name__ == "__main__":
    main()
