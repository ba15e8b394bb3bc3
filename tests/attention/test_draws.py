"""FAVOR+: the distribution of the random directions, and the errors that the paper computes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from whence.attention import MECHANISMS, Performer
from whence.attention.performer import draw_directions


def many(draw: str, features: int, width: int, count: int) -> Tensor:
    return torch.stack([draw_directions(features, width, draw, seed) for seed in range(count)])


@pytest.mark.parametrize("draw", ["iid", "orthogonal"])
def test_directions_have_mean_zero_and_covariance_one(draw: str) -> None:
    w = many(draw, features=11, width=4, count=3000).flatten(0, 1)
    error = 5 / math.sqrt(len(w))
    assert w.mean(0).abs().max() < error
    assert (w.mT @ w / len(w) - torch.eye(4)).abs().max() < 2 * error


def test_rows_of_a_block_are_orthogonal_with_gaussian_lengths() -> None:
    w = many("orthogonal", features=8, width=4, count=500)
    product = w @ w.mT
    within = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)) - torch.eye(8)
    assert (product * within).abs().max() < 1e-9
    assert product[:, :4, 4:].abs().max() > 0.1
    assert abs(float(w.norm(dim=-1).square().mean()) - 4.0) < 0.25


def kernel(kind: str, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Estimates of exp(x.y), one for each draw w (count, features, width)."""
    wx, wy, squares = w @ x, w @ y, (x.square().sum() + y.square().sum()) / 2
    if kind == "trig":
        return squares.exp() * (wx - wy).cos().mean(1)
    if kind == "positive":
        return (wx + wy - squares).exp().mean(1)
    return (-squares).exp() * (wx + wy).cosh().mean(1)


def formula(kind: str, m: int, x: Tensor, y: Tensor) -> float:
    """Mean squared error of iid draws, from the paper (Lemma 2 and Theorem 3)."""
    more = float((x + y).square().sum())
    less = float((x - y).square().sum())
    value = math.exp(float(x @ y))
    if kind == "trig":
        return math.exp(more) * value**-2 * (1 - math.exp(-less)) ** 2 / (2 * m)
    positive = math.exp(more) * value**2 * (1 - math.exp(-more)) / m
    return positive if kind == "positive" else positive * (1 - math.exp(-more)) / 2


@pytest.mark.parametrize("kind", ["trig", "positive", "hyperbolic"])
def test_errors_are_those_of_the_paper(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = 0.25 * torch.randn(2, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(20_000, 8, 6, generator=generator, dtype=torch.float64)
    estimates = kernel(kind, w, x, y)
    value = float((x @ y).exp())
    squares = (estimates - value).square()
    spread = float(squares.std()) / math.sqrt(len(w))
    assert abs(float(estimates.mean()) - value) < 5 * float(estimates.std()) / math.sqrt(len(w))
    assert abs(float(squares.mean()) - formula(kind, 8, x, y)) < 5 * spread


def test_orthogonal_draws_are_unbiased_and_better_than_the_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    width = features = 8
    x, y = 0.35 * torch.randn(2, width, generator=generator, dtype=torch.float64)
    w = many("orthogonal", features, width, 4000)
    value = float((x @ y).exp())
    estimates = kernel("positive", w, x, y)
    error = float((estimates - value).square().mean())
    spread = 4 * float((estimates - value).square().std()) / math.sqrt(len(w))
    squares = float(x.square().sum() + y.square().sum()) / 2
    gain = 2 * (features - 1) / (features * (width + 2)) * (value - math.exp(-squares)) ** 2
    assert abs(float(estimates.mean()) - value) < 4 * math.sqrt(error / len(w))
    assert error <= formula("positive", features, x, y) - gain + spread


def test_the_error_falls_with_the_root_of_the_number_of_features() -> None:
    x = torch.tensor([0.3, -0.2, 0.1, 0.2], dtype=torch.float64)
    errors = []
    for features in (4, 64):
        w = many("iid", features, 4, 1500)
        errors.append(float((kernel("positive", w, x, x) - (x @ x).exp()).square().mean().sqrt()))
    assert 3.4 < errors[0] / errors[1] < 4.6


def test_redrawing_changes_the_features_on_request_only() -> None:
    performer = Performer(16, 2, 20, features=8).eval()
    x = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    first = performer(x)
    assert torch.equal(performer(x), first)
    performer.redraw(5)
    assert not torch.equal(performer(x), first)
    assert performer.describe()["seed"] == 5
    other = Performer(16, 2, 20, features=8).eval()
    other.load_state_dict(performer.state_dict())
    assert torch.equal(other(x), performer(x))
    assert other.describe()["seed"] is None  # the directions are not those of its own seed


@pytest.mark.parametrize(
    ("mechanism", "options"), [("performer", {}), ("synthesizer", {"form": "fixed"})]
)
def test_a_layer_knows_whether_its_seed_drew_it(mechanism: str, options: dict[str, Any]) -> None:
    make = MECHANISMS[mechanism]
    one, two = (make(16, 2, 8, seed=seed, **options) for seed in (1, 2))
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        assert one.to(dtype).describe()["seed"] == 1
    two.load_state_dict(one.state_dict())
    assert two.describe()["seed"] is None
