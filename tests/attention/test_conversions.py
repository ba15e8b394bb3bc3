"""Layers that are converted, moved, copied in part, or given numbers at the edge of a type."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from whence.attention import MECHANISMS
from whence.attention.performer import KINDS
from whence.attention.rotation import Rotation


def exact_turns(size: int, context: int) -> torch.Tensor:
    theta = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * theta
    return torch.stack((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize(
    ("kinds", "within"),
    [
        ([torch.float64], 0.0),
        ([torch.bfloat16, torch.float32], 1e-7),
        ([torch.float16, torch.float64], 0.0),
        ([torch.bfloat16], 1e-7),  # turned in full, and only the result is rounded
    ],
)
def test_rotations_are_not_rounded_on_the_way(kinds: list[torch.dtype], within: float) -> None:
    layer = MECHANISMS["rope"](16, 2, 2000)
    for kind in kinds:
        layer = layer.to(kind)
    assert layer.rotation is not None
    off = (layer.rotation.turns.double() - exact_turns(8, 2000)).abs().max()
    assert float(off) <= within


def test_a_layer_made_without_memory_has_its_rotations_when_it_gets_some() -> None:
    torch.manual_seed(0)
    real = MECHANISMS["rope"](12, 2, 40)
    with torch.device("meta"):
        layer = MECHANISMS["rope"](12, 2, 40)
    layer.to_empty(device="cpu")
    layer.load_state_dict(real.state_dict())
    x = torch.randn(1, 9, 12)
    torch.testing.assert_close(layer(x), real(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 2, 11, 8), (1, 2, 5, 6)])
def test_rotations_say_what_they_are_for(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="for 10 positions of width 8"):
        Rotation(8, 10)(torch.randn(shape))


@pytest.mark.parametrize(
    ("kind", "size"),
    [(torch.float16, 60.0), (torch.float32, 1e19), (torch.float32, 1e20), (torch.bfloat16, 1e20)],
)
def test_a_latent_that_overflows_stays_out_of_the_past(kind: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    layer = MECHANISMS["perceiver"](64, 1, 16, form="course", latents=16).to(kind).eval()
    x = torch.randn(1, 10, 64).to(kind)
    before = layer(x)
    x[0, 7] *= size
    after = layer(x)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seen", [12, 7, 0])
@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_with_padding_have_gradients(kind: str, size: float, seen: int) -> None:
    torch.manual_seed(0)
    layer = MECHANISMS["performer"](8, 2, 12, features=16, kind=kind).double()
    x = (size * torch.randn(2, 12, 8, dtype=torch.float64)).requires_grad_()
    padding = torch.arange(12) < torch.tensor([[12], [seen]])
    (gradient,) = torch.autograd.grad(layer.pattern(x, None, padding).square().sum(), x)
    assert gradient.isfinite().all()


def test_the_gradient_of_a_picture_is_that_of_the_text_without_its_padding() -> None:
    torch.manual_seed(0)
    layer = MECHANISMS["performer"](8, 2, 12, features=16).double()
    text = torch.randn(1, 7, 8, dtype=torch.float64, requires_grad=True)
    padded = torch.cat([text, torch.randn(1, 5, 8, dtype=torch.float64)], 1)
    padding = (torch.arange(12) < 7)[None]
    pictures = (layer.pattern(text), layer.pattern(padded, None, padding)[:, :, :7, :7])
    alone, beside = (torch.autograd.grad(p.square().sum(), text)[0] for p in pictures)
    torch.testing.assert_close(beside, alone)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_features_in_half_precision(kind: str, causal: bool) -> None:
    torch.manual_seed(0)
    layer = MECHANISMS["performer"](8, 2, 12, causal, features=16, kind=kind)
    x, padding = torch.randn(2, 12, 8), torch.arange(12) < torch.tensor([[12], [7]])
    wanted = layer.pattern(x, None, padding), layer(x, padding=padding)
    layer, x = layer.half(), x.half()
    found = layer.pattern(x, None, padding), layer(x, padding=padding)
    if kind == "trig":  # whose row sums may be next to nothing
        assert all(tensor.dtype == torch.float16 for tensor in found)
        return
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", MECHANISMS)
def test_rows_of_a_state_that_are_one_and_the_same_are_refused(name: str) -> None:
    layer = MECHANISMS[name](8, 2, 16).eval()
    _, state = layer.prefill(torch.randn(1, 4, 8))
    shared = {key: tensor.expand(2, *tensor.shape[1:]) for key, tensor in state.items()}
    with pytest.raises(ValueError, match="share their memory"):
        layer.step(torch.randn(2, 1, 8), shared, torch.tensor([4, 4]))
    own = {key: tensor.repeat_interleave(2, 0) for key, tensor in state.items()}
    out, _ = layer.step(torch.randn(2, 1, 8), own, torch.tensor([4, 4]))
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"dropout": "a"}, "dropout must be in"),
        ({"dropout": math.nan}, "dropout must be in"),
    ],
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_options_that_are_no_numbers(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MECHANISMS[name](8, 2, 16, **options)


def test_room_for_half_a_position() -> None:
    with pytest.raises(ValueError, match="room must be a whole number"):
        MECHANISMS["softmax"](8, 2, 16).prefill(torch.randn(1, 4, 8), room=6.5)  # type: ignore[arg-type]


def test_rotations_have_a_derivative_forward_as_well() -> None:
    """They are linear: a direction is turned as the vectors are. A view as complex numbers that
    loses it would lose it without a word."""
    rotation = Rotation(8, 16).double()
    x, direction = torch.randn(2, 2, 3, 5, 8, dtype=torch.float64)
    _, moved = torch.func.jvp(rotation, (x,), (direction,))
    torch.testing.assert_close(moved, rotation(direction))


def test_a_kept_mask_serves_other_lengths_types_and_training() -> None:
    """Blocks of 4 in 28 positions, of which most are seen: a mask, and not the sparse walk."""
    options = {"causal": False, "block": 4, "window": 3, "random": 2, "leading": 1}

    def made() -> Any:
        torch.manual_seed(0)
        return MECHANISMS["bigbird"](16, 2, 28, **options)

    used, x = made(), torch.randn(1, 28, 16)
    assert used.sees_most(28, 28) and used.dense * 4 < 28
    with torch.inference_mode():
        used(x)
    assert "mask" in used.last
    x.requires_grad_()
    used(x).sum().backward()
    for given in (x[:, :27], x, x.double(), x[:, :26], x):
        used, fresh = used.to(given.dtype), made().to(given.dtype)
        torch.testing.assert_close(used(given), fresh(given), rtol=0, atol=0)
    assert used.state_dict().keys() == made().state_dict().keys()
