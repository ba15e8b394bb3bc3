"""A mark of what a recorded result was made by, so that an old one is noticed without a new run.

It covers the words of the claim, the module of its check, the modules of the lab that this one
imports, and the recipe if models are trained: what a reader would have to look at. The training
code itself is not in it: a faster loop does not make a result of the old one wrong.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.resources import files

from whence.lab.claim import Claim

# How a result is judged, drawn and written is not what it was made by.
_APART = {"whence.lab.claim", "whence.lab.svg"}
_RECIPES = {"whence.lab.claims.runs": "knowledge.toml"}


def fingerprint(claim: Claim) -> str:
    """Eight hexadecimal digits, the same on every machine and Python."""
    texts = [claim.id, claim.statement, *(_source(name) for name in _rests_on(claim))]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


def _rests_on(claim: Claim) -> list[str]:
    """The check's module and all modules of the lab that it imports, directly or not."""
    waiting, found = [claim.run.__module__], set[str]()
    while waiting:
        name = waiting.pop()
        if name in found or name in _APART or not name.startswith("whence.lab."):
            continue
        found.add(name)
        waiting += _imports(name)
    return sorted(found)


@cache
def _imports(name: str) -> list[str]:
    tree = ast.parse(_text(name))
    return [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    ]


@cache
def _source(name: str) -> str:
    """The code without its layout, comment lines and imports, and the recipe beside it.

    An import says where something stands. What of the lab it brings is covered as a module.
    """
    imported = {
        number
        for node in ast.walk(ast.parse(_text(name)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [
        line
        for number, line in enumerate(_text(name).splitlines(), 1)
        if number not in imported and not line.lstrip().startswith("#")
    ]
    if name in _RECIPES:
        recipe = files("whence.lab.claims").joinpath(_RECIPES[name]).read_text(encoding="utf-8")
        lines += [line for line in recipe.splitlines() if not line.startswith("#")]
    return "".join("".join(lines).split())


def _text(name: str) -> str:
    package, _, module = name.rpartition(".")
    return files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
