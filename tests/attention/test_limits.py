"""What each mechanism becomes at its edge: mostly exact softmax."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from whence.attention import (
    Attention,
    BigBird,
    Linformer,
    Perceiver,
    Performer,
    Rotation,
    Softmax,
    Synthesizer,
    base,
)

T, WIDTH, HEADS = 21, 16, 2


def make(kind: type[Attention], /, **options: Any) -> Attention:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(WIDTH, HEADS, **{"context": T, **options}).double().eval()


def inputs(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, T, WIDTH, generator=generator, dtype=torch.float64)


def twin(attention: Attention, causal: bool) -> Attention:
    softmax = make(Softmax, causal=causal)
    shared = {k: v for k, v in attention.state_dict().items() if k.startswith(("qkv", "proj."))}
    softmax.load_state_dict(shared)
    return softmax


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block", [1, 4, 50])
def test_bigbird_with_a_window_as_long_as_the_text_is_softmax(block: int, causal: bool) -> None:
    bird = make(BigBird, causal=causal, block=block, window=2 * T + 2, random=0, leading=0)
    torch.testing.assert_close(bird(inputs()), twin(bird, causal)(inputs()))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["free", "averaged"])
def test_linformer_with_the_identity_is_softmax(form: str, causal: bool) -> None:
    linformer = make(Linformer, causal=causal, form=form, projected=T, shared=True)
    identity = torch.eye(T, dtype=torch.float64)
    linformer.project_keys.data = (identity if form == "free" else identity.log())[None]
    for x in (inputs(), inputs()[:, :13]):  # of a shorter text some slots stay empty
        torch.testing.assert_close(linformer(x), twin(linformer, causal)(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["free", "averaged"])
def test_linformer_may_project_positions_first(form: str, bias: bool) -> None:
    """E (x W) = (E x) W, bias and padding included, for all lengths: the plain order is `mix`."""
    linformer = make(Linformer, causal=False, form=form, projected=5, bias=bias)
    assert not bias or linformer.qkv.bias.abs().max() > 0
    other = inputs(2)[:, :13]
    ends = torch.arange(13) < torch.tensor([[13], [4]])
    for source, padding in ((None, None), (other, None), (other, ends), (inputs()[:, :1], None)):
        x = inputs()
        plain = linformer.project(linformer.mix(*linformer.heads_of(x, source), padding))
        torch.testing.assert_close(linformer(x, source, padding), plain)


def test_perceiver_with_one_latent_gives_every_position_the_same() -> None:
    y = make(Perceiver, causal=False, latents=1)(inputs())
    torch.testing.assert_close(y, y[:, :1].expand_as(y))


def test_perceiver_of_the_course_reads_no_further_than_its_bottleneck() -> None:
    perceiver, x = make(Perceiver, form="course", latents=6), inputs()
    assert perceiver.pattern(x)[..., 6:].abs().max() == 0
    assert make(Perceiver, latents=6).pattern(x)[:, :, -1].min() > 0


def test_cross_attention_of_all_positions_is_self_attention() -> None:
    """So a bottleneck of as many latents as positions, made of these, is a causal transformer."""
    softmax, x = make(Softmax), inputs()
    torch.testing.assert_close(softmax(x, source=x), softmax(x))


@pytest.mark.parametrize("form", ["random", "fixed", "factorised-random"])
def test_random_synthesizer_does_not_look_at_the_text(form: str) -> None:
    synthesizer = make(Synthesizer, form=form)
    torch.testing.assert_close(synthesizer.pattern(inputs()), synthesizer.pattern(inputs(2)))


@pytest.mark.parametrize("form", ["dense", "factorised-dense", "course"])
def test_a_row_of_dense_synthesizer_depends_on_its_own_position_only(form: str) -> None:
    synthesizer, x = make(Synthesizer, form=form, causal=False), inputs()
    changed = inputs(2)
    changed[:, 5] = x[:, 5]
    before, after = synthesizer.pattern(x), synthesizer.pattern(changed)
    torch.testing.assert_close(before[:, :, 5], after[:, :, 5])
    assert not torch.allclose(before[:, :, 6], after[:, :, 6])


def test_fixed_synthesizer_learns_no_logits_and_random_does() -> None:
    names = dict(make(Synthesizer, form="fixed").named_parameters())
    assert not any("logits" in name for name in names)
    assert "logits_random" in dict(make(Synthesizer, form="random").named_parameters())


def test_mixture_of_softmax_alone_is_softmax() -> None:
    synthesizer = make(Synthesizer, form="mixture", members=["softmax"])
    softmax = make(Softmax)
    weight, bias = (
        torch.cat([getattr(synthesizer.query_key, name), getattr(synthesizer.value, name)])
        for name in ("weight", "bias")
    )
    state = {"qkv.weight": weight, "qkv.bias": bias}
    state |= {"proj." + k: v for k, v in synthesizer.proj.state_dict().items()}
    softmax.load_state_dict(state)
    torch.testing.assert_close(synthesizer(inputs()), softmax(inputs()))


def test_course_synthesizer_has_the_layout_of_the_course() -> None:
    attention = Synthesizer(256, 8, 128, form="course", columns=127)
    shapes = {name: tuple(parameter.shape) for name, parameter in attention.named_parameters()}
    square = {f"{name}.weight": (256, 256) for name in ("w1", "value", "proj")}
    biases = {f"{name}.bias": (256,) for name in ("w1", "value", "proj")}
    assert shapes == {**square, **biases, "w2": (32, 127), "b2": (127,)}
    assert 3_323_392 - 4 * (263_168 - sum(p.numel() for p in attention.parameters())) == 3_076_988
    assert float(attention.w2.detach().abs().max()) <= 1e-3
    with pytest.raises(ValueError, match="context of 127"):
        attention(torch.zeros(1, 128, 256))


def test_course_synthesizer_computes_the_formula() -> None:
    attention, x = make(Synthesizer, form="course"), inputs()
    attention.w2.data.normal_()
    hidden = torch.relu(attention.w1(x)).view(2, T, HEADS, -1).transpose(1, 2)
    logits = hidden @ attention.w2 + attention.b2
    logits = logits.masked_fill(torch.ones(T, T).tril() == 0, -1e10)
    mixed = logits.softmax(-1) @ attention.values(x)
    torch.testing.assert_close(attention(x), attention.proj(mixed.transpose(1, 2).flatten(2)))


def test_rotation_turns_adjacent_pairs_by_the_angle_of_the_position() -> None:
    size, rotation = 6, Rotation(6, 50).double()
    x = torch.randn(1, 1, 50, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = rotation(x)
    torch.testing.assert_close(y[..., 0, :], x[..., 0, :])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    for t in (1, 49):
        for i in range(size // 2):
            angle = torch.tensor(t * 10000 ** (-2 * i / size), dtype=torch.float64)
            even, odd = x[0, 0, t, 2 * i], x[0, 0, t, 2 * i + 1]
            found = y[0, 0, t, 2 * i : 2 * i + 2]
            expected = torch.stack(
                [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
            )
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_rotated_scores_depend_on_the_distance_only() -> None:
    rotation = Rotation(8, 40).double()
    one = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k = (rotation(x.expand(1, 1, 40, 8))[0, 0] for x in one)
    scores = q @ k.mT
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
def test_performer_with_many_features_comes_near_softmax(kind: str) -> None:
    near = make(Performer, kind=kind, features=20_000)
    x = inputs() * 0.5
    torch.testing.assert_close(near.pattern(x), twin(near, True).pattern(x), atol=0.02, rtol=0.0)


@pytest.mark.parametrize("kind", [BigBird, Performer])
def test_what_is_random_in_the_function_comes_from_the_seed(kind: type[Attention]) -> None:
    def drawn(seed: int, other: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(other)
            before = torch.random.get_rng_state()
            attention = kind(16, 2, 200, seed=seed)
            assert not torch.equal(before, torch.random.get_rng_state())  # the parameters
        return dict(attention.named_buffers())["neighbours" if kind is BigBird else "directions"]

    assert torch.equal(drawn(3, other=1), drawn(3, other=2))
    assert not torch.equal(drawn(3, other=1), drawn(4, other=1))


def test_bigbird_graph_is_causal_without_repeats_and_random_from_the_past() -> None:
    bird = BigBird(16, 2, 200, block=8, window=2, random=3, leading=1)
    for head in bird.neighbours.tolist():
        for i, row in enumerate(head):
            chosen = [j for j in row if j >= 0]
            assert row[0] == i and max(chosen) == i and len(set(chosen)) == len(chosen)
            assert len(chosen) == min(i + 1, 2 + 3 + 1)
            assert 0 in chosen


@pytest.mark.parametrize("kind", [Linformer, Perceiver])
@pytest.mark.parametrize("causal", [True, False])
def test_a_picture_made_in_parts_is_the_same(
    kind: type[Attention], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, x = make(kind, causal=causal), inputs()
    padding = torch.arange(x.shape[1]) < torch.tensor([[x.shape[1]], [7]])
    whole = attention.pattern(x, padding=padding)
    monkeypatch.setattr(base, "HELD", 1)  # a row at a time
    torch.testing.assert_close(attention.pattern(x, padding=padding), whole)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kind", "variant"), [(kind, name) for kind in (Softmax, BigBird) for name in kind.variants]
)
def test_the_way_of_short_texts_is_the_way_of_all(
    kind: type[Attention], variant: str, causal: bool
) -> None:
    """In float32 weights are written out while gradients are recorded, in float64 they are not."""
    long = make(kind, causal=causal, **kind.variants[variant])
    short, x = copy.deepcopy(long).float(), inputs()
    expected, found = long(x), short(x.float())
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(long.parameters(), short.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad.double(), one.grad, atol=1e-4, rtol=1e-4)
