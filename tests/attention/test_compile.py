"""torch.compile takes every mechanism as one graph, and computes the same."""

import pytest
import torch

from whence.attention import MECHANISMS, Attention


@pytest.mark.slow
@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_compiled_is_eager(kind: type[Attention]) -> None:
    torch._dynamo.reset()
    attention = kind(32, 2, 80)
    x = torch.randn(2, 77, 32, generator=torch.Generator().manual_seed(0))
    expected = attention(x)
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in attention.parameters()]
    attention.zero_grad()
    compiled = torch.compile(attention, fullgraph=True)
    y = compiled(x)
    y.square().sum().backward()
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    for parameter, gradient in zip(attention.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_compiled_a_nan_reaches_nothing_before_it(kind: type[Attention], dropout: float) -> None:
    """Traced as for a compiler and then run as it is: the branches are the compiler's."""
    torch._dynamo.reset()
    attention = kind(16, 2, 40, dropout=dropout)
    x = torch.randn(1, 30, 16, generator=torch.Generator().manual_seed(0))
    x[0, 20, 3] = torch.nan
    y = torch.compile(attention, backend="eager")(x)
    assert y[:, :20].isfinite().all() and y[:, 20:].isnan().all()


@pytest.mark.parametrize("mechanism", ["softmax", "rope", "bigbird"])
def test_compiled_a_nan_of_a_value_alone_is_not_erased(mechanism: str) -> None:
    torch._dynamo.reset()
    attention = MECHANISMS[mechanism](16, 2, 40)
    with torch.no_grad():
        attention.qkv.weight[2 * 16 :] = torch.nan
    x = torch.randn(1, 30, 16, generator=torch.Generator().manual_seed(0))
    assert torch.compile(attention, backend="eager")(x).isnan().all()
