"""Attention to running means, each way against the definition."""

import pytest
import torch
from torch import Tensor

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
