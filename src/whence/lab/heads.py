"""One query, n keys, n values: attention as the written answers speak of it.

Shape letters: n keys, d width, h heads, (...) any batch in front. Everything is float64 and pure;
what is random takes a `torch.Generator`. There is no 1/sqrt(d): the exploration leaves it out, and
a factor in front of the query does the same work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def weights(query: Tensor, keys: Tensor) -> Tensor:
    """The attention weights a_i = exp(k_i.q) / sum_j exp(k_j.q).

    query (..., d), keys (..., n, d) -> (..., n). The weights are a categorical distribution over
    the keys. With gap = k_j.q - max_{i != j} k_i.q the ratio of two weights is the exponential of a
    difference of scores, so

        a_j e^{-gap}  <=  1 - a_j  <=  (n - 1) a_j e^{-gap}:

    attention points at one key exactly when the gap is large against log n, and never quite.
    """
    return torch.softmax(torch.einsum("...nd,...d->...n", keys, query), dim=-1)


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The output c = sum_i a_i v_i: a point of the convex hull of the values.

    query (..., d), keys (..., n, d), values (..., n, e) -> (..., e). Because c is a convex
    combination, |c - v_j| <= (1 - a_j) max_i |v_i - v_j|: copying a value is only a matter of its
    weight.
    """
    return torch.einsum("...n,...ne->...e", weights(query, keys), values)


def sample_keys(
    means: Tensor, covariances: Tensor, generator: torch.Generator, samples: int = 1
) -> Tensor:
    """Keys k_i ~ N(mu_i, Sigma_i), independent: means (n, d), covariances (n, d, d) -> (samples, n,
    d).

    With Sigma_i = U diag(s) U^T a draw is mu_i + U sqrt(s) z, z ~ N(0, I). This also serves the
    singular covariances of the exploration: Sigma_a = mu_a mu_a^T / 2 stretches and shrinks k_a
    along its own mean, so that k_a = eps mu_a with eps ~ N(1, 1/2).
    """
    eigenvalues, directions = torch.linalg.eigh(covariances)
    roots = directions * eigenvalues.clamp(min=0).sqrt().unsqueeze(-2)
    noise = torch.randn(
        samples, *means.shape, generator=generator, dtype=means.dtype, device=means.device
    )
    return means + torch.einsum("nde,sne->snd", roots, noise)


def single_head(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The output of one head for each draw of the keys: (samples, n, d) keys -> (samples, e).

    To stand for the average of v_a and v_b a single query must score k_a and k_b alike. With q =
    C(mu_a + mu_b) and k_a = eps mu_a the two scores are eps C and C, so a_a = 1/(1 + e^{(1-eps)C}):
    the larger C is, the more surely the output is v_a or v_b and not their average.
    """
    return attend(query, keys, values)


def multi_head(queries: Sequence[Tensor] | Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The mean of the heads' outputs, all heads on the same draw of the keys: (samples, e).

    With q_1 = C mu_a and q_2 = C mu_b each head has one key to find; the length of k_a changes how
    surely head 1 finds it, not which one it finds (as long as C eps is large). Two equal queries on
    the same keys give equal outputs: their mean is either of them, and nothing is gained.
    """
    return torch.stack([attend(query, keys, values) for query in queries]).mean(dim=0)


def spread(outputs: Tensor) -> float:
    """The variance of a cloud of outputs, E|c - E c|^2: (samples, e) -> one number."""
    return float((outputs - outputs.mean(dim=0)).square().sum(dim=-1).mean())
