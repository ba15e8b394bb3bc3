"""A page that is generated from the program: written, or compared with what stands there."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def keep(page: str, content: str) -> None:
    """Write docs/`page`; with --check exit with code 1 where it is out of date."""
    target = DOCS / page
    if sys.argv[1:] == ["--check"]:
        if not target.exists() or target.read_text(encoding="utf-8") != content:
            sys.exit(f"{target} is out of date: python {sys.argv[0]}")
    elif sys.argv[1:]:
        sys.exit(f"usage: python {sys.argv[0]} [--check]")
    else:
        target.write_text(content, encoding="utf-8")
