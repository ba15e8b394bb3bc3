"""A clear error or a right result, never a silent wrong one."""

import copy
from typing import Any

import pytest
import torch

from whence.attention import MECHANISMS, Attention, BigBird, Linformer, Perceiver, Performer
from whence.attention.rotation import Rotation
from whence.precision import try_bfloat16


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """Weights that are drawn anew every time fail a bound on rounding once in a while."""
    torch.manual_seed(0)


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
    # A graph of bigbird's that is not dense at this length.
    attention = kind(16, 2, 40, **({"block": 4} if kind is BigBird else {})).eval()
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    whole = attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = attention(x)
        low.float().sum().backward()
        begun, state = attention.prefill(x[:, :39])
        last, _ = attention.step(x[:, 39:], state, torch.tensor([39, 39]))
    torch.testing.assert_close(low.float(), whole, atol=0.05, rtol=0.05)
    torch.testing.assert_close(begun.float(), whole[:, :39], atol=0.05, rtol=0.05)
    torch.testing.assert_close(last.float(), whole[:, 39:], atol=0.05, rtol=0.05)
    grads = [parameter.grad for parameter in attention.parameters() if parameter.requires_grad]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("positions", [20, 130])  # written out, and walked
@pytest.mark.parametrize("kind", ["linformer", "perceiver", "performer"])
def test_a_second_derivative_is_refused_and_not_wrong(kind: str, positions: int) -> None:
    """Beside a residual connection, too, on which the input is reached without the attention."""
    attention = MECHANISMS[kind](16, 2, 140).double()
    x = torch.randn(1, positions, 16, dtype=torch.float64, requires_grad=True)
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


def test_half_precision_is_kept_in_range() -> None:
    """A sparse graph, rows that see nothing, large scores: float16 ends at 65,504."""
    attention = BigBird(32, 2, 64, block=4)
    x = 10 * torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(0))
    real = torch.arange(50) >= torch.tensor([[13], [0]])
    whole = attention(x, padding=real)
    half = copy.deepcopy(attention).half()(x.half(), padding=real)
    torch.testing.assert_close(half.float(), whole, atol=0.1, rtol=0.1)
    with torch.autocast("cpu", dtype=torch.float16):
        low = attention(x, padding=real)
    torch.testing.assert_close(low.float(), whole, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("kind", "causal", "options", "size"),
    [
        (Performer, True, {"features": 512}, 24.0),
        (Performer, True, {"features": 512}, 60.0),
        (Performer, False, {"features": 512}, 40.0),
        (Perceiver, True, {"latents": 512}, 70.0),
    ],
    ids=["performer", "performer, larger", "performer, both ways", "perceiver"],
)
def test_padding_ahead_of_large_keys_is_absence(
    kind: type[Attention], causal: bool, options: dict[str, Any], size: float
) -> None:
    """Whole segments of nothing come first; what follows needs a reference of its own."""
    torch.manual_seed(0)
    attention = kind(64, 2, 700, causal, **options)
    generator = torch.Generator().manual_seed(0)
    real = (size * torch.randn(1, 300, 64, generator=generator)).requires_grad_()
    wanted = attention(real)
    (right,) = torch.autograd.grad(wanted.square().sum(), real)
    padding = (torch.arange(700) >= 400)[None]
    shifted = attention(torch.cat([torch.zeros(1, 400, 64), real], 1), padding=padding)[:, 400:]
    (gradient,) = torch.autograd.grad(shifted.square().sum(), real)
    torch.testing.assert_close(shifted, wanted, atol=1e-3, rtol=1e-3)
    scale = float(right.abs().max())
    torch.testing.assert_close(gradient / scale, right / scale, atol=1e-3, rtol=1e-3)


@ALL
def test_a_state_of_other_rows_is_refused(kind: type[Attention]) -> None:
    attention, x = kind(16, 2, 12).eval(), torch.zeros(2, 4, 16)
    _, state = attention.prefill(x[:1])
    with pytest.raises(ValueError, match="the state has 1 rows and x 2"):
        attention.step(x[:, :1], state, torch.tensor([4, 4]))


@pytest.mark.parametrize("kind", ["softmax", "rope", "bigbird", "synthesizer"])
def test_a_step_beyond_the_room_is_refused(kind: str) -> None:
    attention, x = MECHANISMS[kind](16, 2, 12).eval(), torch.zeros(1, 4, 16)
    _, state = attention.prefill(x, room=4)
    with pytest.raises(ValueError, match="the room of the state is full"):
        attention.step(x[:, :1], state, torch.tensor([4]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("performer", {"features": 16}),
        ("linformer", {"projected": 4}),
        ("perceiver", {"form": "prefix"}),
    ],
)
def test_a_model_of_half_precision_remembers_all_it_reads(
    mechanism: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """256 + 1 is 256 in bfloat16: a running sum would stand still, and nothing later count."""
    T = 600 if dtype == torch.bfloat16 else 40
    torch.manual_seed(0)
    layer = MECHANISMS[mechanism](16, 2, T, **options).eval()
    with torch.no_grad():  # hardly any difference between keys: every one counts alike
        layer.qkv.weight[:32] *= 0.01
    low = copy.deepcopy(layer).to(dtype)
    x = torch.randn(1, T, 16).to(dtype)
    x[:, T // 2 :] += 1.0  # the second half is different, and has to be seen
    _, state = low.prefill(x[:, : T // 2])
    for place in range(T // 2, T):
        y, state = low.step(x[:, place : place + 1], state, torch.tensor([place]))
    wanted = low.to(torch.float32)(x.float())[:, -1]
    assert y.dtype == dtype
    torch.testing.assert_close(y[:, 0].float(), wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("causal", [True, False])
def test_a_slot_that_is_never_filled_has_a_gradient(causal: bool) -> None:
    """-inf in E is the documented way to keep a slot empty, at least for a while."""
    layer = Linformer(16, 2, 6, causal, projected=6, form="averaged", shared=True)
    with torch.no_grad():
        layer.project_keys.copy_(torch.eye(6).log())
    x = torch.randn(2, 4, 16, requires_grad=True)
    layer(x).square().sum().backward()
    for parameter in (x, *layer.parameters()):
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all())


def test_an_odd_offset_in_memory_is_rotated_all_the_same() -> None:
    whole = torch.randn(1, 2, 5, 10)
    part = whole[..., 1:9]
    torch.testing.assert_close(Rotation(8, 10)(part), Rotation(8, 10)(part.contiguous()))


def test_float64_under_autocast_is_refused() -> None:
    layer = MECHANISMS["softmax"](8, 2, 4)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="convert one"):
        layer(torch.randn(1, 4, 8, dtype=torch.float64))


def test_the_picture_of_a_short_text_does_not_hold_the_context() -> None:
    layer = MECHANISMS["bigbird"](8, 2, 1 << 17, block=8)
    assert layer.pattern(torch.randn(1, 60, 8)).shape == (1, 2, 60, 60)  # else 34 GB
