"""torch.compile takes every mechanism as one graph, and computes the same."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

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


class Watch(TorchDispatchMode):
    """Keeps what our own operators are called with, and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        if function.namespace == "whence":
            self.calls.append((function, args, found))
        return found


@pytest.mark.parametrize("length", [92, 93])  # whole blocks of bigbird's, and a broken one
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_results_lie_as_a_compiler_is_told(
    kind: type[Attention], causal: bool, length: int
) -> None:
    """Every operator of ours returns the sizes and strides that its stand-in promises.

    With many small blocks, so that bigbird's are gathered: few are torch's own attention.
    """
    options = {"block": 4, "window": 1, "random": 1} if kind.mechanism == "bigbird" else {}
    attention = kind(32, 4, 96, causal, **options)
    x = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with Watch() as watch:
        attention(x).square().sum().backward()
    # The others' short texts are torch's own operators, or eager walks.
    assert watch.calls or kind.mechanism not in ("bigbird", "performer")
    for function, given, found in watch.calls:
        bare = tree_map_only(torch.Tensor, torch.Tensor.detach, given)
        with FakeTensorMode() as mode:
            promised = function(*tree_map_only(torch.Tensor, mode.from_tensor, bare))
        for one, two in zip(tree_leaves(found), tree_leaves(promised), strict=True):
            # The stride of a single element is anything.
            strides = [
                [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]
                for x in (one, two)
            ]
            assert one.shape == two.shape and strides[0] == strides[1], str(function)
