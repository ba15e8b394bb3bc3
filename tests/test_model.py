"""The GPT: the course's size, the same answers with and without a cache, honest about itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whence.attention import MECHANISMS
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.model import GPT
from whence.vocab import PAD

CONTEXT, VOCABULARY = 24, 30


def small(**changes: Any) -> ModelConfig:
    fields = {"layers": 2, "heads": 2, "width": 16, "context": CONTEXT, **changes}
    return ModelConfig(**fields)


def build(seed: int = 0, **changes: Any) -> GPT:
    """A model whose weights are large enough for its positions to differ."""
    torch.manual_seed(seed)
    model = GPT(small(**changes), VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
        if model.memory is not None:  # every third character ends a word
            model.memory.letters.copy_(torch.arange(VOCABULARY) % 3 > 0)
            model.memory.capitals.copy_(torch.arange(VOCABULARY) % 3 == 1)
    return model.eval()


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"attention": name} for name in MECHANISMS},
    "bottleneck of 5": {"bottleneck": 5, "layers": 3},
    "bottleneck of all": {"bottleneck": CONTEXT, "layers": 2},
    "bottleneck, rope": {"bottleneck": 7, "layers": 4, "attention": "rope"},
    "modern": {
        "norm": "rms",
        "activation": "relu2",
        "bias": False,
        "qk_norm": True,
        "positions": "rope",
        "start": "zero",
    },
    "no positions": {"positions": "none"},
    **{f"memory, {name}": {"memory": 50, "attention": name} for name in MECHANISMS},
    "memory of two words": {"memory": 50, "memory_words": 2, "attention": "rope"},
    "memory, bottleneck": {"memory": 50, "bottleneck": 5, "layers": 3},
}
every_variant = pytest.mark.parametrize("variant", list(VARIANTS))


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (rows, length), generator=generator)


def test_the_courses_model_has_3323392_parameters() -> None:
    model = GPT(ModelConfig(), 256)
    assert model.parameter_count() == 3_323_392
    assert model.describe()["parameters"] == 3_323_392


def test_the_courses_weights_at_the_start() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(), 256)
    for name, parameter in model.named_parameters():
        if name == "positions" or name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert abs(parameter.std().item() - 0.02) < 0.0005, name
            assert abs(parameter.mean().item()) < 0.0005, name


def test_a_zero_start_is_the_identity_between_embedding_and_head() -> None:
    torch.manual_seed(0)
    model = GPT(small(start="zero", norm="rms"), VOCABULARY)
    x = tokens(2, 9)
    assert (model(x) == 0).all()
    embedded = model.embed(x)
    for block in model.blocks:
        assert torch.equal(block(embedded), embedded)


@every_variant
def test_cached_steps_equal_the_full_pass(variant: str) -> None:
    """Prompts of different lengths side by side, each row at its own position."""
    model = build(**VARIANTS[variant])
    x = tokens(6, CONTEXT)
    full = model(x)
    groups = [(3, [0, 1]), (8, [2]), (1, [3, 4, 5])]  # prompt length and which rows have it
    logits, states, positions, rows = [], [], [], []
    for length, members in groups:
        after, state = model.prefill(x[members, :length])
        logits.append(after)
        states.append(state)
        positions += [length] * len(members)
        rows += members
    joined = [
        {name: torch.cat([state[layer][name] for state in states]) for name in states[0][layer]}
        for layer in range(len(states[0]))
    ]
    place, row = torch.tensor(positions), torch.tensor(rows)
    torch.testing.assert_close(torch.cat(logits), full[row, place - 1], atol=2e-4, rtol=1e-3)
    while (place < CONTEXT).all():
        step, joined = model.step(x[row, place], joined, place)
        torch.testing.assert_close(step, full[row, place], atol=2e-4, rtol=1e-3)
        place = place + 1


@every_variant
def test_no_character_sees_what_follows_it(variant: str) -> None:
    model = build(**VARIANTS[variant])
    x = tokens(1, CONTEXT)
    before = model(x)
    for position in (0, 3, 11, CONTEXT - 2):
        changed = x.clone()
        changed[:, position + 1 :] = tokens(1, CONTEXT, seed=9)[:, position + 1 :]
        torch.testing.assert_close(
            model(changed)[:, : position + 1], before[:, : position + 1], atol=1e-4, rtol=1e-4
        )
        moved = x.clone()
        moved[:, position] = moved[:, position] % (VOCABULARY - 1) + 1
        assert not torch.allclose(model(moved)[:, position], before[:, position], atol=1e-3)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "no positions"])
def test_the_order_of_the_characters_matters(variant: str) -> None:
    model = build(**VARIANTS[variant])
    x = tokens(1, 12)
    swapped = x.clone()
    swapped[0, [2, 4]] = x[0, [4, 2]]
    assert x[0, 2] != x[0, 4]
    assert not torch.allclose(model(x)[:, -1], model(swapped)[:, -1], atol=1e-4)


@every_variant
def test_what_was_saved_is_what_is_loaded(variant: str, tmp_path: Path) -> None:
    model = build(**VARIANTS[variant])
    model.save_pretrained(tmp_path / "model")
    loaded = GPT.from_pretrained(tmp_path / "model").eval()
    assert loaded.config == model.config
    for (name, before), (other, after) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert name == other and torch.equal(before, after)
    assert torch.equal(model(tokens(2, 20)), loaded(tokens(2, 20)))
    assert loaded.describe() == model.describe()
    names = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert names == ["config.json", "model.safetensors"]


@every_variant
def test_it_says_what_really_runs(variant: str) -> None:
    options = VARIANTS[variant]
    model = build(**options)
    said = model.describe()
    assert said["attention"]["mechanism"] == options.get("attention", "softmax")
    assert said["parameters"] == sum(p.numel() for p in model.parameters())
    assert said["bottleneck"] == options.get("bottleneck", 0)
    assert said["layers"] == options.get("layers", 2)
    learned = "positions" in dict(model.named_parameters())
    if options.get("positions") == "none":
        assert said["positions"] == "none" and not learned
    elif "rope" in options.values():
        assert said["positions"] == "rope" and not learned
        assert all(block.attention.rotation is not None for block in model.blocks)
    else:
        assert said["positions"] == "learned" and learned
    json.dumps(said)


@given(st.data())
@settings(max_examples=30)
def test_the_loss_ignores_padding(data: st.DataObject) -> None:
    """However much padding stands at the end of rows, and whatever rows are only padding."""
    model = build()
    rows = data.draw(st.lists(st.integers(1, 10), min_size=1, max_size=5))
    extra, blank = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 3))
    width = max(rows)
    inputs = torch.zeros(len(rows) + blank, width + extra, dtype=torch.long)
    targets = inputs.clone()
    total, count = torch.zeros(()), 0
    for row, length in enumerate(rows):
        inputs[row, :length] = tokens(1, length, seed=row)
        targets[row, :length] = tokens(1, length, seed=100 + row)
        hidden = data.draw(st.integers(0, length - 1))
        targets[row, :hidden] = PAD  # as the question is in a name example
        logits = model(inputs[row : row + 1, :length])[0, hidden:]
        total = total + F.cross_entropy(logits, targets[row, hidden:length], reduction="sum")
        count += length - hidden
    torch.testing.assert_close(model.loss(inputs, targets), total / count)


def test_padding_gets_no_gradient() -> None:
    model = build()
    inputs, targets = tokens(2, 8), tokens(2, 8, seed=5)
    targets[1] = PAD
    model.loss(inputs, targets).backward()
    alone = build()
    alone.loss(inputs[:1], targets[:1]).backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


@every_variant
def test_dropout_acts_in_training_only_and_follows_the_seed(variant: str) -> None:
    model = build(**{**VARIANTS[variant], "dropout": 0.3})
    x = tokens(3, 16)
    assert torch.equal(model(x), model(x))
    model.train()
    torch.manual_seed(1)
    first = model(x)
    second = model(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), first)
    assert not torch.allclose(first, second)
    model.eval()
    off = build(**{**VARIANTS[variant], "dropout": 0.0})
    assert torch.allclose(off(x), model(x))
    assert torch.equal(off.train()(x), off(x))


@every_variant
def test_every_parameter_learns(variant: str) -> None:
    model = build(**VARIANTS[variant])
    model.loss(tokens(4, CONTEXT), tokens(4, CONTEXT, seed=3)).backward()
    dead = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert dead == []


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(WhenceError, match="25 characters do not fit a context of 24"):
        build()(tokens(1, CONTEXT + 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": "sofmax"}, "unknown attention 'sofmax'; known: "),
        ({"options": {"features": 3}}, "attention 'softmax' has no option 'features'"),
        ({"options": {"width": 3}}, "attention 'softmax' has no option 'width'"),
        ({"options": {"causal": False}}, "attention 'softmax' has no option 'causal'"),
        ({"width": 6, "positions": "rope"}, "attention 'softmax': "),
    ],
)
def test_what_the_mechanism_does_not_know_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WhenceError, match=reason):
        GPT(small(**changes), VOCABULARY)


def spoil(folder: Path, how: str) -> None:
    weights, settings = folder / "model.safetensors", folder / "config.json"
    content = json.loads(settings.read_text())
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "no weights":
        weights.unlink()
    elif how == "a pickle":
        weights.write_bytes(b"\x80\x04cos\nsystem\n")
    elif how == "another width":
        content["model"] = dataclasses.asdict(small(width=32))
    elif how == "an unknown field":
        content["model"]["wdith"] = 3
    elif how == "a wrong type":
        content["model"]["layers"] = "two"
    elif how == "no model":
        del content["model"]
    elif how == "a list":
        content = []
    elif how == "another vocabulary":
        content["vocabulary"] = 31
    settings.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "how",
    [
        "truncated",
        "no weights",
        "a pickle",
        "another width",
        "an unknown field",
        "a wrong type",
        "no model",
        "a list",
        "another vocabulary",
    ],
)
def test_a_spoilt_model_is_one_sentence(tmp_path: Path, how: str) -> None:
    build().save_pretrained(tmp_path)
    spoil(tmp_path, how)
    with pytest.raises(WhenceError) as error:
        GPT.from_pretrained(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("attention", "options", "drawn"),
    [
        ("bigbird", {"block": 2, "window": 1, "leading": 0}, "neighbours"),
        ("performer", {"features": 8}, "directions"),
        ("synthesizer", {"form": "fixed"}, "logits_fixed"),
    ],
)
def test_every_layer_of_every_seed_draws_its_own(
    attention: str, options: dict[str, Any], drawn: str, tmp_path: Path
) -> None:
    def draws(model: GPT) -> list[torch.Tensor]:
        return [getattr(block.attention, drawn) for block in model.layers()]

    config = small(attention=attention, options=options)
    found = [draws(GPT(config, VOCABULARY, seed)) for seed in (0, 1)]
    every = [layer for layers in found for layer in layers]
    for number, one in enumerate(every):
        assert not any(torch.equal(one, other) for other in every[:number])
    model = GPT(config, VOCABULARY, 1)
    assert model.describe()["attention"]["seed"] == [2, 3]
    model.save_pretrained(tmp_path)
    loaded = draws(GPT.from_pretrained(tmp_path))
    assert all(torch.equal(one, other) for one, other in zip(loaded, draws(model), strict=True))
    chosen = small(attention=attention, options={**options, "seed": 1})
    again = draws(GPT(chosen, VOCABULARY, 0))
    assert all(torch.equal(one, other) for one, other in zip(again, draws(model), strict=True))


def test_a_model_of_before_layers_had_their_own_draws_keeps_its_graph(tmp_path: Path) -> None:
    config = small(attention="bigbird", options={"block": 2, "window": 1, "leading": 0})
    old = GPT(config, VOCABULARY)
    old.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["seed"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = GPT.from_pretrained(tmp_path)
    graphs = [block.attention.neighbours for block in (*old.layers(), *loaded.layers())]
    assert all(torch.equal(graph, graphs[0]) for graph in graphs)


@pytest.mark.parametrize("changes", [{}, {"bottleneck": 4, "layers": 3}, {"positions": "rope"}])
def test_decoding_ends_with_the_context(changes: dict[str, Any]) -> None:
    model = build(**changes)
    with pytest.raises(WhenceError, match="do not fit a context"):
        model.prefill(tokens(1, model.context + 1))
    _, states = model.prefill(tokens(1, model.context))
    with pytest.raises(WhenceError, match="do not fit a context"):
        model.step(tokens(1, 1)[:, 0], states, torch.tensor([model.context]))


def test_latents_that_nobody_sees_are_not_computed() -> None:
    """Latent i is seen from position i on: a short text is read the same with fewer of them."""
    model = build(bottleneck=12, layers=3)
    short = tokens(2, 5)
    whole = model(F.pad(short, (0, 15)))[:, :5]
    torch.testing.assert_close(model(short), whole)
