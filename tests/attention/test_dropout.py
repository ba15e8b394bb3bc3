"""The quick dropout is a dropout: right share, right mean, independent elements."""

import pytest
import torch

from whence.attention.dropout import Dropout, draw_mask, drop


@pytest.mark.parametrize("probability", [0.1, 0.37, 0.9])
@pytest.mark.parametrize("size", [400_000, 400_001, 400_003])
def test_share_and_mean(probability: float, size: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        mask = draw_mask(torch.empty(size), probability)
    # Five standard deviations of a share of so many coins.
    slack = 5 * (probability * (1 - probability) / size) ** 0.5
    assert (mask == 0).float().mean().item() == pytest.approx(probability, abs=slack + 2**-16)
    assert mask.mean().item() == pytest.approx(1.0, abs=slack / (1 - probability) + 1e-4)
    assert set(mask.unique().tolist()) == {0.0, mask.max().item()}


def test_the_four_elements_of_one_draw_are_independent() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        dropped = (draw_mask(torch.empty(400_000), 0.3) == 0).double().view(-1, 4)
    correlation = torch.corrcoef(dropped.T) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 100_000**0.5
    assert (dropped.mean(0) - 0.3).abs().max() < 5 * (0.21 / 100_000) ** 0.5


def test_training_drops_evaluation_does_not() -> None:
    x = torch.ones(1000, requires_grad=True)
    layer = Dropout(0.5)
    assert torch.equal(layer.eval()(x), x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = layer.train()(x)
        torch.manual_seed(3)
        again = drop(x, 0.5, True)
    assert torch.equal(first, again)
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, first.detach())  # the gradient goes where the value went
