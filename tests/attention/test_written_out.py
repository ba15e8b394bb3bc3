"""Short texts by plain products over all pairs: the same function as the long way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from whence.attention import Performer, Synthesizer, performer
from whence.attention import short as short_way
from whence.attention.short import feature_pairs
from whence.precision import try_bfloat16

T = 23


def gradients(out: Tensor, *wanted: Tensor) -> list[Tensor]:
    weigh = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weigh).sum(), wanted)]


@pytest.mark.parametrize("form", ["course", "dense"])
def test_a_synthesizer_s_short_way_is_its_long_one(form: str) -> None:
    torch.manual_seed(0)
    layer = Synthesizer(16, 2, 40, form=form).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(3, T, 16, dtype=torch.float64, requires_grad=True)
    wanted = (x, *(p for n, p in layer.named_parameters() if "proj" not in n))
    short, long = (
        layer.written_out(x, layer.values(x)),
        layer._learned_keys(x, layer.values(x), None),
    )
    ways = (short, long)
    for short, long in zip(*(gradients(way, *wanted) for way in ways), strict=True):
        torch.testing.assert_close(short, long)


@pytest.mark.parametrize("form", ["course", "dense"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_synthesizer_s_short_way_keeps_a_nan_where_it_is(form: str, bad: float) -> None:
    torch.manual_seed(0)
    layer = Synthesizer(16, 2, 40, form=form)
    x = torch.randn(2, T, 16)
    assert layer.is_short(x, layer.values(x), None)  # it is the short way that is tested
    whole = layer(x)
    x[1, 9, 3] = bad
    out = layer(x)
    torch.testing.assert_close(out[0], whole[0])
    torch.testing.assert_close(out[1, :9], whole[1, :9])
    assert not out[1, 9:].isfinite().any()


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.5])  # the last needs divisors
def test_a_performer_s_short_way_is_its_scan(kind: str, size: float) -> None:
    torch.manual_seed(0)
    layer = Performer(32, 2, 40, kind=kind, features=24).double()
    heads = [torch.randn(3, 2, T, 16, dtype=torch.float64) * size for _ in range(3)]
    q, k, v = (x.requires_grad_() for x in heads)
    turn, square, _ = layer.turn_and_offset(k, None)
    short = feature_pairs(q, k, v, turn, square)
    assert short is not None
    long = layer.mix(q, k, v, None)
    for one, other in zip(gradients(short, q, k, v), gradients(long, q, k, v), strict=True):
        torch.testing.assert_close(one, other)


def test_a_performer_s_short_way_gives_up_where_a_sum_would_be_lost() -> None:
    """A later key that is far heavier than the first must not push the first out of the numbers."""
    torch.manual_seed(0)
    layer = Performer(32, 2, 40, features=24)
    q, k, v = torch.randn(3, 1, 2, T, 16).unbind()
    k[:, :, 0] *= 30  # |k|^2/2 makes its features vanish beside the others
    turn, square, _ = layer.turn_and_offset(k, None)
    assert feature_pairs(q, k, v, turn, square) is None
    v[0, 0, 3, 0] = float("nan")
    k = torch.randn_like(k)
    assert feature_pairs(q, k, v, turn, square) is None  # it would reach the positions before it
    v[0, 0, 3, 0] = 0.0
    assert feature_pairs(q, k, v, turn, square) is not None
    # Along one direction, as no two vectors are by chance: the bound is reached by both.
    q[0, 1, 5] = k[0, 1, 2] = turn[3] * (0.99 * short_way.ROOM / float(turn[3].square().sum()))
    heavy = turn.clone()
    heavy[:3], heavy[4:] = heavy[:3] / 9, heavy[4:] / 9
    assert feature_pairs(q, k, v, heavy, 0.0) is None  # its weights would be infinite


@pytest.mark.parametrize("size", [1.5, 9.0])  # the second needs divisors from there on
def test_a_later_key_does_not_change_how_earlier_ones_are_rounded(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    torch.manual_seed(0)
    layer = Performer(64, 2, 160, features=64)
    x = torch.randn(2, 100, 64)
    other = x.clone()
    other[:, 60:] *= size
    found: list[Tensor | None] = []

    def watched(*given: Any) -> Tensor | None:
        found.append(feature_pairs(*given))
        return found[-1]

    monkeypatch.setattr(performer, "feature_pairs", watched)
    monkeypatch.setattr(short_way, "SMALLEST", 0.0)  # sums that are lost are no matter here
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert torch.equal(layer(x)[:, :60], layer(other)[:, :60])
    assert len(found) == 2 and all(one is not None for one in found)  # it was not the scan


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_rounded_products_cost_little_more_than_rounded_heads(
    kind: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast heads are rounded anyway, and the scan is exact from there on."""
    if try_bfloat16(1).failure:
        pytest.skip("this machine has no bfloat16 products")
    torch.manual_seed(0)
    layer = Performer(64, 2, 160, kind=kind, features=64)
    x = (torch.randn(3, 100, 64) * size).requires_grad_()
    exact = gradients(layer(x), x)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        rounded = gradients(layer(x).float(), x)
        monkeypatch.setattr(performer, "SHORT", 0)
        scanned = gradients(layer(x).float(), x)
    for one, short, long in zip(exact, rounded, scanned, strict=True):
        assert not torch.equal(short, long)  # two ways indeed
        wrong, usual = (float((one - other).norm().detach()) for other in (short, long))
        assert wrong < 2 * usual
