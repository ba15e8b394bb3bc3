"""A clear error or a right result, never a silent wrong one."""

from typing import Any

import pytest
import torch

from whence.attention import MECHANISMS, Attention, BigBird, Linformer, Perceiver, Performer
from whence.precision import try_bfloat16

ALL = pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)


@ALL
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 0, 16), "no positions"),
        ((2, 13, 16), "13 positions, but this attention was made for a context of 12"),
        ((2, 5, 15), r"\(batch, length, 16\), not \(2, 5, 15\)"),
        ((5, 16), r"\(batch, length, 16\), not \(5, 16\)"),
    ],
)
def test_shapes(kind: type[Attention], shape: tuple[int, ...], message: str) -> None:
    attention = kind(16, 2, 12)
    for method in (attention, attention.pattern):
        with pytest.raises(ValueError, match=message):
            method(torch.zeros(shape))
    if len(shape) == 3:
        with pytest.raises(ValueError, match=message):
            attention(torch.zeros(2, 5, 16), torch.zeros(shape))


@ALL
def test_kinds_of_numbers_are_not_mixed_in_silence(kind: type[Attention]) -> None:
    attention = kind(16, 2, 12)
    with pytest.raises(ValueError, match=r"float64 and the weights are torch\.float32"):
        attention(torch.zeros(1, 3, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="source is torch"):
        attention(torch.zeros(1, 3, 16), torch.zeros(1, 3, 16, dtype=torch.float64))
    double = kind(16, 2, 12).double()
    assert double(torch.zeros(1, 3, 16, dtype=torch.float64)).dtype == torch.float64


@ALL
def test_padding(kind: type[Attention]) -> None:
    attention, x = kind(16, 2, 12), torch.zeros(2, 5, 16)
    for padding in (torch.ones(2, 5), torch.ones(2, 4, dtype=torch.bool)):
        with pytest.raises(ValueError, match="padding must be bool of shape"):
            attention(x, padding=padding)
    with pytest.raises(ValueError, match="2 rows and source 3"):
        attention(x, torch.zeros(3, 5, 16))


@ALL
def test_decoding(kind: type[Attention]) -> None:
    with pytest.raises(ValueError, match="not causal"):
        kind(16, 2, 12, causal=False).prefill(torch.zeros(1, 3, 16))
    attention = kind(16, 2, 12)
    for room in (2, 0, -1, 13):
        with pytest.raises(ValueError, match="room must be between the 3 positions"):
            attention.prefill(torch.zeros(2, 3, 16), room)
    with pytest.raises(ValueError, match="no rows"):
        attention.prefill(torch.zeros(0, 3, 16))
    with pytest.raises(ValueError, match="decoding is for evaluation"):
        kind(16, 2, 12, dropout=0.1).prefill(torch.zeros(1, 3, 16))
    _, state = attention.prefill(torch.zeros(2, 3, 16))
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        attention.step(torch.zeros(2, 1, 16).double(), state, torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="positions must be whole numbers"):
        attention.step(torch.zeros(2, 1, 16), state, torch.tensor([3.0, 3.0]))
    with pytest.raises(ValueError, match="context is full"):
        attention.step(torch.zeros(2, 1, 16), state, torch.tensor([3, 12]))
    with pytest.raises(ValueError, match="a step takes"):
        attention.step(torch.zeros(2, 1, 16), state, torch.tensor([3, 3, 3]))
    if not attention.strides:
        with pytest.raises(ValueError, match="a step takes"):
            attention.step(torch.zeros(2, 2, 16), state, torch.tensor([3, 3]))


@ALL
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "width 16 is not a multiple of 3 heads"),
        ({"heads": 0}, "heads must be at least 1"),
        ({"context": 0}, "context must be at least 1"),
        ({"heads": 2.0}, "heads must be a whole number"),
        ({"heads": True}, "heads must be a whole number"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"causal": "no"}, "causal must be True or False"),
        ({"bias": 1}, "bias must be True or False"),
    ],
)
def test_sizes(kind: type[Attention], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{"width": 16, "heads": 2, "context": 12, **options})


