"""docs/attention.md: its pictures exist, are drawn again byte for byte, and its tables have a
command."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from whence.attention import MECHANISMS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "attention.md"
PICTURES = ROOT / "docs" / "figures" / "attention"


def load(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script or the package of a benchmark, without leaving its folder on the path."""
    monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module(name)


def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_every_picture_is_there_and_none_is_left_over() -> None:
    shown = re.findall(r"!\[[^]]+\]\((figures/attention/[^)]+)\)", text())
    assert len(shown) == len(set(shown))
    there = {f"figures/attention/{path.name}" for path in PICTURES.glob("*")}
    assert set(shown) == there


def test_no_blank_is_left_in_the_document() -> None:
    assert "not yet run" not in text()
    assert not re.search(r"\b[A-Z]{4,}-NOTE\b", text())


def test_every_mechanism_has_a_section_and_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = load("draw_patterns", "tools", monkeypatch)
    assert {mechanism for mechanism, _ in drawing.PICTURES.values()} == set(MECHANISMS)
    for name in drawing.PICTURES:
        assert (PICTURES / f"pattern-{name}.svg").exists()


def test_every_table_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    marked = re.findall(r"<!-- (\S+) -->\n\|", text())
    known = []
    for name in ("performer", "linformer", "bigbird", "synthesizer", "perceiver"):
        paper = importlib.import_module(f"papers.{name}")
        known += [experiment.name for experiment in paper.EXPERIMENTS]
    assert sorted(marked) == sorted(known)
    for name in known:
        assert f"`python benchmarks/papers.py --only {name}`" in text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "bigbird", "perceiver"])
def test_pictures_are_drawn_again_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = load("draw_patterns", "tools", monkeypatch)
    assert drawing.draw(name) == (PICTURES / f"pattern-{name}.svg").read_text(encoding="utf-8")


def test_a_drawing_shows_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = load("draw_patterns", "tools", monkeypatch)
    pattern = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.5, -0.5, 0.0]])
    drawn = drawing.panel("title", pattern, "a<b")
    assert f'<path stroke="{drawing.colour(12)}" d="M0 0h1M0 2h1"/>' in drawn
    assert f'<path stroke="{drawing.colour(8)}" d="M0 1h2"/>' in drawn
    assert f'<path stroke="{drawing.colour(-8)}" d="M1 2h1"/>' in drawn
    assert "&lt;" in drawn and "<b" not in drawn.replace("<br", "")


@pytest.mark.parametrize("kind", ["trig", "positive", "hyperbolic"])
def test_performers_error_is_the_formulas(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    performer = importlib.import_module("papers.performer")
    x, y = torch.zeros(2, 8, dtype=torch.float64)
    x[0], y[1] = 0.6, 0.6
    drawn = performer.directions("iid", 8, 4, 20_000, 0)
    squared = (performer.estimates(kind, drawn, x, y, 4) - 1.0).square()
    doubt = float(squared.std()) / len(squared) ** 0.5
    assert abs(float(squared.mean()) - performer.formula(kind, x, y, 4)) < 4 * doubt
