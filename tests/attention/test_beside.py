"""Queries, keys and values as parts of one product, and gradients that lie as it does."""

import pytest
import torch
from torch import Tensor

from whence.attention import Softmax, beside
from whence.attention.beside import apart, as_one


@pytest.fixture(autouse=True)
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "onednn_pays", lambda: True)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_parts_that_were_made_beside_each_other_are_one() -> None:
    heads = [drawn(2, 3, 5, 4) for _ in range(3)]
    room = beside.beside(*heads)
    for place, x in zip(room, heads, strict=True):
        place.copy_(x)
    parts = [x.transpose(1, 2) for x in room]
    joined = as_one(*parts)
    assert joined is not None and joined.data_ptr() == parts[0].data_ptr()
    assert torch.equal(joined, torch.stack([x.transpose(1, 2) for x in heads], 2))


def test_others_are_not() -> None:
    room = [x.transpose(1, 2) for x in beside.beside(*[drawn(2, 3, 5, 4)] * 3)]
    assert as_one(*room[::-1]) is None  # in another order
    assert as_one(room[0], room[1], room[2].clone()) is None
    assert as_one(room[0], room[1], room[2].double()) is None
    assert as_one(*(x[:, :4] for x in room)) is None  # with gaps
    unlike = beside.beside(drawn(2, 3, 5, 4), drawn(2, 3, 7, 4))
    assert [x.shape[2] for x in unlike] == [5, 7]
    assert as_one(*(x.transpose(1, 2) for x in unlike)) is None


@pytest.mark.parametrize("used", [(0, 1, 2), (0, 2), (1,), ()])
@pytest.mark.parametrize("together", [True, False])
def test_gradients_are_those_of_unbind(used: tuple[int, ...], together: bool) -> None:
    """Made beside each other or not, of all parts or of some, and by hand or by torch."""
    ups = [drawn(2, 5, 3, 4) + number for number in range(3)]
    if together:
        room = [x.transpose(1, 2) for x in beside.beside(*[drawn(2, 3, 5, 4)] * 3)]
        ups = [place.copy_(up) for place, up in zip(room, ups, strict=True)]
    found = []
    for take in (apart, lambda x: x.unbind(2)):
        joined = drawn(2, 5, 3, 3, 4).requires_grad_()
        parts = take(joined)
        given = [joined.square().sum() * 0.0]  # so that there is a gradient without any part
        torch.autograd.backward(
            [*given, *(parts[n] for n in used)], [torch.ones(()), *(ups[n] for n in used)]
        )
        assert joined.grad is not None
        found.append(joined.grad)
    assert torch.equal(*found)


def test_a_gradient_of_the_gradient_is_that_of_unbind() -> None:
    found = []
    for take in (apart, lambda x: x.unbind(2)):
        joined = drawn(2, 5, 3, 3, 4).double().requires_grad_()
        q, k, v = take(joined)
        (first,) = torch.autograd.grad((q * k * v).sum(), joined, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), joined)[0])
    torch.testing.assert_close(*found)


def test_a_gradient_that_two_layers_add_to_is_right() -> None:
    """The room of one is not the other's: what autograd adds up may be written in place."""
    layer = Softmax(64, 2, 300)
    x = drawn(1, 300, 64).requires_grad_()
    one = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    two = torch.autograd.grad(
        layer(x).square().sum() + layer(x).square().sum(), [x, *layer.parameters()]
    )
    for single, double in zip(one, two, strict=True):
        torch.testing.assert_close(2 * single, double)


def test_many_gradients_at_once() -> None:
    layer = Softmax(16, 2, 20)
    x = drawn(1, 12, 16).requires_grad_()
    y = layer(x)
    ups = drawn(3, *y.shape)
    (found,) = torch.autograd.grad(y, x, ups, is_grads_batched=True)
    for one, up in zip(found, ups, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(layer(x), x, up)[0])
