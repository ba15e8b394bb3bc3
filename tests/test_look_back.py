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
    "linformer, few slots": {"attention": "linformer", "options": {"projected": 43}},
    "linformer, sums": {"attention": "linformer", "options": {"form": "free", "projected": 128}},
    "synthesizer, course": {"attention": "synthesizer", "options": {"form": "course"}},
    "synthesizer, units to spare": {"attention": "synthesizer", "width": 136, "heads": 4},
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
    looking = 4 if model.startswith("synthesizer") else 2  # it has nothing else to look by
    with torch.no_grad():
        x = gpt.embed(text())
        for block in gpt.layers():  # blocks start as the identity, so all of them see the text
            pattern = block.attention.pattern(block.norm1(x))
            for head in range(looking):
                places = torch.arange(10, 100)
                seen = pattern[:, head, places, places - head - 1]
                assert (pattern[:, head, 10:].argmax(-1) == places - head - 1).all()
                assert seen.min() > 0.4, (head, seen.min())
            for head in range(looking, 4):  # the others look at nothing in particular
                assert pattern[:, head].amax(-1)[:, 50:].median() < 0.4


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_random_features_look_back_roughly(positions: str) -> None:
    gpt = near(attention="performer", positions=positions)
    with torch.no_grad():
        block = gpt.layers()[0]
        pattern = block.attention.pattern(block.norm1(gpt.embed(text())))
    places = torch.arange(10, 100)
    for head in range(2):
        assert pattern[:, head, places, places - head - 1].mean() > 0.2  # of 10 to 100 positions
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
    still = []
    for name, value in gpt.named_parameters():
        same = value == before[name]
        if name.endswith(("qkv.weight", "w1.weight")):  # every query, key and hidden unit
            same = same.all(1)
            still += [name] if same.any() else []
        else:
            still += [name] if same.all() else []
    assert still == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": "perceiver"}, "perceiver has no head that looks at one single position"),
        ({"attention": "performer", "options": {"kind": "relu"}}, "features of kind 'relu'"),
        ({"attention": "synthesizer", "options": {"form": "random"}}, "of form 'random'"),
        ({"attention": "linformer", "options": {"projected": 40, "form": "free"}}, "40 slots"),
        ({"attention": "linformer", "options": {"projected": 42}}, "42 slots can hold 126"),
        ({"attention": "rope", "bias": False}, "by its biases, and there are none"),
        ({"attention": "rope", "qk_norm": True}, "which qk_norm undoes"),
        ({"attention": "rope", "heads": 16}, "heads must be 16 wide, not 8"),
        ({"heads": 16}, "heads of width 8 tell 32 positions apart, not 128"),
        ({"attention": "synthesizer", "heads": 8}, "heads of width 16 tell 32 positions apart"),
        ({"heads": 2}, "the channels of one head, and of model.heads = 2 that is too much"),
        ({"positions": "none"}, "nothing to go by"),
    ],
)
def test_what_cannot_look_back_says_so(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WhenceError, match=f'model.start = "near": .*{reason}'):
        near(**changes)


SIZES = {
    "narrow heads": {"width": 64, "heads": 4, "context": 40},
    "an odd width": {"width": 36, "heads": 4, "context": 9},
    "more heads than positions": {"width": 256, "heads": 16, "context": 3},
    "the same, rope": {"width": 256, "heads": 16, "context": 3, "attention": "rope"},
    "units to spare": {"width": 72, "heads": 4, "context": 30, "attention": "synthesizer"},
}


@pytest.mark.parametrize("size", SIZES)
def test_heads_of_any_size_look_back_as_far_as_there_is_text(size: str) -> None:
    gpt, heads = near(**SIZES[size]), SIZES[size]["heads"]
    assert (gpt.embedding.weight.norm(dim=1) > 1).all()  # characters are still told apart
    last = gpt.context - 1
    with torch.no_grad():
        block = gpt.layers()[0]
        pattern = block.attention.pattern(block.norm1(gpt.embed(text(gpt.context))))
    for head in range(min(heads // 2, last)):
        assert (pattern[:, head, last].argmax(-1) == last - head - 1).all(), head


@pytest.mark.parametrize("ahead", [-3, 0, 1, 8])
@pytest.mark.parametrize("channels", [2, 7, 32])
def test_a_turn_moves_every_position_alike(channels: int, ahead: int) -> None:
    table = waves(60, channels)
    moved = table[10:40] @ turn(channels, ahead).T
    assert torch.allclose(moved, table[10 + ahead : 40 + ahead], atol=1e-4)
