"""What attention packages do with the future, measured on the versions that are installed.

Runs in the peers' environment, not in Whence's own tests:

    python benchmarks/attention_environment.py      # once
    .bench/bin/python -m pytest benchmarks/peers -q

A test named `..._leaks` passes as long as the package leaks: when a new version fixes it the test
fails, and the claim is withdrawn. Inputs are standard normal, layers freshly initialised.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("performer_pytorch", reason="run in the peers' environment (.bench)")
sys.path.insert(0, str(Path(__file__).resolve().parent))
warnings.simplefilter("ignore")

import numpy  # noqa: E402
import torch  # noqa: E402
from attention_layers import LAYERS, WIDTH, HuggingFaceBigBird  # noqa: E402
from performer_pytorch import FastAttention  # noqa: E402
from performer_pytorch.performer_pytorch import (  # noqa: E402
    causal_linear_attention_noncuda,
    gaussian_orthogonal_random_matrix,
)
from torch import Tensor, nn  # noqa: E402

T = 1024
ROUNDING = 1e-5


def moved(layer: Callable[[Tensor], Tensor], factor: float | None = None) -> float:
    """The last input grows, or without a factor is another one (a model that begins with a layer
    norm does not see growth); how far do outputs before it move, of their largest value?"""
    torch.manual_seed(1)
    x = torch.randn(1, T, WIDTH)
    later = x.clone()
    later[:, -1] = torch.randn(WIDTH) if factor is None else x[:, -1] * factor
    with torch.no_grad():
        before, after = layer(x)[:, :-1], layer(later)[:, :-1]
    return float((before - after).abs().max() / before.abs().max())


def pulled(layer: Callable[[Tensor], Tensor]) -> float:
    """The gradient of the outputs before the last position at the last input, of its largest."""
    torch.manual_seed(1)
    x = torch.randn(1, T, WIDTH, requires_grad=True)
    y = layer(x)[:, :-1]
    (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    return float(gradient[0, -1].abs().max() / gradient.abs().max())


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name][1](T).eval()


@pytest.mark.parametrize("name", ["x-transformers", "x-transformers + rope"])
def test_exact_attention_is_causal(name: str) -> None:
    assert moved(make(name), 10.0) < ROUNDING
    assert pulled(make(name)) == 0.0


def test_perceiver_ar_is_causal() -> None:
    assert moved(make("perceiver-ar-pytorch"), 10.0) < ROUNDING
    assert pulled(make("perceiver-ar-pytorch")) == 0.0


# performer-pytorch ---------------------------------------------------------------------------


def only_the_last_key(factor: float) -> float:
    torch.manual_seed(0)
    attention = FastAttention(32, 128, causal=True)
    q, k, v = (torch.randn(1, 8, T, 32) for _ in range(3))
    later = k.clone()
    later[:, :, -1] *= factor
    before, after = attention(q, k, v)[:, :, :-1], attention(q, later, v)[:, :, :-1]
    return float((before - after).abs().max() / before.abs().max())


def test_performer_pytorch_leaks_through_the_largest_key() -> None:
    """Keys are divided by their maximum over all positions, and then an epsilon is added."""
    assert only_the_last_key(1.0) == 0.0
    assert only_the_last_key(3.0) > 0.05


def test_performer_pytorch_layer_leaks() -> None:
    assert moved(make("performer-pytorch"), 10.0) > 0.01


def test_performer_pytorch_hides_its_leak_from_gradients() -> None:
    """The maximum is detached, so a test by gradients alone would call the layer causal."""
    assert pulled(make("performer-pytorch")) < ROUNDING


def test_performer_pytorch_draws_without_sign_fix() -> None:
    """The diagonal of a uniformly drawn orthogonal matrix is as often positive as negative."""
    torch.manual_seed(0)
    draws = torch.stack([gaussian_orthogonal_random_matrix(32, 32) for _ in range(400)])
    positive = float((draws.diagonal(dim1=1, dim2=2)[:, :16] > 0).float().mean())
    assert abs(positive - 0.5) > 0.1  # 6400 fair coins stay within 0.02


def test_performer_pytorch_chunk_size_is_a_count() -> None:
    """`chunk_size=128` gives 128 chunks, not chunks of 128: a "chunk" of 1 is all positions."""
    shapes = []
    original = torch.einsum

    def watch(equation: str, *operands: Tensor) -> Tensor:
        if equation == "...nd,...ne->...nde":
            shapes.append(operands[0].shape[-2])
        return original(equation, *operands)

    q, k, v = (torch.rand(1, 1, 256, 4) for _ in range(3))
    torch.einsum = watch
    try:
        causal_linear_attention_noncuda(q, k, v, chunk_size=128)
    finally:
        torch.einsum = original
    assert shapes == [2] * 128


# linformer-pytorch ---------------------------------------------------------------------------


def test_linformer_pytorch_causal_leaks() -> None:
    """All positions are mixed by E and F before the mask, which then hides mixtures."""
    assert moved(make("linformer-pytorch"), 3.0) > 0.01
    assert pulled(make("linformer-pytorch")) > 0.01


# transformers' BigBird -----------------------------------------------------------------------


def big_bird(attention_type: str) -> Callable[[Tensor], Tensor]:
    from transformers import BigBirdConfig, BigBirdForCausalLM

    torch.manual_seed(0)
    model = BigBirdForCausalLM(
        BigBirdConfig(
            vocab_size=16,
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=8,
            intermediate_size=64,
            max_position_embeddings=T,
            is_decoder=True,
            use_cache=False,
            attention_type=attention_type,
        )
    ).eval()

    def run(x: Tensor) -> Tensor:
        logits: Tensor = model(inputs_embeds=x).logits
        return logits

    return run


def test_big_bird_decoder_with_full_attention_is_causal() -> None:
    assert moved(big_bird("original_full")) == 0.0
    assert pulled(big_bird("original_full")) == 0.0


def test_big_bird_decoder_with_block_sparse_attention_leaks() -> None:
    """Measured 1.8e-4 and 3.6e-3 in one fresh layer, where full gives exact zeros."""
    assert moved(big_bird("block_sparse")) > 5e-5
    assert pulled(big_bird("block_sparse")) > 1e-3


def random_blocks(layer: HuggingFaceBigBird) -> Tensor:
    seen = []
    original = layer.layer._create_rand_mask_from_inputs

    def watch(a: Tensor, b: Tensor, chosen: Tensor, *rest: object) -> Tensor:
        seen.append(chosen)
        result: Tensor = original(a, b, chosen, *rest)
        return result

    layer.layer._create_rand_mask_from_inputs = watch
    with torch.no_grad():
        layer(torch.randn(1, T, WIDTH))
    return seen[0]


def test_big_bird_random_blocks_are_block_zero_outside_training() -> None:
    layer = HuggingFaceBigBird(T)
    assert int(random_blocks(layer.eval()).abs().max()) == 0
    assert int(random_blocks(layer.train()).max()) > 0


def test_big_bird_reseeds_numpy_in_training() -> None:
    layer = HuggingFaceBigBird(T)
    found = []
    for seed in (1, 2):
        numpy.random.seed(seed)
        layer.train()(torch.randn(1, T, WIDTH))
        found.append(numpy.random.rand())
    assert found[0] == found[1]
    for seed in (1, 2):
        numpy.random.seed(seed)
        layer.eval()(torch.randn(1, T, WIDTH))
        found.append(numpy.random.rand())
    assert found[2] != found[3]


# torch's FlexAttention -----------------------------------------------------------------------


def test_flex_attention_has_no_gradient_on_a_processor() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 128, 32, requires_grad=True)
    with pytest.raises(Exception, match=r"(?i)backward|grad|training|cpu"):
        flex_attention(q, q, q).sum().backward()
