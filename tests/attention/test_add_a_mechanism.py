"""The worked example of docs/add-a-mechanism.md, taken from the page and put through every law."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from whence.attention import MECHANISMS, Attention, Softmax, laws

PAGE = Path(__file__).parents[2] / "docs" / "add-a-mechanism.md"


def example() -> type[Attention]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "fading"}
    exec(blocks[0], names)
    kind = names["Fading"]
    assert issubclass(kind, Attention)
    return kind


def test_the_example_obeys_every_law() -> None:
    laws.check(example())


def test_the_page_names_every_law() -> None:
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8")).lower()
    for words in ("picture is the computation", "padding is absence", "gradcheck", "strides"):
        assert words in text


def test_the_example_says_what_it_is() -> None:
    described = example()(8, 2, 16, start=1.0).describe()
    assert described["mechanism"] == "fading" and described["start"] == 1.0
    with pytest.raises(ValueError, match="start must be positive"):
        example()(8, 2, 16, start=-1.0)


class Leaking(Attention):
    """What several packages do: a stabiliser over all positions and an epsilon after it."""

    mechanism = "leaking"

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
        kernel = (queries @ keys.mT - (queries @ keys.mT).amax((-1, -2), keepdim=True)).exp() + 1e-4
        kernel = kernel.tril()
        return kernel @ values / kernel.sum(-1, keepdim=True)


class Repainted(Softmax):
    """A picture that is not the computation."""

    mechanism = "repainted"

    def weights(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
        return super().weights(queries * 1.01, keys, padding)


class Forgetful(Softmax):
    """A cache that is off by one."""

    mechanism = "forgetful"

    def step_mask(self, positions: Tensor, seen: int) -> Tensor:
        return super().step_mask((positions - 1).clamp(min=0), seen)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (Leaking, "past_is_blind"),
        (Repainted, "picture_is_computation"),
        (Forgetful, "steps_are_forward"),
    ],
)
def test_the_laws_catch_what_is_wrong(kind: type[Attention], law: str) -> None:
    with pytest.raises(AssertionError, match=f"breaks the law '{law}'"):
        laws.check(kind)


def test_every_mechanism_is_listed_under_its_own_name() -> None:
    assert set(MECHANISMS) >= {
        "softmax", "rope", "synthesizer", "perceiver", "linformer", "bigbird", "performer",
    }  # fmt: skip
    for name, kind in MECHANISMS.items():
        assert kind.mechanism == name
        described = kind(16, 2, 12).describe()
        assert described["mechanism"] == name
        assert described["parameters"] == sum(p.numel() for p in kind(16, 2, 12).parameters())
        assert torch.equal(
            kind(16, 2, 12)(torch.zeros(1, 3, 16)).isfinite(), torch.ones(1, 3, 16) > 0
        )
