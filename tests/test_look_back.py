"""model.start = "near": half of the heads look back 1, 2, ... characters, and all of it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whence.attention.look_back import turn, waves
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.model import GPT

VOCABULARY = 40
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "rope": {"attention": "rope"},
    "softmax, rope": {"positions": "rope"},
    "bigbird": {"attention": "bigbird"},
    "bigbird, rope": {"attention": "bigbird", "positions": "rope"},
    "linformer": {"attention": "linformer"},
    "linformer, few slots": {"attention": "linformer", "options": {"projected": 40}},
    "linformer, sums": {"attention": "linformer", "options": {"form": "free", "projected": 128}},
    "synthesizer, course": {"attention": "synthesizer", "options": {"form": "course"}},
    "synthesizer, dense": {"attention": "synthesizer", "options": {"form": "dense"}},
    "rms": {"norm": "rms"},
    "normalised queries": {"qk_norm": True},
}
BOTTLENECKS: dict[str, dict[str, Any]] = {
    "bottleneck": {"bottleneck": 16},
    "bottleneck, rope": {"bottleneck": 16, "attention": "rope"},
}


def make(start: str, **changes: Any) -> GPT:
    torch.manual_seed(0)
    fields = {"layers": 3, "heads": 4, "width": 128, "dropout": 0.0, **changes}
    return GPT(ModelConfig(**fields, start=start), VOCABULARY)  # type: ignore[arg-type]


def near(**changes: Any) -> GPT:
    return make("near", **changes)


def text(length: int = 100) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (2, length), generator=generator)


@pytest.mark.parametrize("model", MODELS)
def test_half_of_the_heads_look_back(model: str) -> None:
    gpt = near(**MODELS[model])
    with torch.no_grad():
        x = gpt.embed(text())
        for block in gpt.layers():  # blocks start as the identity, so all of them see the text
            pattern = block.attention.pattern(block.norm1(x))
            for head in range(2):
                places = torch.arange(10, 100)
                seen = pattern[:, head, places, places - head - 1]
                assert (pattern[:, head, 10:].argmax(-1) == places - head - 1).all()
                assert seen.min() > 0.4, (head, seen.min())
            for head in range(2, 4):  # the others are as they were
                assert pattern[:, head].amax(-1)[:, 50:].median() < 0.4


def test_random_features_look_back_roughly() -> None:
    gpt = near(attention="performer")
    with torch.no_grad():
        block = gpt.layers()[0]
        pattern = block.attention.pattern(block.norm1(gpt.embed(text())))
    places = torch.arange(10, 100)
    for head in range(2):
        assert pattern[:, head, places, places - head - 1].mean() > 0.25  # of 10 to 100 positions
    assert pattern[:, 2, places, places - 3].mean() < 0.1


@pytest.mark.parametrize("model", BOTTLENECKS)
def test_latents_look_at_their_own_character_and_back(model: str) -> None:
    gpt = near(**BOTTLENECKS[model])
    assert gpt.latents is not None
    first, last = gpt.layers()[0], gpt.layers()[-1]
    with torch.no_grad():
        x = gpt.embed(text())
        down = first.attention.pattern(gpt.latents.expand(2, -1, -1), first.norm1(x))
        up = last.attention.pattern(x, last.norm1(gpt.latents.expand(2, -1, -1)))
    for head in range(2):
        places = torch.arange(head, 16)
        assert (down[:, head, head:].argmax(-1) == places - head).all()
        assert (up[:, head, head:16].argmax(-1) == places - head).all()


ALL = {**MODELS, **BOTTLENECKS, "performer": {"attention": "performer"}}


@pytest.mark.parametrize("model", ALL)
def test_it_costs_no_parameter_and_all_of_it_learns(model: str) -> None:
    gpt, changes = near(**ALL[model]), ALL[model]
    assert gpt.parameter_count() == make("normal", **changes).parameter_count()
    assert (gpt(text()) == 0).all()  # as with a zero start
    optimizer = torch.optim.Adam(gpt.parameters(), lr=0.01)
    before = {name: parameter.clone() for name, parameter in gpt.named_parameters()}
    for _ in range(4):  # zero start: head, then block outputs, then what feeds them
        optimizer.zero_grad()
        gpt.loss(text()[:, :-1], text()[:, 1:]).backward()
        optimizer.step()
    still = [name for name, value in gpt.named_parameters() if torch.equal(value, before[name])]
    assert still == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": "perceiver"}, "perceiver has no head that could look back at one"),
        (
            {"attention": "synthesizer", "options": {"form": "random"}},
            "synthesizer of form 'random' has no head that could look back",
        ),
        ({"attention": "rope", "bias": False}, "set model.bias = true"),
    ],
)
def test_what_cannot_look_back_says_so(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WhenceError, match=f'model.start = "near": .*{reason}'):
        near(**changes)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 3), (3, 1, 5), (9, 3, 2)])
def test_any_size_will_do(sizes: tuple[int, int, int]) -> None:
    """One head, odd widths, a context shorter than there are heads to look back."""
    width, heads, context = sizes
    config = ModelConfig(layers=1, width=width, heads=heads, context=context, start="near")
    gpt = GPT(config, VOCABULARY)
    assert gpt.loss(text(context), text(context)).isfinite()


@pytest.mark.parametrize("ahead", [-3, 0, 1, 8])
@pytest.mark.parametrize("channels", [2, 7, 32])
def test_a_turn_moves_every_position_alike(channels: int, ahead: int) -> None:
    table = waves(60, channels)
    moved = table[10:40] @ turn(channels, ahead).T
    assert torch.allclose(moved, table[10 + ahead : 40 + ahead], atol=1e-4)
