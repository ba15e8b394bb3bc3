"""The causal scan and the running mass against their definitions."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from whence.attention import MECHANISMS, blocks, calm, laws, scan, slots, walk, whole
from whence.attention.mass import running_logsumexp
from whence.attention.scan import causal_scan
from whence.attention.summary import summarise

N, T, M, C = 2, 23, 5, 3


class Case(NamedTuple):
    a: Tensor | None
    b: Tensor | None
    c: Tensor | None
    query_log: Tensor | None
    key_log: Tensor | None
    side: str
    normalise: bool


def draw(*shape: int, seed: int, positive: bool = False) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x.abs() + 0.1 if positive else x).requires_grad_()


def cases() -> dict[str, Case]:
    features = [draw(N, T, M, seed=seed) for seed in range(4)]
    masses = [draw(N, T, M, seed=seed, positive=True) for seed in (4, 5)]
    c, q, k = (draw(N, T, C, seed=seed) for seed in (6, 7, 8))
    return {
        "plain": Case(*features[:2], c, None, None, "features", False),
        "normalised": Case(*masses, c, None, None, "features", True),
        "logarithms": Case(None, None, c, *features[2:], "features", False),
        "normalised logarithms": Case(None, None, c, *features[2:], "features", True),
        "half": Case(masses[0], None, c, *features[2:], "features", False),
        "both": Case(*masses, c, *features[2:], "features", True),
        "channels": Case(*features[:2], None, q, k, "channels", False),
    }


def naive(case: Case) -> Tensor:
    """The definition, with a T x T matrix."""
    triangle = torch.ones(T, T, dtype=torch.bool).tril()
    one = torch.ones(1, dtype=torch.float64)
    a, b, c = (one if x is None else x for x in case[:3])
    if case.query_log is not None and case.key_log is not None:
        if case.side == "features":
            a, b = a * case.query_log.exp(), b * case.key_log.exp()
        else:
            c = c * case.key_log.exp()
    kernel = (a @ b.mT).masked_fill(~triangle, 0.0)
    out = kernel @ c
    if case.side == "channels" and case.query_log is not None:
        out = out * case.query_log.exp()
    return out / kernel.sum(-1, keepdim=True) if case.normalise else out


def run(case: Case, chunk: int | None = None) -> Tensor:
    return causal_scan(
        *case[:3],
        query_log=case.query_log,
        key_log=case.key_log,
        side=case.side,
        normalise=case.normalise,
        chunk=chunk,
    )


def leaning(case: Case) -> Case:
    """Keys that jump by hundreds, within a chunk and across: no common reference exists."""
    assert case.query_log is not None and case.key_log is not None
    jump = torch.zeros(1, T, 1, dtype=torch.float64)
    jump[:, 7], jump[:, 8], jump[:, 15] = 100, 200, 205
    key_log = (case.key_log.detach() + jump).requires_grad_()
    level = key_log.detach().cummax(1).values
    query_log = (case.query_log.detach() - level).requires_grad_()
    return case._replace(query_log=query_log, key_log=key_log)


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
@pytest.mark.parametrize("segment", [1, 60, 1 << 19])
def test_scan_is_its_definition(
    name: str, chunk: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "SEGMENT", segment)
    case = cases()[name]
    out, expected = run(case, chunk), naive(case)
    torch.testing.assert_close(out, expected)
    given = [x for x in case[:5] if x is not None]
    up = draw(N, T, C, seed=9).detach()
    found = torch.autograd.grad(out, given, up)
    for ours, theirs in zip(found, torch.autograd.grad(expected, given, up), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "name", [name for name, case in cases().items() if case.key_log is not None]
)
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("segment", [30, 1 << 19])
def test_scan_with_keys_that_jump(
    name: str, chunk: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In short segments the walk begins without references and takes them up on its way."""
    monkeypatch.setattr(walk, "SEGMENT", segment)
    case = leaning(cases()[name])
    out, expected = run(case, chunk), naive(case)
    torch.testing.assert_close(out, expected)
    given = [x for x in case[:5] if x is not None]
    up = draw(N, T, C, seed=9).detach()
    found = torch.autograd.grad(out, given, up)
    for ours, theirs in zip(found, torch.autograd.grad(expected, given, up), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", cases())
def test_scan_passes_gradcheck(name: str) -> None:
    case = cases()[name]

    def function(*given: Tensor | None) -> Tensor:
        return run(Case(*given, case.side, case.normalise), 7)

    assert torch.autograd.gradcheck(function, case[:5], fast_mode=True)


@pytest.mark.parametrize(
    ("size", "key_size", "way"),
    [(0.5, 1.0, walk.CALMLY), (40.0, 1.0, walk.DIVIDED), (40.0, 15.0, walk.UNKNOWN)],
    ids=["calm", "divided", "walk"],
)
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
@pytest.mark.parametrize("segment", [1, 60, 200, 1 << 19])
def test_features_of_directions_are_their_definition(
    size: float,
    key_size: float,
    way: int,
    chunk: int,
    segment: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moderate keys go the quickest way, the largest the one with references; with padding."""
    monkeypatch.setattr(walk, "SEGMENT", segment)
    q, k, v = (draw(N, T, C, seed=seed) for seed in (0, 1, 2))
    q, k = ((x * y).detach().requires_grad_() for x, y in ((q, size), (k, key_size)))
    w = draw(M, C, seed=3).detach() / 4
    offset = torch.zeros(N, T, 1, dtype=torch.float64)
    offset[0, 2:6], offset[1, :3] = torch.inf, torch.inf
    taken = scan._scan(None, None, v, q, k, offset, w, 0.7, False, True, chunk, True)[3]
    assert taken == way
    found = causal_scan(
        None,
        None,
        v,
        query_log=q,
        key_log=k,
        offset=offset,
        directions=w,
        square=0.7,
        normalise=True,
        chunk=chunk,
    )
    logs = (k @ w.mT - 0.35 * k.square().sum(-1, keepdim=True)).mT
    kernel = ((q @ w.mT)[..., None] + logs[:, None]).logsumexp(2)
    seen = torch.ones(T, T, dtype=torch.bool).tril() & (offset == 0).mT
    # A row that sees nothing is zero.
    weights = kernel.masked_fill(~seen, -1e9).softmax(-1) * seen
    expected = weights @ v
    assert (found[1, :3] == 0).all()
    torch.testing.assert_close(found, expected)
    up = draw(N, T, C, seed=4).detach()
    ours, theirs = (torch.autograd.grad(y, (q, k, v), up) for y in (found, expected))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_scan_in_float32_holds_far_beyond_its_range() -> None:
    """A key e^1000 times the others: nothing overflows, nothing before it moves."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 300, 8, generator=generator) for _ in range(2))
    c = torch.randn(1, 300, 4, generator=generator)
    calm = causal_scan(None, None, c, query_log=q, key_log=k, normalise=True)
    for t in (1, 100, 299):
        wild = k.clone()
        wild[:, t] += 1000
        out = causal_scan(None, None, c, query_log=q, key_log=wild, normalise=True)
        assert out.isfinite().all()
        torch.testing.assert_close(out[:, :t], calm[:, :t], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(out[:, t:], c[:, t : t + 1].expand_as(out[:, t:]))


@pytest.mark.parametrize("size", [1.5, 3.0, 10.0, 30.0, 100.0])
def test_a_large_key_moves_nothing_before_it_whichever_way_is_taken(size: float) -> None:
    """Where its s is far above the others', theirs must not be lost; float32."""
    performer = MECHANISMS["performer"](64, 2, 200)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 200, 32, generator=generator) for _ in range(3))
    usual = performer.mix(q, k, v, None)
    for what in (k, -k):  # towards some directions, and away from them
        wild = k.clone()
        wild[:, :, 120] = size * what[:, :, 120]
        out = performer.mix(q, wild, v, None)
        assert out.isfinite().all()
        torch.testing.assert_close(out[:, :, :120], usual[:, :, :120], atol=2e-5, rtol=2e-5)
        exact = performer.double().mix(q.double(), wild.double(), v.double(), None)
        torch.testing.assert_close(out.double(), exact, atol=2e-4, rtol=2e-4)
        performer.float()


@pytest.mark.parametrize("size", [1.0, 3.0, 20.0, 50.0, 300.0])
@pytest.mark.parametrize(("length", "features"), [(1, 128), (70, 1), (70, 128)])
@pytest.mark.parametrize("hidden", [False, True])
def test_large_keys_in_float32_are_what_they_are_in_float64(
    size: float, length: int, features: int, hidden: bool
) -> None:
    """All keys alike in size, so that every scale may be lost at once; gradients too."""
    performer = MECHANISMS["performer"](64, 2, 70, features=features)
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(2, 2, length, 32, generator=generator) for _ in range(4)]
    up, scaled = draws.pop(), [draws[0], draws[1] * size, draws[2]]
    padding = torch.ones(2, length, dtype=torch.bool)
    padding[0, : length // 2] = False
    found = []
    for kind in (torch.float32, torch.float64):
        q, k, v = (x.to(kind).requires_grad_() for x in scaled)
        out = performer.to(kind).mix(q, k, v, padding if hidden else None)
        # Derivatives by large keys are a difference of large numbers.
        by_query, by_value = torch.autograd.grad(out, (q, v), up.to(kind))
        found.append([x.detach().double() for x in (out, by_query, by_value)])
    for single, double in zip(*found, strict=True):
        bound = 2e-4 * max(1.0, float(double.abs().max()))
        torch.testing.assert_close(single, double, atol=bound, rtol=2e-3)


def test_scan_without_keys_is_zero() -> None:
    case = cases()["normalised logarithms"]
    assert case.key_log is not None
    hidden = case.key_log.detach().clone()
    hidden[0, :6] = -torch.inf
    out = run(case._replace(key_log=hidden))
    assert (out[0, :6] == 0).all() and out.isfinite().all()


@pytest.mark.parametrize(
    ("size", "asked"), [(0.5, 0.5), (3.0, 3.0), (40.0, 40.0), (40.0, 0.5), (0.5, 40.0)]
)
@pytest.mark.parametrize("segment", [30, 1 << 19])
def test_whole_attention_and_summaries_are_their_definitions(
    size: float, asked: float, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where exponentials would overflow, from the start or only from some position on.

    Long keys among moderate queries turn references on that stay at zero.
    """
    monkeypatch.setattr(whole, "SEGMENT", segment)
    q, k = (draw(N, T, C, seed=seed) for seed in (0, 1))
    q, k = (asked * q).detach().requires_grad_(), k.detach().clone()
    k[:, 9:] *= size
    k.requires_grad_()
    v, w = draw(N, T, 4, seed=2), draw(M, C, seed=3)
    latents, up = draw(N, M, C, seed=4), draw(N, T, 4, seed=5).detach()
    offset = torch.zeros(N, T, 1, dtype=torch.float64)
    offset[0, :6] = torch.inf

    def compare(found: Tensor, expected: Tensor, given: list[Tensor], up: Tensor) -> None:
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(y, given, up) for y in (found, expected))
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two)

    logs = (k @ w.detach().mT - 0.35 * k.square().sum(-1, keepdim=True)).mT
    kernel = ((q @ w.detach().mT)[..., None] + logs[:, None]).logsumexp(2) - offset.mT
    found = whole.whole_attention(q, k, v, w.detach(), 0.7, offset)
    compare(found, kernel.softmax(-1) @ v, [q, k, v], up)
    pooled, held = summarise(latents, k, v, offset)
    weights = (latents @ k.mT - offset.mT).softmax(-1)
    both, expected = torch.cat([pooled, held], -1), weights @ torch.cat([k, v], -1)
    compare(both, expected, [latents, k, v], draw(N, M, C + 4, seed=6).detach())


def test_running_mass_is_logcumsumexp() -> None:
    k = (10 * draw(N, T, M, seed=0)).detach().requires_grad_()
    out, expected = running_logsumexp(k), k.logcumsumexp(1)
    torch.testing.assert_close(out, expected)
    up = draw(N, T, M, seed=1).detach()
    (ours,) = torch.autograd.grad(out, k, up)
    (theirs,) = torch.autograd.grad(expected, k, up)
    torch.testing.assert_close(ours, theirs)
    steep = (k.detach() + 50 * torch.arange(T)[:, None]).float()
    torch.testing.assert_close(running_logsumexp(steep), steep.double().logcumsumexp(1).float())


@pytest.mark.parametrize("mode", [m for m in laws.modes(MECHANISMS.values()) if m.causal], ids=str)
def test_chunks_do_not_show(mode: laws.Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = mode.make(), laws.inputs()
    expected = attention(x)
    for chunk, segment in ((1, 1), (3, 100), (8, 1 << 19)):
        monkeypatch.setattr(walk, "CHUNK", chunk)
        monkeypatch.setattr(calm, "CHUNK", chunk)
        monkeypatch.setattr(slots, "CHUNK", chunk)
        monkeypatch.setattr(walk, "SEGMENT", segment)
        monkeypatch.setattr(blocks, "HELD", segment)
        laws.same(attention(x), expected, f"chunks of {chunk}")


def test_a_bad_side_is_refused() -> None:
    case = cases()["plain"]
    with pytest.raises(ValueError, match="side must be"):
        run(case._replace(side="left"))
    with pytest.raises(ValueError, match="can be normalised"):
        run(cases()["channels"]._replace(normalise=True))


@pytest.mark.parametrize("size", [0.1, 3.0, 40.0])
def test_what_was_recorded_without_being_kept_is_walked_again(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that was traced without gradients may be asked for some later."""
    monkeypatch.setattr(walk, "SEGMENT", 40)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        (size * torch.randn(2, 37, 3, generator=generator, dtype=torch.float64)).requires_grad_()
        for _ in range(3)
    )
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    found = []
    for keep in (True, False):
        settings = (None, w, 1.0, False, True, 4, keep)
        out = scan._scan(None, None, v, q, k, *settings)[0]
        found.append(torch.autograd.grad(out.sin().sum(), (q, k, v)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_so_is_what_had_no_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "SEGMENT", 40)
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(2, 37, 3, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]
    found = []
    for keep in (True, False):
        out = scan._scan(*given, None, None, None, None, 0.0, False, False, 4, keep)[0]
        found.append(torch.autograd.grad(out.sin().sum(), given))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_a_forward_derivative_is_refused_and_not_lost() -> None:
    q, k, v = (torch.randn(2, 9, 3) for _ in range(3))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward derivative"):
        causal_scan(q, k, forward_ad.make_dual(v, v))
