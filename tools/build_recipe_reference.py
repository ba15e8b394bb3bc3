"""docs/recipes.md from the fields of a recipe and the comments beside them in config.py.

python tools/build_recipe_reference.py           write docs/recipes.md
python tools/build_recipe_reference.py --check   exit code 1 where it is out of date
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import tokenize
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal

from reference import keep
from whence import config
from whence.objective import OBJECTIVES

TABLES: dict[str, type] = {
    "[corpus]": config.CorpusConfig,
    "[model]": config.ModelConfig,
    "[train]": config.TrainConfig,
    "[[stages]]": config.StageConfig,
    "[study]": config.StudyConfig,
    "[[study.systems]]": config.SystemConfig,
}
KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
HEAD = """\
# Recipes: every key

Generated from `src/whence/config.py` by `tools/build_recipe_reference.py`; a test keeps it in step.

A recipe is a TOML file (`recipes/` has some). All keys may be left out but a bound on the \
training: `epochs` or `steps` of each stage, `train.seconds` or `train.steps`. A key that does not \
exist, or a value of the wrong kind, is refused by name. `config.toml` of a run is a recipe as well.

`--set KEY=VALUE` changes a key for one call; VALUE is TOML, or bare text:
```
whence train recipes/quick.toml --set model.attention=bigbird --set 'model.options={window=2}'
whence train recipes/quick.toml --set stages.train.rate=1e-3   # or by number: stages.0.rate
whence train recipes/quick.toml --set corpus.withhold=30 --set seed=1
```
`--corpus NAME` takes another corpus; the recipe's options of `[corpus]` stay if it is of the same \
kind and are dropped, `fold` aside, if it is of another.

A study (`whence study`) trains one system for each `[[study.systems]]`, all from this one recipe; \
`set` holds dotted keys as above. `whence train` takes no notice of `[study]`.

Besides the tables there is `seed` (0): of everything that is drawn in training. \
[world.md](world.md) has the corpora and their defaults, [attention.md](attention.md) the \
mechanisms and their options, [knowledge.md](knowledge.md) what each ingredient is worth.
"""
OBJECTIVES_HEAD = """\
## Objectives: what `mixture` may name
A share is that of the examples, relative to the other shares.

| name | |
|---|---|
"""


def page() -> str:
    parts = [HEAD, *(section(title, kind) for title, kind in TABLES.items()), objectives()]
    return "\n".join(parts)


def section(title: str, kind: type) -> str:
    comments = comments_of(kind)
    hints = typing.get_type_hints(kind)
    lines = [f"## `{title}`", " ".join(str(inspect.getdoc(kind)).split()), ""]
    lines += ["| key | default | kind | |", "|---|---|---|---|"]
    for item in dataclasses.fields(kind):
        row = [f"`{item.name}`", default(item), described(hints[item.name]), comments[item.name]]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def objectives() -> str:
    rows = [
        f"| `{name}` | {str(inspect.getdoc(kind)).splitlines()[0]} |"
        for name, kind in OBJECTIVES.items()
    ]
    return OBJECTIVES_HEAD + "\n".join(rows) + "\n"


def comments_of(kind: type) -> dict[str, str]:
    """The comment of each field: behind it, or alone on the lines right above it."""
    source = inspect.getsource(kind)
    behind, alone = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            place = alone if token.line.lstrip().startswith("#") else behind
            place[token.start[0]] = token.string.lstrip("# ")
    found = {}
    for name, first, last in places(source):
        said = [behind[last]] if last in behind else above(first, alone)
        if not said:
            raise SystemExit(f"{kind.__name__}.{name} has no comment")
        found[name] = " ".join(said)
    return found


def above(line: int, alone: dict[int, str]) -> list[str]:
    first = line
    while first - 1 in alone:
        first -= 1
    return [alone[number] for number in range(first, line)]


def places(source: str) -> Iterator[tuple[str, int, int]]:
    """The fields of a class: name, first and last line."""
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno, node.end_lineno or node.lineno


def default(item: dataclasses.Field[Any]) -> str:
    if item.default_factory is not dataclasses.MISSING:
        value = item.default_factory()
    elif item.default is dataclasses.MISSING:
        return "needed"
    else:
        value = item.default
    if value is None:
        return ""
    if isinstance(value, dict):
        return f"`{{{', '.join(f' {key} = {entry} ' for key, entry in value.items())}}}`"
    return f"`{json.dumps(value)}`"  # of such values JSON and TOML agree


def described(hint: Any) -> str:
    parts = [part for part in typing.get_args(hint) if part is not NoneType]
    origin = typing.get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is UnionType:
        return described(parts[0])
    if origin is tuple:
        return "list of tables" if dataclasses.is_dataclass(parts[0]) else "list"
    return "table" if origin is dict else KINDS[hint]


if __name__ == "__main__":
    keep("recipes.md", page())
