"""Recipes: what is written is what is read, and what is misspelt is refused by name."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.config import (
    Config,
    CorpusConfig,
    ModelConfig,
    StageConfig,
    StudyConfig,
    SystemConfig,
    TrainConfig,
)
from whence.errors import WhenceError
from whence.model import GPT
from whence.recipe import change, from_table, load_recipe, parse_value, renamed, to_table, to_toml

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
folders = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
positive = st.floats(1e-6, 1e6)
values = st.one_of(st.integers(-1000, 1000), st.booleans(), words, st.floats(-10, 10))

corpora = st.builds(
    CorpusConfig,
    name=words,
    people=st.none() | st.integers(1, 10**6),
    stated=st.none() | st.floats(0, 1),
    attributes=st.none() | st.lists(words, max_size=3).map(tuple),
)
models = st.builds(
    lambda heads, per_head, **rest: ModelConfig(heads=heads, width=heads * per_head, **rest),
    heads=st.integers(1, 8),
    per_head=st.integers(1, 16),
    layers=st.integers(1, 6),
    options=st.dictionaries(words, values, max_size=3),
    positions=st.sampled_from(["auto", "learned", "rope", "none"]),
    norm=st.sampled_from(["layer", "rms"]),
    dropout=st.floats(0, 0.9),
    bias=st.booleans(),
)
stages = st.builds(
    StageConfig,
    name=words,
    mixture=st.dictionaries(words, positive, min_size=1, max_size=3),
    steps=st.integers(1, 10**6),
    share=positive,
    schedule=st.sampled_from(["constant", "linear", "cosine", "cosine-rebound"]),
)
studies = st.builds(
    StudyConfig,
    title=words,
    baselines=st.lists(words, max_size=2).map(tuple),
    systems=st.lists(
        st.builds(
            SystemConfig, name=folders, label=words, set=st.dictionaries(words, values, max_size=3)
        ),
        max_size=3,
    ).map(tuple),
)
configs = st.builds(
    Config,
    seed=st.integers(-(2**63) + 1, 2**63 - 1),
    corpus=corpora,
    model=models,
    train=st.builds(TrainConfig, seconds=positive, evaluations=st.integers(0, 100)),
    stages=st.lists(stages, min_size=1, max_size=3, unique_by=lambda stage: stage.name).map(tuple),
    study=studies,
)


@given(configs)
def test_a_recipe_that_is_written_and_read_is_the_same(config: Config) -> None:
    assert from_table(tomllib.loads(to_toml(config))) == config
    assert change(config, {}) == config


def test_the_defaults_are_a_recipe_with_the_courses_model() -> None:
    config = from_table({"train": {"steps": 1}})
    assert config == Config(train=TrainConfig(steps=1))
    assert (config.model.layers, config.model.heads, config.model.width) == (4, 8, 256)
    assert config.model.dropout == 0.1 and config.model.context == 128


def sections() -> list[tuple[str, Any]]:
    return [
        ("corpus", CorpusConfig),
        ("model", ModelConfig),
        ("train", TrainConfig),
        ("study", StudyConfig),
    ]


@pytest.mark.parametrize(("section", "kind"), sections())
def test_a_misspelt_key_names_the_right_one(section: str, kind: Any) -> None:
    for item in dataclasses.fields(kind):
        if len(item.name) < 4:
            continue
        wrong = item.name[:-2] + item.name[-1]
        with pytest.raises(WhenceError, match="did you mean") as error:
            from_table({section: {wrong: 1}})
        assert f"unknown key '{section}.{wrong}'" in str(error.value)


@given(words)
def test_any_unknown_key_is_refused(key: str) -> None:
    if key in {item.name for item in dataclasses.fields(Config)}:
        return
    with pytest.raises(WhenceError, match="unknown key"):
        from_table({key: {}})


WRONG_VALUES = {
    int: ["a", 1.5, True, [], {}],
    float: ["a", False, []],
    str: [1, True, []],
    bool: [1, "true"],
}


@pytest.mark.parametrize(("section", "kind"), sections())
def test_a_value_of_a_wrong_type_is_refused_for_every_key(section: str, kind: Any) -> None:
    for name, hint in typing.get_type_hints(kind).items():
        inner = [h for h in typing.get_args(hint) if h is not type(None)]
        plain = hint if hint in WRONG_VALUES or typing.get_origin(hint) is tuple else inner[0]
        for value in WRONG_VALUES.get(plain, [object(), 3]):
            with pytest.raises(WhenceError, match=rf"{section}\.{name} must be"):
                from_table({section: {name: value}})


def test_another_corpus_keeps_what_it_has_in_common(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[corpus]\nname = "world"\npeople = 300\nfold = 1\n[train]\nsteps = 1\n')
    same = load_recipe(path, corpus="world").corpus
    assert same == CorpusConfig(people=300, fold=1)
    other = load_recipe(path, ["corpus.withhold=3"], corpus="course:x").corpus
    assert other == CorpusConfig(name="course:x", fold=1, withhold=3)
    assert renamed(same, "lahman") == CorpusConfig(name="lahman", fold=1)
    assert renamed(CorpusConfig(name="course:x", withhold=3), "course:y").withhold == 3


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 4\n[train]\nsteps = 1\n")
    assert load_recipe(path).seed == 4


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"model": {"heads": 3}}, "width = 256 is not a multiple of model.heads = 3"),
        ({"model": {"layers": 0}}, "model.layers must lie in 1..1,048,576, not 0"),
        ({"model": {"context": 10**9}}, "model.context must lie in 1..1,048,576, not 1000000000"),
        ({"model": {"dropout": 1.0}}, "model.dropout must lie in"),
        ({"model": {"dropout": -0.1}}, "model.dropout must lie in"),
        ({"model": {"norm": "batch"}}, "model.norm must be one of layer, rms; found 'batch'"),
        ({"model": {"attention": "rope", "positions": "learned"}}, "contradicts it"),
        ({"model": {"bottleneck": 129}}, "model.bottleneck must lie in 0..128"),
        ({"model": {"bottleneck": 8, "layers": 1}}, "at least two layers"),
        ({"model": {"bottleneck": 8, "layers": 2, "attention": "rope"}}, "would not run"),
        ({"model": 3}, "model: expected a table, found 3"),
        ({"train": {"seconds": float("nan")}}, "train.seconds must be a finite number"),
        ({"train": {"seconds": float("inf")}}, "train.seconds must be a finite number"),
        ({"train": {"seconds": 10**400}}, "train.seconds must be a finite number"),
        ({"train": {"steps": 2**64}}, "train.steps must be a number of at most 64 bits"),
        ({"train": {"steps": -1}}, "train.steps must not be negative"),
        ({"stages": []}, "at least one"),
        ({"stages": {"name": "a"}}, "stages must be a list"),
        ({"stages": [{"rate": "fast"}]}, "stages.0.rate must be a number, not 'fast'"),
        ({"stages": [{"rate": 0}]}, "rate must be above zero"),
        ({"stages": [{"beta2": 1.5}]}, "beta2 must lie in"),
        ({"stages": [{"floor": 2.0}]}, "floor must lie in"),
        ({"stages": [{"mixture": {}}]}, "mixture needs shares above zero"),
        ({"stages": [{"mixture": {"spans": 0.0}}]}, "mixture needs shares above zero"),
        ({"stages": [{"steps": 1}, {"steps": 2}]}, "two stages have one name"),
        ({"stages": [{"name": "a"}]}, "stage 'a' has no end"),
        ({"study": {"systems": [{"label": "x"}]}}, "study.systems.0: 'name' is missing"),
        ({"study": {"systems": [{"name": "../x"}]}}, "becomes a folder"),
        ({"study": {"systems": [{"name": "/etc"}]}}, "becomes a folder"),
        ({"study": {"systems": [{"name": ""}]}}, "becomes a folder"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(table: dict[str, Any], wanted: str) -> None:
    with pytest.raises(WhenceError) as error:
        from_table({"train": {"steps": 1}, **table} if "stages" not in table else table)
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.5", 3.5),
        ("6e-3", 6e-3),
        ("true", True),
        ("rope", "rope"),
        ('"a b"', "a b"),
        ("course:/x y/z", "course:/x y/z"),
        ("[1, 2]", [1, 2]),
        ("{spans = 1.0}", {"spans": 1.0}),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_values_on_the_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value


@given(words)
def test_any_text_is_some_value_and_never_a_crash(text: str) -> None:
    parse_value(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text('[[stages]]\nname = "one"\nsteps = 3\n[[stages]]\nname = "two"\nsteps = 4\n')
    return path


def test_changes_name_a_stage_by_number_or_name(path: Path) -> None:
    changes = ["stages.0.rate=0.5", "stages.two.steps=9", "model.attention=rope", "seed=7"]
    config = load_recipe(path, changes)
    assert config.stages[0].rate == 0.5 and config.stages[0].steps == 3
    assert config.stages[1].steps == 9
    assert config.model.attention == "rope" and config.seed == 7


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("model.widht=3", "unknown key 'model.widht': did you mean 'width'?"),
        ("modle.width=3", "unknown key 'modle': did you mean 'model'?"),
        ("stages.tow.rate=1", "no entry 'tow': did you mean 'two'?"),
        ("stages.7.rate=1", "no entry '7'"),
        ("stages.².rate=1", "no entry '²'"),
        ("stages.0=1", "names a whole list entry"),
        ("seed.x=1", "seed must be a whole number, not a table"),
        ("seed", "--set wants key=value"),
        ("=3", "--set wants key=value"),
        ("study.baselines.x.y=1", "study.baselines"),
        ("model.width=wide", "model.width must be a whole number, not 'wide'"),
    ],
)
def test_changes_that_cannot_be(path: Path, setting: str, wanted: str) -> None:
    with pytest.raises(WhenceError) as error:
        load_recipe(path, [setting])
    assert wanted in str(error.value) or "is a value, not a table" in str(error.value)


@given(st.lists(st.sampled_from(["model", "stages", "0", "x", "", "seed"]), min_size=1), words)
def test_any_change_is_taken_or_refused_and_never_a_crash(keys: list[str], value: str) -> None:
    config = Config(train=TrainConfig(steps=1))
    try:
        changed = change(config, {".".join(keys): value})
    except WhenceError as error:
        assert str(error)
    else:
        assert changed != config


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"seed = ", "recipe.toml: Invalid value (at end of document)"),
        (b"seed = '\xff'", "not UTF-8"),
        (b"seed = 1979-05-27", "seed must be a whole number"),
    ],
)
def test_a_broken_file_is_refused_with_its_path(path: Path, content: bytes, wanted: str) -> None:
    path.write_bytes(content)
    with pytest.raises(WhenceError) as error:
        load_recipe(path)
    assert wanted in str(error.value) and str(path) in str(error.value)


def test_a_missing_recipe_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WhenceError, match="No such file"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(WhenceError, match="Is a directory"):
        load_recipe(tmp_path)


def test_a_table_holds_no_nulls() -> None:
    assert "people" not in to_table(Config(train=TrainConfig(steps=1)))["corpus"]


RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_that_we_ship_can_be_read_and_built(path: Path) -> None:
    config = load_recipe(path)
    assert GPT(config.model, vocabulary=100).parameter_count() > 0
    assert load_recipe(path, ["train.seconds=1"]).train.seconds == 1
