"""Keys and values of pooled positions, both at once, against their definition."""

import pytest
import torch
from torch import Tensor

from whence.attention import Linformer, pooled
from whence.attention.pooled import pooled_heads

B, T, S, D, m = 2, 5, 7, 4, 3


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def naive(
    x: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor, shared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    whole = source @ weight.mT[:, D:]
    queries = x @ weight.mT[:, :D]
    if bias is not None:
        queries, whole = queries + bias[:D], whole + bias[D:]
    of_keys, of_values = (slots, slots) if shared else slots.chunk(2, 1)
    return queries, of_keys.mT @ whole[..., :D], of_values.mT @ whole[..., D:]


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_pooled_heads_are_their_definition(rows: int, biased: bool, shared: bool) -> None:
    given = [
        draw(rows, T, D, seed=0),
        draw(rows, S, D, seed=1),
        draw(3 * D, D, seed=2),
        draw(3 * D, seed=3),
        draw(S, m if shared else 2 * m, seed=4),
    ]
    tensors = [x for i, x in enumerate(given) if biased or i != 3]
    ups = [draw(rows, n, D, seed=9).detach() for n in (T, m, m)]
    found = []
    for way in (pooled_heads, naive):
        parts = way(given[0], given[1], given[2], given[3] if biased else None, given[4], shared)
        first = torch.autograd.grad(parts, tensors, ups, create_graph=True)
        second = torch.autograd.grad(sum(x.sin().sum() for x in first), tensors)
        found.append((*parts, *first, *second))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_part_that_nobody_uses(which: int) -> None:
    given = [draw(1, T, D, seed=0), draw(1, S, D, seed=1), draw(3 * D, D, seed=2)]
    bias, slots = draw(3 * D, seed=3), draw(S, 2 * m, seed=4)
    found = []
    for way in (pooled_heads, naive):
        part = way(given[0], given[1], given[2], bias, slots, False)[which]
        wanted = (*given, bias, slots)
        found.append(
            torch.autograd.grad(part.sin().sum(), wanted, allow_unused=True, materialize_grads=True)
        )
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("form", ["free", "averaged"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_layer_is_the_same_in_the_plain_order(
    form: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = Linformer(16, 2, 12, causal=False, projected=5, form=form, shared=shared).double()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    source = torch.randn(2, 9, 16, dtype=torch.float64)
    called = []
    heads = pooled.pooled_heads

    def noted(*given: object) -> tuple[Tensor, Tensor, Tensor]:
        called.append(1)
        return heads(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("whence.attention.linformer.pooled_heads", noted)
    for about in (None, source):
        called.clear()
        found = layer(x, about)
        assert called
        real = torch.ones(2, 12 if about is None else 9, dtype=torch.bool)
        torch.testing.assert_close(found, layer(x, about, real))  # a mask that hides nothing
        called.clear()
        with torch.autocast("cpu", torch.bfloat16):  # whose products are rounded one by one
            layer.float()(x.float(), None if about is None else about.float())
        assert not called
        layer.double()


def test_gradients_stay_in_float32_beside_autocast() -> None:
    shapes = ((1, T, D), (1, S, D), (3 * D, D), (3 * D,), (S, 2 * m))
    given = [
        draw(*shape, seed=n).detach().float().requires_grad_() for n, shape in enumerate(shapes)
    ]
    expected, found = [], []
    for results, enabled in ((expected, False), (found, True)):
        parts = pooled_heads(*given, False)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            results += torch.autograd.grad(parts, given, [torch.ones_like(x) for x in parts])
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one, two)
