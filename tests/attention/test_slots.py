"""Attention to slots a piece at a time against its definition."""

import pytest
import torch
from torch import Tensor

from whence.attention import slots, walk
from whence.attention.short import slot_pairs
from whence.attention.slots import attend_slots, moderate

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
@pytest.mark.parametrize(("chunk", "segment"), [(1, 1), (4, 60), (7, 200), (7, 1 << 18), (32, 30)])
def test_slots_are_their_definition(
    lead: tuple[int, int], same: bool, chunk: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CHUNK", chunk)
    monkeypatch.setattr(walk, "SEGMENT", segment)
    q, k = draw(B, H, T, D, seed=0), draw(B, H, T, D, seed=1)
    v, key_log = draw(B, H, T, C, seed=2), draw(*lead, T, M, seed=3)
    value_log = key_log if same else draw(*lead, T, M, seed=4)
    given = [q, k, v, key_log, *([] if same else [value_log])]
    out, short, expected = (
        f(q, k, v, key_log, value_log) for f in (attend_slots, slot_pairs, naive)
    )
    up = draw(B, H, T, C, seed=5).detach()
    theirs = torch.autograd.grad(expected, given, up)
    for found in (out, short):
        torch.testing.assert_close(found, expected)
        for one, two in zip(torch.autograd.grad(found, given, up), theirs, strict=True):
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