@ALL
def test_a_misspelt_option_is_an_error(kind: type[Attention]) -> None:
    with pytest.raises(TypeError, match="featurs"):
        kind(16, 2, 12, featurs=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rope", {"rope": False}, "rope=False"),
        ("rope", {"width": 6}, "not even"),
        ("synthesizer", {"form": "dence"}, "form must be one of dense"),
        ("synthesizer", {"rope": True}, "rope means nothing"),
        ("synthesizer", {"qk_norm": True}, "qk_norm means nothing"),
        ("synthesizer", {"members": ["dense"]}, "members belong to the form mixture"),
        ("synthesizer", {"form": "mixture", "members": ["dense", "dense"]}, "members must be"),
        ("synthesizer", {"form": "mixture", "members": ["fixd"]}, "members must be"),
        ("synthesizer", {"rank": 4}, "rank belongs to"),
        ("synthesizer", {"form": "factorised-random", "rank": 0}, "rank must be"),
        ("synthesizer", {"columns": 13}, "columns must be in"),
        ("perceiver", {"latents": 0}, "latents must be"),
        ("perceiver", {"form": "prefixed"}, "form must be one of prefix"),
        ("perceiver", {"form": "course", "causal": False}, "a way to be causal"),
        ("perceiver", {"layers": 1}, "layers must be 0"),
        ("linformer", {"projected": 0}, "projected must be"),
        ("linformer", {"form": "fre"}, "form must be one of free"),
        ("linformer", {"form": ""}, "form must be one of free"),
        ("linformer", {"shared": "no"}, "shared must be True or False, not 'no'"),
        ("perceiver", {"form": ""}, "form must be one of prefix"),
        ("perceiver", {"form": "course", "layers": -1}, "layers must be at least 0"),
        ("synthesizer", {"form": "mixture", "members": []}, "members must be"),
        ("bigbird", {"block": 0}, "block must be at least 1"),
        ("bigbird", {"block": 4.0}, "block must be a whole number, not 4.0"),
        ("bigbird", {"random": -1}, "random must be at least 0"),
        ("performer", {"features": 0}, "features must be at least 1"),
        ("performer", {"features": "64"}, "features must be a whole number, not '64'"),
        ("performer", {"kind": "cosine"}, "kind must be one of positive"),
        ("performer", {"draw": "uniform"}, "draw must be one of orthogonal"),
    ],
)
def test_options_that_mean_nothing(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MECHANISMS[name](**{"width": 16, "heads": 2, "context": 12, **options})


@pytest.mark.parametrize("length", [1, 2, 12])
def test_windows_and_slots_larger_than_the_text_are_fine(length: int) -> None:
    x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(0))
    for causal in (True, False):
        for attention in (
            BigBird(16, 2, 12, causal, window=99, block=40),
            Linformer(16, 2, 12, causal, projected=99),
            Perceiver(16, 2, 12, causal, latents=99),
        ):
            drawn = attention.project(attention.pattern(x) @ attention.values(x))
            torch.testing.assert_close(attention(x), drawn, atol=1e-5, rtol=1e-5)


@ALL
def test_low_precision_under_autocast_stays_near(kind: type[Attention]) -> None:
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    attention = kind(16, 2, 40).eval()
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = attention(x)
        low.float().sum().backward()
    torch.testing.assert_close(low.float(), attention(x), atol=0.05, rtol=0.05)
    grads = [parameter.grad for parameter in attention.parameters() if parameter.requires_grad]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kind", ["linformer", "perceiver", "performer"])
def test_a_second_derivative_is_refused_and_not_wrong(kind: str) -> None:
    """Beside a residual connection, too, on which the input is reached without the attention."""
    attention = MECHANISMS[kind](16, 2, 12).double()
    x = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad((x + attention(x)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative|no autograd formula"):
        torch.autograd.grad(first.square().sum(), x)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
def test_the_picture_of_large_logits_is_the_computation(kind: str, causal: bool) -> None:
    """No feature is large for a query and a key at once: their product is below every float."""
    attention = Performer(64, 2, 40, causal, kind=kind).double().eval()
    x = 1000 * torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(0)).double()
    drawn = attention.project(attention.pattern(x) @ attention.values(x))
    torch.testing.assert_close(attention(x), drawn)
