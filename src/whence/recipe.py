"""TOML <-> Config: a recipe. What is misspelt or of a wrong type is refused."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

from whence.config import Config, CorpusConfig
from whence.errors import WhenceError

T = TypeVar("T")


def load_recipe(path: Path, changes: Sequence[str] = (), corpus: str | None = None) -> Config:
    """Read a TOML recipe, for another corpus if one is named, and apply `key=value` changes."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a BOM
    except OSError as error:
        raise WhenceError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WhenceError(f"{path}: not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise WhenceError(f"{path}: {error}") from error
    except RecursionError:
        raise WhenceError(f"{path}: tables or lists stand too deep in each other") from None
    if corpus is not None and isinstance(table.setdefault("corpus", {}), dict):
        table["corpus"] = _renamed(table["corpus"], corpus)
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator or not key.strip():
            raise WhenceError(f"--set wants key=value, not {change!r}")
        set_value(table, key.strip(), parse_value(text.strip()))
    try:
        return from_table(table)
    except WhenceError as error:
        raise WhenceError(f"{path}: {error}") from error


def renamed(config: CorpusConfig, name: str) -> CorpusConfig:
    """The same for another corpus: its options stay if it is of the same kind."""
    return _build(CorpusConfig, _renamed(to_table(config), name), "corpus")


def _renamed(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options of one kind of corpus mean nothing to another; all kinds have folds."""
    before = str(options.get("name", CorpusConfig.name))
    same = before.partition(":")[0] == name.partition(":")[0]
    return {key: value for key, value in options.items() if same or key == "fold"} | {"name": name}


def from_table(table: Mapping[str, Any]) -> Config:
    return _build(Config, table, "")


def to_table(config: Any) -> dict[str, Any]:
    """All fields but those that are None: TOML has no null."""
    result: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if value is not None:
            result[item.name] = _plain(value)
    return result


def to_toml(config: Config) -> str:
    return tomli_w.dumps(to_table(config))


def change(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of the recipe with dotted keys replaced, checked like a file."""
    table = to_table(config)
    for key, value in changes.items():
        set_value(table, key, value)
    return from_table(table)


def set_value(table: dict[str, Any], key: str, value: Any) -> None:
    """`stages.0.rate` and `stages.pretrain.rate` both name a field of the first stage."""
    *path, last = key.split(".")
    place: Any = table
    for name in path:
        if isinstance(place, list):
            place = _element(place, name, key)
        else:
            place = place.setdefault(name, {})
        if not isinstance(place, dict | list):
            raise WhenceError(f"{key}: {name} is a value, not a table")
    if isinstance(place, list):
        raise WhenceError(f"{key}: names a whole list entry; add the field to set")
    place[last] = value


def _element(entries: list[Any], name: str, key: str) -> Any:
    if name.isdecimal() and int(name) < len(entries):
        return entries[int(name)]
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    known = [
        str(entry.get("name", i)) if isinstance(entry, dict) else str(i)
        for i, entry in enumerate(entries)
    ]
    raise WhenceError(f"{key}: no entry {name!r}{_nearest(name, known)}")


def parse_value(text: str) -> Any:
    """A TOML value; bare words are taken as text, so `--set model.attention=rope` works."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _build(kind: type[T], table: Any, where: str) -> T:
    if not isinstance(table, Mapping):
        raise WhenceError(f"{where or 'a recipe'}: expected a table, found {_show(table)}")
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            raise WhenceError(f"unknown key {path!r}{_nearest(key, list(hints))}")
        values[key] = _convert(hints[key], value, path)
    for item in fields(kind):  # type: ignore[arg-type]
        needed = item.default is dataclasses.MISSING and (
            item.default_factory is dataclasses.MISSING
        )
        if needed and item.name not in values:
            raise WhenceError(f"{where}: {item.name!r} is missing")
    return kind(**values)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType or origin is typing.Union:
        return _convert(next(a for a in typing.get_args(hint) if a is not type(None)), value, path)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed or isinstance(value, bool):
            listed = ", ".join(map(str, allowed))
            raise WhenceError(f"{path} must be one of {listed}; found {_show(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise WhenceError(f"{path} must be a list, not {_show(value)}")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, entry, f"{path}.{i}") for i, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise WhenceError(f"{path} must be a table, not {_show(value)}")
        inner = typing.get_args(hint)[1]
        return {key: _convert(inner, entry, f"{path}.{key}") for key, entry in value.items()}
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise WhenceError(f"{path} must be {_name(hint)}, not {_show(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise WhenceError(f"{path} must be a finite number, not {value}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise WhenceError(f"{path} must be a number of at most 64 bits, not {value}")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_table(value)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]


def _show(value: Any) -> str:
    return "a table" if isinstance(value, Mapping) else repr(value)
