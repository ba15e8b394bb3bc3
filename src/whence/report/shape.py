"""The shape that a study must have before it becomes a page: a hole is named, never drawn over."""

from __future__ import annotations

from typing import Any

from whence.errors import WhenceError

FORMAT = "whence-study/1"

Kinds = tuple[type, ...]

TEXT: Kinds = (str,)
NUMBER: Kinds = (int, float)
WHOLE: Kinds = (int,)
TABLE: Kinds = (dict,)
LIST: Kinds = (list,)
NOTHING: Kinds = (type(None),)
TRUTH: Kinds = (bool,)

STUDY: dict[str, Kinds] = {
    "title": TEXT,
    "command": TEXT,
    "recipe": TEXT,
    "seed": WHOLE,
    "started": TEXT,
    "seconds": NUMBER,
    "machine": TABLE,
    "versions": TABLE,
    "corpus": TABLE,
    "split": TEXT,
    "systems": LIST,
}

# A run that was never evaluated has no accuracy yet; a baseline has nothing to train.
SYSTEM: dict[str, Kinds] = {
    "name": TEXT,
    "label": TEXT,
    "kind": TEXT,
    "attention": TEXT + NOTHING,
    "pretrained": TRUTH + NOTHING,
    "parameters": WHOLE + NOTHING,
    "correct": WHOLE + NOTHING,
    "total": WHOLE + NOTHING,
    "accuracy": NUMBER + NOTHING,
    "interval": LIST + NOTHING,
    "seconds": NUMBER + NOTHING,
    "characters": WHOLE + NOTHING,
    "characters_per_second": NUMBER + NOTHING,
    "run": TEXT + NOTHING,
    "config": TEXT + NOTHING,
    "describe": TABLE + NOTHING,
    "curve": LIST,
    "loss": LIST,
    "answers": LIST,
}

POINT: dict[str, Kinds] = {"step": WHOLE, "seconds": NUMBER, "stage": TEXT}
CURVE = POINT | {"accuracy": NUMBER + NOTHING}
LOSS = POINT | {"loss": NUMBER + NOTHING}

# A file without answers gives questions that nobody can mark: expected and correct are null.
ANSWER: dict[str, Kinds] = {
    "question": TEXT,
    "name": TEXT,
    "expected": TEXT + NOTHING,
    "answer": TEXT,
    "correct": TRUTH + NOTHING,
    "probability": NUMBER + NOTHING,
    "stated": TRUTH + NOTHING,
    "seen": TRUTH + NOTHING,
}

NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    type(None): "null",
}


def check(study: Any) -> None:
    """Refuse what is not a study of the format that this version draws, naming the first hole."""
    if not isinstance(study, dict):
        raise WhenceError(f"a study must be a JSON object, not {_kind_of(study)}")
    given = study.get("format")
    if given != FORMAT:
        raise WhenceError(
            f'the study has no "format"; expected "{FORMAT}"'
            if given is None
            else f"the study's format is {given!r}; this version of Whence draws {FORMAT!r}"
        )
    _check_table(study, STUDY, "the study")
    _check_table(study["corpus"], {"name": TEXT}, "the study's corpus")
    if not study["systems"]:
        raise WhenceError("the study has no systems: there is nothing to report")
    for index, system in enumerate(study["systems"]):
        _check_system(system, f"systems[{index}]")


def _check_system(system: Any, where: str) -> None:
    _check_table(system, SYSTEM, where)
    if system["kind"] not in ("baseline", "trained"):
        raise WhenceError(
            f'{where}.kind must be "baseline" or "trained", not {str(system["kind"])!r}'
        )
    interval = system["interval"]
    if interval is not None and not (
        len(interval) == 2 and all(_is_one_of(end, NUMBER) for end in interval)
    ):
        raise WhenceError(f"{where}.interval must be two numbers, [low, high]")
    for key, keys in (("curve", CURVE), ("loss", LOSS), ("answers", ANSWER)):
        for index, entry in enumerate(system[key]):
            _check_table(entry, keys, f"{where}.{key}[{index}]")


def _check_table(table: Any, keys: dict[str, Kinds], where: str) -> None:
    if not isinstance(table, dict):
        raise WhenceError(f"{where} must be an object, not {_kind_of(table)}")
    for key, kinds in keys.items():
        if key not in table:
            raise WhenceError(f'{where} has no "{key}"')
        if not _is_one_of(table[key], kinds):
            expected = " or ".join(
                NAMES[kind] for kind in kinds if kind is not int or len(kinds) < 3
            )
            raise WhenceError(f'"{key}" of {where} must be {expected}, not {_kind_of(table[key])}')


def _is_one_of(value: Any, kinds: Kinds) -> bool:
    # In Python True is an int; in a study it is a mistake to give it for a number.
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds)


def _kind_of(value: Any) -> str:
    for kind, name in NAMES.items():
        if type(value) is kind:
            return name
    return type(value).__name__
