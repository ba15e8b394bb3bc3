"""`linear` is torch's own linear map, whichever library multiplies."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad

from whence.attention import MECHANISMS, laws
from whence.attention import linear as module
from whence.attention.linear import Linear, linear, product

Made = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything goes to oneDNN, however small and whatever this machine would choose."""
    monkeypatch.setattr(module, "LEAST", 0)
    monkeypatch.setattr(module, "onednn_pays", lambda: True)
    yield


@pytest.fixture
def calls(onednn: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what was given to oneDNN."""
    found: list[tuple[int, ...]] = []
    multiply = module.multiply

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found.append((len(x), *weight.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(module, "multiply", counted)
    return found


def drawn(N: int = 6, D: int = 5, E: int = 7, seed: int = 0) -> Made:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((N, D), (E, D), (E,)))
    return x, weight, bias


def same(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "with gaps": lambda x: torch.cat([x, x], -1)[:, : x.shape[1]],
    "every other": lambda x: x.repeat_interleave(2, -1)[:, ::2],
    "one row for all": lambda x: x[:1].expand_as(x),
    "one number for all": lambda x: x[:1, :1].expand_as(x),
}


@pytest.mark.parametrize("of_weight", LAYOUTS)
@pytest.mark.parametrize("of_x", LAYOUTS)
@pytest.mark.parametrize("biased", [True, False])
def test_any_layout(onednn: None, of_x: str, of_weight: str, biased: bool) -> None:
    x, weight, bias = drawn()
    x, weight = LAYOUTS[of_x](x), LAYOUTS[of_weight](weight)
    given_bias = bias if biased else None
    same(linear(x, weight, given_bias), F.linear(x, weight, given_bias))


@pytest.mark.parametrize(
    "layout", [lambda b: b.repeat_interleave(2)[::2], lambda b: b[:1].expand(7)]
)
def test_a_bias_with_gaps(onednn: None, layout: Callable[[Tensor], Tensor]) -> None:
    x, weight, bias = drawn()
    same(linear(x, weight, layout(bias)), F.linear(x, weight, layout(bias)))


MISFITS = {
    "narrow": ((6, 4), (7, 5), (7,)),
    "wide": ((6, 9), (7, 5), (7,)),
    "a bias of another length": ((6, 5), (7, 5), (3,)),
}


@pytest.mark.parametrize("shapes", MISFITS.values(), ids=MISFITS)
def test_misfits_are_refused_as_torch_does(
    onednn: None, shapes: tuple[tuple[int, ...], ...]
) -> None:
    given = [torch.ones(shape) for shape in shapes]
    said = []
    for way in (linear, F.linear):
        with pytest.raises(RuntimeError) as refusal:
            way(*given)
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_a_nan_stays_in_its_row(onednn: None) -> None:
    x, weight, bias = drawn()
    x[2, 1], x[4] = float("nan"), float("inf")
    assert linear(x, weight, bias).isfinite().all(1).tolist() == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.integers(1, 3))
def test_any_size(N: int, D: int, E: int, B: int) -> None:
    x, weight, bias = drawn(N * B, D, E)
    x = x.view(B, N, D)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST", 0)
        patch.setattr(module, "onednn_pays", lambda: True)
        found = linear(x, weight, bias)
    assert found.shape == (B, N, E)
    same(found, F.linear(x, weight, bias))


@pytest.mark.parametrize("E", [3, 7])  # narrower than x, and wider: two ways for the weight
def test_gradients_and_theirs(onednn: None, E: int) -> None:
    found = []
    for way in (linear, F.linear):
        given = [x.requires_grad_() for x in drawn(E=E)]
        first = torch.autograd.grad(way(*given).sin().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), given)
        found.append((*first, *second))
    for one, two in zip(*found, strict=True):
        same(one, two)


def test_only_what_is_wanted_has_a_gradient(calls: list[tuple[int, ...]]) -> None:
    x, weight, bias = drawn()
    out = linear(x, weight.requires_grad_(), bias)
    out.sum().backward()
    assert weight.grad is not None and bias.grad is None
    assert len(calls) == 2  # forward, and the weight's


def test_a_gradient_that_is_one_number_for_all(onednn: None) -> None:
    x, weight, bias = drawn()
    x.requires_grad_()
    linear(x, weight, bias).sum().backward()
    assert x.grad is not None
    same(x.grad, weight.sum(0).expand_as(x))


@pytest.mark.parametrize("moved", [(0,), (1,), (2,), (0, 1, 2)])
def test_forward_derivative(onednn: None, moved: tuple[int, ...]) -> None:
    given, directions = drawn(), drawn(seed=1)

    def of(way: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def function(*some: Tensor) -> Tensor:
            full = list(given)
            for place, tensor in zip(moved, some, strict=True):
                full[place] = tensor
            return way(*full)

        return function

    points, steps = ([made[i] for i in moved] for made in (given, directions))
    found, wanted = (
        torch.func.jvp(of(way), tuple(points), tuple(steps)) for way in (linear, F.linear)
    )
    same(found[0], wanted[0])
    same(found[1], wanted[1])


@pytest.mark.parametrize("recording", [True, False])
def test_dual_numbers(onednn: None, recording: bool) -> None:
    (x, weight, bias), (step, _, _) = drawn(), drawn(seed=1)
    with torch.set_grad_enabled(recording), forward_ad.dual_level():
        moved = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, step), weight, bias)).tangent
        assert moved is not None
        same(moved, step @ weight.mT)


def test_batches_of_torch_func(onednn: None) -> None:
    x, weight, bias = drawn()
    many = torch.stack([x, 2 * x, x.sin()])
    with torch.no_grad():
        same(torch.vmap(lambda one: linear(one, weight, bias))(many), F.linear(many, weight, bias))

    def loss(way: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda one: way(one, weight, bias).sin().sum()

    each, wanted = (torch.vmap(torch.func.grad(loss(way)))(many) for way in (linear, F.linear))
    same(each, wanted)
    whole = torch.func.jacrev(lambda w: linear(x, w, bias))(weight)
    wanted = torch.func.jacrev(lambda w: F.linear(x, w, bias))(weight)
    same(whole, wanted)


def test_many_gradients_at_once(onednn: None) -> None:
    x, weight, bias = drawn()
    x.requires_grad_()
    out = linear(x, weight, bias)
    several = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(0))
    (found,) = torch.autograd.grad(out, x, several, is_grads_batched=True)
    same(found, several @ weight)


def test_products_in_parts_of_a_batch(onednn: None) -> None:
    for B in (0, 1, 3):
        left, right = torch.randn(B, 4, 5), torch.randn(B, 5, 6)
        same(product(left, right), left @ right)
    same(product(left[:1], right), left[:1] @ right)


def test_what_onednn_is_not_given(calls: list[tuple[int, ...]]) -> None:
    x, weight, bias = drawn()
    linear(x.double(), weight.double(), bias.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
    torch.backends.mkldnn.enabled = False  # `flags` warns where there is no GPU of Intel's
    try:
        linear(x, weight, bias)
    finally:
        torch.backends.mkldnn.enabled = True
    linear(x.to("meta"), weight.to("meta"), bias.to("meta"))
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        linear(x.double(), weight, bias)
    assert calls == []
    linear(x, weight, bias)
    assert calls == [(6, 7, 5)]


def test_gradients_stay_in_float32_beside_autocast(onednn: None) -> None:
    given = [x.requires_grad_() for x in drawn(64, 64, 64)]
    out, plain = linear(*given), F.linear(*given)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.square().sum(), given)
    wanted = torch.autograd.grad(plain.square().sum(), given)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_the_operator_that_a_compiler_sees(
    biased: bool, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onednn_pays", lambda: pays)
    x, weight, bias = (x.requires_grad_() for x in drawn())
    given = (x, weight, bias if biased else None)
    torch.library.opcheck(module._opaque, given)
    found, wanted = module._opaque(*given), F.linear(*given)
    same(found, wanted)
    leaves = [x for x in given if x is not None]
    up = drawn()[0] @ drawn()[1].mT
    for one, two in zip(
        torch.autograd.grad(found, leaves, up), torch.autograd.grad(wanted, leaves, up), strict=True
    ):
        same(one, two)


def test_compiled_code_has_the_operator(onednn: None) -> None:
    torch._dynamo.reset()
    x, weight, bias = drawn(9)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(linear, backend=backend, fullgraph=True)
    same(compiled(x, weight, bias), F.linear(x, weight, bias))
    assert any("whence" in name for name in seen)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_large_layers_compile_as_one_graph(
    onednn: None, mechanism: str, causal: bool, rows: int
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    attention = MECHANISMS[mechanism](16, 2, 40, causal)
    x = torch.randn(rows, 40, 16)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), attention(x), rtol=1e-4, atol=1e-5)


def test_small_products_are_not_worth_the_call(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST", 6 * 7 * 5 + 1)
    linear(*drawn())
    assert calls == []
    linear(*drawn(N=7))
    assert len(calls) == 1


def test_a_module_with_torchs_names() -> None:
    layer = Linear(5, 7)
    assert isinstance(layer, nn.Linear) and set(layer.state_dict()) == {"weight", "bias"}


@pytest.fixture
def untried() -> Iterator[None]:
    """A process that has not found out yet."""
    module._known.clear()
    yield
    module._known.clear()


def wait(milliseconds: float) -> None:
    """Keep the processor, as a product does."""
    import time

    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:
        pass


def stands_in(delay: float, error: float = 0.0) -> Callable[..., Tensor]:
    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wait(delay)
        return x @ weight.mT + error

    return multiply


@pytest.mark.parametrize(
    ("delay", "error", "wanted"), [(0.0, 0.0, True), (20.0, 0.0, False), (0.0, 0.1, False)]
)
def test_it_has_to_be_quicker_and_right(
    untried: None, monkeypatch: pytest.MonkeyPatch, delay: float, error: float, wanted: bool
) -> None:
    def slow(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wait(10.0)
        return x @ weight.mT

    monkeypatch.setattr(module.F, "linear", slow)
    monkeypatch.setattr(module, "multiply", stands_in(delay, error))
    assert module.onednn_pays() is wanted


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_a_torch_without_the_operator(
    untried: None, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def missing(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise error("no such operator")

    monkeypatch.setattr(module, "multiply", missing)
    assert not module.onednn_pays()
    x, weight, bias = drawn(256, 256, 256)
    same(linear(x, weight, bias), F.linear(x, weight, bias))


def test_nobody_elses_randomness_is_touched(untried: None) -> None:
    before = torch.get_rng_state()
    module.onednn_pays()
    assert torch.equal(before, torch.get_rng_state())


MODES = laws.modes(MECHANISMS.values())


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mechanism_in_float32(calls: list[tuple[int, ...]], mode: laws.Mode) -> None:
    """The laws are checked in float64, which MKL has to itself; this is the other library."""
    found = []
    for kind in (torch.float32, torch.float64):
        attention, x = mode.make().to(kind), laws.inputs().to(kind).requires_grad_()
        out = attention(x)
        (gradient,) = torch.autograd.grad(out.sin().sum(), x)
        found.append((out, gradient))
    assert calls
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.causal], ids=str)
def test_every_mechanism_is_causal_in_float32(onednn: None, mode: laws.Mode) -> None:
    attention, x = mode.make().float(), laws.inputs().float().requires_grad_()
    t = x.shape[1] // 2
    out = attention(x)
    (gradient,) = torch.autograd.grad(out[:, :t].square().sum(), x)
    assert not gradient[:, t:].any()
    for later in (x[:, t:] * 10, x[:, t:] * float("nan")):
        with torch.no_grad():
            changed = attention(torch.cat([x[:, :t], later], 1))
        torch.testing.assert_close(changed[:, :t], out[:, :t].detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_picture_in_float32(onednn: None, mode: laws.Mode) -> None:
    found = []
    for kind in (torch.float32, torch.float64):
        attention, x = mode.make().to(kind), laws.inputs().to(kind).requires_grad_()
        picture = attention.pattern(x)
        # A fixed pattern depends on nothing, a random one on parameters alone.
        total = picture.square().sum() + 0 * x.sum()
        found.append((picture, *torch.autograd.grad(total, x)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-3)


def test_compiled_forward_derivatives_are_not_lost(onednn: None) -> None:
    torch._dynamo.reset()
    x, weight = torch.randn(2048, 64), torch.randn(64, 64)

    def moved(x: Tensor) -> Tensor:
        return torch.func.jvp(lambda y: linear(y, weight), (x,), (x,))[1]

    torch.testing.assert_close(torch.compile(moved, backend="eager")(x), x @ weight.mT)
