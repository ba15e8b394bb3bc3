"""Exact attention in ways of our own is torch's, whatever the shapes, or left to torch."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from whence.attention import MECHANISMS, BigBird, Linformer, Softmax, exact, laws, softmax, tiles
from whence.attention.exact import exact_attention, exact_by_blocks
from whence.attention.tiles import Graph

Heads = tuple[Tensor, Tensor, Tensor]


def small_tiles(patch: pytest.MonkeyPatch, wide: int = 4, held: int = 24) -> list[tuple[int, int]]:
    """Tiles for everything; returns where the shapes of their products are noted."""
    made: list[tuple[int, int]] = []
    multiply = tiles.multiply

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made.append((len(x), len(weight)))
        return multiply(x, weight, bias)

    for name, value in {"WIDE": wide, "HELD": held, "LEAST": 0, "multiply": noted}.items():
        patch.setattr(tiles, name, value)
    patch.setattr(exact, "NARROW", 0)
    patch.setattr(softmax, "SHORT", {})  # of which the weights are written out for gradients
    patch.setattr(exact, "onednn_pays", lambda: True)
    return made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    return small_tiles(monkeypatch)


@pytest.fixture
def all_together(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All heads at once, however few; without gradients only."""
    monkeypatch.setattr(tiles, "LEAST", math.inf)
    monkeypatch.setattr(exact, "FEW", 0)
    monkeypatch.setattr(exact, "onednn_pays", lambda: True)
    yield


def drawn(B: int = 2, H: int = 2, T: int = 11, S: int = 11, d: int = 3, c: int = 3) -> Heads:
    generator = torch.Generator().manual_seed(0)
    # Heads side by side, as projections lie in memory.
    q, k, v = (
        torch.randn(B, n, H, e, generator=generator).transpose(1, 2)
        for n, e in ((T, d), (S, d), (S, c))
    )
    return q, k, v


def same(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def reference(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~seen, -math.inf)
    found: Tensor = scores.softmax(-1) @ v
    return found


def with_gradients(way: Callable[..., Tensor], heads: Heads) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in heads]
    out = way(*leaves)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return out, *torch.autograd.grad(out, leaves, up)


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.booleans(),
    st.tuples(st.integers(1, 20), st.integers(1, 300)),
)
def test_tiles_of_any_size(
    shape: tuple[int, int, int, int],
    widths: tuple[int, int],
    causal: bool,
    of_tile: tuple[int, int],
) -> None:
    B, H, T, S = shape
    S = T if causal else S
    heads = drawn(B, H, T, S, *widths)
    seen = torch.ones(T, S, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    with pytest.MonkeyPatch.context() as patch:
        wide, held = of_tile
        made = small_tiles(patch, wide, max(wide * 2, held))
        found = with_gradients(lambda q, k, v: exact_attention(q, k, v, None, causal), heads)
    assert made
    for one, two in zip(found, with_gradients(lambda *h: reference(*h, seen), heads), strict=True):
        same(one, two)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("T", "S"), [(8, 8), (16, 16), (16, 24), (2, 2)])
