"""A study's JSON becomes one HTML file: scripts, styles and data inside, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from whence import __version__
from whence.errors import WhenceError
from whence.files import write_text
from whence.report.shape import check

# In the order in which they stand in the one module script: later files use earlier ones.
PROGRAM = ("charts.js", "interaction.js", "tables.js", "questions.js", "report.js")

IMPORT = re.compile(r'^import\s[^;]*?from\s+"\./[a-z]+\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)

# A circle in the colour of the first series; a page without an icon asks its server for one.
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Ccircle cx='8' cy='8' r='5' fill='none' stroke='%230072b2' stroke-width='3'/%3E%3C/svg%3E"
)


def render(study: Mapping[str, Any]) -> str:
    """The whole report as one HTML page; only the study's JSON goes into it."""
    check(study)
    scripts = {"d3": _asset("vendor/d3.min.js"), "plot": _asset("vendor/plot.umd.min.js")}
    scripts["program"] = program()
    parts = {
        **scripts,
        "policy": policy(*scripts.values()),
        "version": html.escape(__version__),
        "title": html.escape(_printable(f"{study['title']} · Whence")),
        "icon": ICON,
        "style": _asset("report.css"),
        "plain": _plain_table(study),
        "study": inline(study),
    }
    # One pass over the template: what is put in is never searched for further placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("template.html"))


def write_report(study: Mapping[str, Any], path: Path) -> Path:
    """Render the study to `path` (a folder: to its report.html), whole or not at all."""
    page = render(study)
    target = path / "report.html" if path.is_dir() else path
    write_text(target, page)
    return target


def from_path(path: Path) -> dict[str, Any]:
    """Load a study from its folder or from the JSON file itself."""
    file = path / "study.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        wanted = "a study folder holds study.json" if path.is_dir() else "there is no such file"
        raise WhenceError(f"{file}: {wanted}") from None
    except UnicodeDecodeError as error:
        raise WhenceError(f"{file}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise WhenceError(f"{file}: {error.strerror}") from None
    try:
        study = json.loads(text)
    except json.JSONDecodeError as error:
        raise WhenceError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise WhenceError(f"{file}: not a study: nested too deeply") from None
    try:
        check(study)
    except WhenceError as error:
        raise WhenceError(f"{file}: {error}") from None
    loaded: dict[str, Any] = study
    return loaded


def inline(value: Any) -> str:
    """JSON that can stand inside a script element whatever strings are in it.

    Only ASCII leaves here, so U+2028 and lone surrogates are escapes already; the three
    characters that HTML reads inside a script (`</script>`, `<!--`, `]]>`) become escapes too.
    """
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(*scripts: str) -> str:
    """The content security policy: exactly these scripts run, and nothing is loaded from anywhere.

    Styles stay open because Plot writes a style element with a name of its own into each chart.
    """
    hashes = " ".join(
        "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def program() -> str:
    """The page's modules joined into one: an inlined module has no neighbour to import from."""
    joined = "\n".join(EXPORT.sub("", IMPORT.sub("", _asset(name))) for name in PROGRAM)
    if re.search(r"</script|<!--", joined, re.IGNORECASE):
        raise ValueError("a script of the report would end its own element")
    return joined


@cache
def _asset(name: str) -> str:
    return resources.files("whence.report").joinpath(name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity; a loss that went there is a gap in its curve."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _printable(text: str) -> str:
    """Text without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _plain_table(study: Mapping[str, Any]) -> str:
    """The results for a reader whose browser runs no scripts."""
    rows = "".join(
        f"<tr><td>{html.escape(_printable(system['label']))}</td>"
        f"<td>{'–' if system['accuracy'] is None else format(system['accuracy'], '.1f')}</td></tr>"
        for system in study["systems"]
    )
    return f"<table><tr><th>system</th><th>accuracy (%)</th></tr>{rows}</table>"
