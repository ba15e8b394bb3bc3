"""The lab's functions against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import whence.lab as lab
from whence.attention import Rotation
from whence.lab import attend, multi_head, sample_keys, single_head, weights


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_weights_and_attend_follow_the_definition():
    query, keys, values = draw(5, seed=1), draw(7, 5, seed=2), draw(7, 3, seed=3)
    raised = [math.exp(float(key @ query)) for key in keys]
    by_hand = torch.tensor([one / sum(raised) for one in raised], dtype=torch.float64)
    torch.testing.assert_close(weights(query, keys), by_hand)
    expected = sum(share * value for share, value in zip(by_hand, values, strict=True))
    torch.testing.assert_close(attend(query, keys, values), expected)


@given(st.integers(1, 20), st.integers(1, 10), st.floats(0.01, 500), st.integers(0, 10**6))
def test_weights_are_a_distribution(n, d, scale, seed):
    a = weights(scale * draw(d, seed=seed), draw(n, d, seed=seed + 1))
    assert float(a.min()) >= 0
    assert float(a.sum()) == pytest.approx(1)


def test_sampled_keys_have_the_asked_mean_and_covariance():
    root = draw(3, 4, 4, seed=5)
    covariances = root @ root.transpose(-2, -1)
    means = draw(3, 4, seed=6)
    keys = sample_keys(means, covariances, seeded(7), samples=60_000)
    torch.testing.assert_close(keys.mean(0), means, atol=0.05, rtol=0)
    centred = keys - keys.mean(0)
    measured = torch.einsum("snd,sne->nde", centred, centred) / len(keys)
    torch.testing.assert_close(measured, covariances, atol=0.2, rtol=0.05)


def test_a_singular_covariance_stretches_the_key_along_its_mean():
    means = lab.orthonormal(3, 5, seeded())[0]
    covariances = lab.stretched(means, 0, alpha=0.0)
    keys = sample_keys(means, covariances, seeded(1), samples=20_000)
    lengths = keys[:, 0] @ means[0]
    torch.testing.assert_close(keys[:, 0], lengths.unsqueeze(1) * means[0])
    torch.testing.assert_close(keys[:, 1:], means[1:].expand(20_000, 2, 5))
    assert float(lengths.mean()) == pytest.approx(1, abs=0.02)
    assert float(lengths.var()) == pytest.approx(0.5, abs=0.02)


def test_a_generator_decides_and_nothing_else():
    means, covariances = draw(2, 3), torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    state = torch.get_rng_state()
    first = sample_keys(means, covariances, seeded(4), 5)
    torch.manual_seed(99)
    assert torch.equal(first, sample_keys(means, covariances, seeded(4), 5))
    torch.set_rng_state(state)


def test_two_heads_are_the_mean_of_two_single_heads():
    keys, values = draw(6, 4, 3), draw(4, 2, seed=1)
    one, two = draw(3, seed=2), draw(3, seed=3)
    mean = (single_head(one, keys, values) + single_head(two, keys, values)) / 2
    torch.testing.assert_close(multi_head([one, two], keys, values), mean)


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 10**6))
def test_orthonormal_rows(count, more, seed):
    rows = lab.orthonormal(count, count + more, seeded(seed), batch=3)
    eye = torch.eye(count, dtype=torch.float64).expand(3, count, count)
    torch.testing.assert_close(rows @ rows.transpose(-2, -1), eye)


def test_orthonormal_draws_lean_to_no_side():
    rows = lab.orthonormal(4, 4, seeded(), batch=20_000)
    assert float(rows.mean(0).abs().max()) < 0.02
    assert float(rows.square().mean(0).sub(0.25).abs().max()) < 0.01


def test_projection_is_one():
    a, b = lab.subspaces(6, 2, 3, seeded(), batch=4)
    m = lab.projection(a)
    torch.testing.assert_close(m @ m, m)
    torch.testing.assert_close(m @ b, torch.zeros_like(b), atol=1e-12, rtol=0)


def test_both_constructions_point_at_the_right_words():
    u = lab.words(3.0, 7, seeded())
    for pointing in (lab.pointing_first, lab.pointing_second):
        c = lab.self_attention(u.sentence(), *pointing(u), lab.value_keeping_b(u))
        torch.testing.assert_close(c[1], u.b, atol=1e-9, rtol=0)
        torch.testing.assert_close(c[0], u.b - u.c, atol=1e-9, rtol=0)


def test_causal_self_attention_does_not_look_ahead():
    x, key, query, value = draw(5, 4), *draw(3, 4, 4, seed=1)
    changed = x.clone()
    changed[3:] += 1
    before = lab.self_attention(x, key, query, value, causal=True)
    after = lab.self_attention(changed, key, query, value, causal=True)
    assert torch.equal(before[:3], after[:3])
    assert not torch.equal(before[3:], after[3:])


def test_rotation_agrees_with_the_mechanisms():
    x = draw(2, 3, 9, 8)
    theirs = Rotation(8, context=16)(x.float())
    torch.testing.assert_close(theirs.double(), lab.rotate(x, torch.arange(9)), atol=1e-5, rtol=0)


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError):
        _ = lab.attention_of_mine
    assert all(hasattr(lab, name) for name in lab.__all__)