def test_tiles_of_a_graph(made: list[tuple[int, int]], causal: bool, T: int, S: int) -> None:
    S = T if causal else S
    generator = torch.Generator().manual_seed(2)
    P = 2
    edges = (torch.rand(2, T // P, S // P, generator=generator) > 0.5).float()
    edges += torch.eye(T // P, S // P)
    edges[:, :, 0] = 1.0
    edges.clamp_(max=1.0)
    seen = edges.repeat_interleave(P, 1).repeat_interleave(P, 2).bool()
    if causal:
        seen = seen.tril()
    heads = drawn(T=T, S=S)

    hidden = torch.zeros_like(edges).masked_fill(edges == 0, -math.inf).repeat_interleave(P, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = exact_by_blocks(q, k, v, Graph(causal, block=P), lambda: hidden)
        assert found is not None
        return found

    for one, two in zip(
        with_gradients(ours, heads),
        with_gradients(lambda *h: reference(*h, seen), heads),
        strict=True,
    ):
        same(one, two)
    assert made


def test_a_block_is_never_in_two_tiles(made: list[tuple[int, int]]) -> None:
    for T, S, block in ((9, 8, 2), (8, 9, 2), (12, 12, 3)):  # the last: tiles of four
        made_edges: list[Tensor] = []
        edges = made_edges.pop  # would be an error
        assert exact_by_blocks(*drawn(T=T, S=S), Graph(False, block=block), edges) is None
    assert not made


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [20.0, 60.0])
def test_what_is_hidden_may_be_as_large_as_it_likes(
    made: list[tuple[int, int]], causal: bool, size: float
) -> None:
    """Its exponential is no number, and must not be multiplied by zero."""
    q, k, v = drawn(T=8, S=8, d=4)
    q, k = q * 0.1, k * 0.1
    # The first position would look at nothing but two that it does not see: of its own tile, where
    # only the triangle hides them, or of another.
    far = slice(2, 4) if causal else slice(6, 8)
    q[:, :, 0, 0], k[:, :, far, 0] = size, size
    q[:, :, 1:, 0] = 0.0
    seen = torch.ones(2, 8, 8, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    else:
        seen[:, :2, 6:] = False
    hidden = torch.zeros(2, 4, 8)
    hidden[:, 0, 6:] = -math.inf

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if causal:
            return exact_attention(q, k, v, causal=True)
        found = exact_by_blocks(q, k, v, Graph(False, block=2), lambda: hidden)
        assert found is not None
        return found

    found = with_gradients(ours, (q, k, v))
    assert made
    for one, two in zip(
        found, with_gradients(lambda *h: reference(*h, seen), (q, k, v)), strict=True
    ):
        assert one.isfinite().all()
        same(one, two)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 30), st.integers(1, 30)),
    st.booleans(),
    st.integers(1, 4000),
)
def test_all_heads_together(shape: tuple[int, int, int, int], causal: bool, held: int) -> None:
    B, H, T, S = shape
    S = T if causal else S
    q, k, v = drawn(B, H, T, S, 4, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "LEAST", math.inf)
        patch.setattr(exact, "FEW", 0)
        patch.setattr(exact, "HELD", held)
        patch.setattr(exact, "onednn_pays", lambda: True)
        patch.setattr(exact.F, "scaled_dot_product_attention", None)
        found = exact_attention(q, k, v, None, causal)
    same(found, F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def test_gradients_do_not_go_that_way(all_together: None) -> None:
    q, k, v = drawn()
    v.requires_grad_()
    out = exact_attention(q, k, v)
    assert out.grad_fn is not None and "Exact" not in out.grad_fn.name()


@pytest.mark.parametrize("way", ["made", "all_together"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4, 1e15])
def test_wild_logarithms_are_torchs(
    way: str, causal: bool, scale: float, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    q, k, v = drawn()
    found = exact_attention(q * scale, k * scale, v, None, causal)
    same(found, F.scaled_dot_product_attention(q * scale, k * scale, v, is_causal=causal))
    assert found.isfinite().all()


@pytest.mark.parametrize("way", ["made", "all_together"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_is_where_torch_has_it(
    way: str, causal: bool, place: int, bad: float, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    heads = drawn()
    heads[place][0, 1, 7] = bad
    found = exact_attention(*heads, None, causal)
    torch_has = F.scaled_dot_product_attention(*heads, is_causal=causal)
    # Of a value alone the tiles hand it to whole tiles; who calls looks at the last position.
    assert found[0, 1, -1].isnan().all() == torch_has[0, 1, -1].isnan().all()
    same(found[1], torch_has[1])
    same(found[0, 0], torch_has[0, 0])
    if place < 2:
        torch.testing.assert_close(found, torch_has, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_what_is_left_to_torch(made: list[tuple[int, int]]) -> None:
    q, k, v = drawn()
    mask = torch.zeros(11, 11)
    exact_attention(q, k, v, mask)
    exact_attention(*(x.double() for x in (q, k, v)))
    exact_attention(*(x.bfloat16() for x in (q, k, v)))
    exact_attention(q[:, :, :5], k, v, None, True)
    exact_attention(q[:, :, :0], k, v)
    with torch.autocast("cpu", torch.bfloat16):
        exact_attention(q, k, v)
    with pytest.warns(UserWarning, match="batching rule"):
        torch.vmap(exact_attention)(*(x[None] for x in (q, k, v)))
    with pytest.raises(RuntimeError):
        exact_attention(q, k[..., :2], v)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError):
        exact_attention(forward_ad.make_dual(q, q), k, v)
    assert not made
    exact_attention(q, k, v)
    assert made


def test_second_derivatives_are_refused(made: list[tuple[int, int]]) -> None:
    q, k, v = (x.requires_grad_() for x in drawn())
    (first,) = torch.autograd.grad(exact_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


def test_sizes_leave_no_small_rest() -> None:
    for T in range(1, 5000):
        size = tiles.even(T, 512)
        count = math.ceil(T / size)
        assert size <= 768 and T - (count - 1) * size > size - count


def test_who_takes_tiles(made: list[tuple[int, int]]) -> None:
    x = torch.randn(1, 24, 8, generator=torch.Generator().manual_seed(0))
    for layer in (
        Softmax(8, 2, 24),
        Softmax(8, 2, 24, causal=False),
        BigBird(8, 2, 24, block=4, window=1, random=1),
        Linformer(8, 2, 24, causal=False, projected=4),
    ):
        made.clear()
        layer(x)
        assert made, layer


MODES = laws.modes(MECHANISMS.values())


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mechanism_by_tiles(made: list[tuple[int, int]], mode: laws.Mode) -> None:
    """The laws are checked in float64, which torch's kernel has to itself."""
    found = []
    for kind in (torch.float32, torch.float64):
        attention, x = mode.make().to(kind), laws.inputs().to(kind).requires_grad_()
        out = attention(x)
        (gradient,) = torch.autograd.grad(out.sin().sum(), x)
        found.append((out, gradient))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.causal], ids=str)
def test_every_mechanism_is_causal_by_tiles(made: list[tuple[int, int]], mode: laws.Mode) -> None:
    attention, x = mode.make().float(), laws.inputs().float().requires_grad_()
    t = x.shape[1] // 2
    out = attention(x)
    (gradient,) = torch.autograd.grad(out[:, :t].square().sum(), x)
    assert not gradient[:, t:].any()
    for later in (x[:, t:] * 10, x[:, t:] * math.nan):
        with torch.no_grad():
            changed = attention(torch.cat([x[:, :t], later], 1))
        torch.testing.assert_close(changed[:, :t], out[:, :t].detach(), rtol=1e-4, atol=1e-4)
