"""Attention to running means, each way against the definition."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from whence.attention import means, slots, walk
from whence.attention.means import attend_means, by_scans, moderate
from whence.attention.short import slot_pairs

B, H, T, D, C, M = 2, 2, 23, 3, 4, 5


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def naive(q: Tensor, k: Tensor, v: Tensor, key_log: Tensor, value_log: Tensor) -> Tensor:
    """The definition, with the weights of every slot on every position at every time."""
    triangle = torch.ones(T, T, dtype=torch.bool).tril()[:, None]
    to_keys, to_values = (
        x.mT[:, :, None].masked_fill(~triangle, -torch.inf).softmax(-1)  # (.,.,T,M,T)
        for x in (key_log, value_log)
    )
    scores = ((q @ k.mT)[:, :, :, None] * to_keys).sum(-1)
    found: Tensor = (scores.softmax(-1)[:, :, :, None] @ to_values @ v[:, :, None])[:, :, :, 0]
    return found


@pytest.mark.parametrize("lead", [(1, 1), (1, H), (B, H)])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("way", ["pairs", "walk", "scans", "scans in the operator"])
@pytest.mark.parametrize(("chunk", "segment"), [(1, 1), (4, 60), (7, 200), (7, 1 << 18), (32, 30)])
def test_every_way_is_the_definition(
    lead: tuple[int, int],
    same: bool,
    way: str,
    chunk: int,
    segment: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "CHUNK", chunk)
    monkeypatch.setattr(walk, "SEGMENT", segment)
    attend = {"pairs": slot_pairs, "scans": by_scans}.get(way, attend_means)
    if attend is attend_means:
        monkeypatch.setattr(means, "SHORT", 0)
        quick = way == "walk"
        monkeypatch.setattr(means, "moderate", lambda *_: quick)
    q, k = draw(B, H, T, D, seed=0), draw(B, H, T, D, seed=1)
    v, key_log = draw(B, H, T, C, seed=2), draw(*lead, T, M, seed=3)
    value_log = key_log if same else draw(*lead, T, M, seed=4)
    given = [q, k, v, key_log, *([] if same else [value_log])]
    out, expected = attend(q, k, v, key_log, value_log), naive(q, k, v, key_log, value_log)
    torch.testing.assert_close(out, expected)
    up = draw(B, H, T, C, seed=5).detach()
    theirs = torch.autograd.grad(expected, given, up)
    for one, two in zip(torch.autograd.grad(out, given, up), theirs, strict=True):
        torch.testing.assert_close(one, two)
    with torch.no_grad():  # nothing is kept for a gradient then
        torch.testing.assert_close(attend(q, k, v, key_log, value_log), expected)


@pytest.mark.parametrize("same", [True, False])
def test_what_is_wild_has_the_gradients_of_the_two_scans(same: bool) -> None:
    """Slots that nothing has entered yet, or a row of, and logarithms that no float can hold."""
    q, k, v = (draw(B, H, T, D, seed=seed) for seed in range(3))
    logs = []
    for seed in range(3, 4 if same else 5):
        log = 30 * draw(B, H, T, M, seed=seed).detach()
        log[:, :, :7, 1] = -torch.inf
        log[0, :, :9] = -torch.inf  # padding
        log[1, 0, 20] = 800.0
        logs.append(log.requires_grad_())
    given = [q, k, v, *logs]
    out, expected = (f(q, k, v, logs[0], logs[-1]) for f in (attend_means, by_scans))
    torch.testing.assert_close(out, expected)
    assert out.isfinite().all()
    up = draw(B, H, T, D, seed=5).detach()
    found, theirs = (torch.autograd.grad(x, given, up) for x in (out, expected))
    for one, two in zip(found, theirs, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, two)


def test_what_is_not_moderate_takes_another_way() -> None:
    log, keys = torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 3)
    assert moderate(log, log, keys)
    for bad in (40.0, -40.0, -torch.inf, torch.nan):
        wild = log.clone()
        wild[0, 0, 2, 1] = bad
        assert not moderate(wild, log, keys) and not moderate(log, wild, keys)
    keys[0, 0, 1, 1] = torch.nan
    assert not moderate(log, log, keys)


@pytest.mark.parametrize("size", [T, 140])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_stays_within_its_numbers(size: int, kind: torch.dtype) -> None:
    """e^12 is moderate, and no number of float16."""
    log = torch.zeros(1, 1, size, M)
    log[0, 0, 5, 0] = 12.0
    q, k, v = (0.1 * torch.randn(1, H, size, D).to(kind) for _ in range(3))
    found = attend_means(q, k, v, log, log)
    expected = attend_means(*(x.double() for x in (q, k, v, log, log)))
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), expected, atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize(("size", "spread"), [(T, 1.0), (T, 40.0), (140, 1.0), (140, 40.0)])
def test_a_forward_derivative_is_refused_and_not_lost(size: int, spread: float) -> None:
    """By whichever way."""
    q, k, v = (torch.randn(1, H, size, D) for _ in range(3))
    log = spread * torch.randn(1, 1, size, M)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward derivative"):
        attend_means(forward_ad.make_dual(q, q), k, v, log, log)
    with forward_ad.dual_level():
        attend_means(q, k, v, log, log)  # of which nobody asks for one


@pytest.mark.parametrize("quick", [True, False])
def test_what_was_recorded_without_being_kept_is_walked_again(
    quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that was traced without gradients may be asked for some later."""
    monkeypatch.setattr(slots, "CHUNK", 4)
    monkeypatch.setattr(walk, "SEGMENT", 60)
    monkeypatch.setattr(means, "moderate", lambda *_: quick)
    given = [draw(H, T, D, seed=seed) for seed in range(3)] + [draw(H, T, M, seed=3)]
    up = draw(H, T, D, seed=5).detach()
    found = []
    for keep in (True, False):
        out = means._attend(*given, None, keep)[0]
        found.append(torch.autograd.grad(out, given, up))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
