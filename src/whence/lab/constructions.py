"""The vectors and matrices that the exploration builds: queries, projections, keys, queries and
values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def orthonormal(count: int, width: int, generator: torch.Generator, batch: int = 1) -> Tensor:
    """`count` orthonormal rows, uniformly drawn: (batch, count, width).

    QR of a Gaussian matrix is uniform over the orthogonal group only after the signs are fixed by
    those of R's diagonal; without that the draw leans to one side.
    """
    gaussian = torch.randn(batch, width, count, generator=generator, dtype=torch.float64)
    basis, upper = torch.linalg.qr(gaussian)
    signs = torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1)).unsqueeze(-2)
    rows: Tensor = (basis * signs).transpose(-2, -1)
    return rows


def subspaces(
    width: int, first: int, second: int, generator: torch.Generator, batch: int = 1
) -> tuple[Tensor, Tensor]:
    """Orthonormal bases A (batch, width, first) and B (batch, width, second) of orthogonal
    subspaces.
    """
    rows = orthonormal(first + second, width, generator, batch)
    return rows[:, :first].transpose(-2, -1), rows[:, first:].transpose(-2, -1)


def projection(basis: Tensor) -> Tensor:
    """M = A A^T, the projection on the span of A's orthonormal columns: (..., d, m) -> (..., d, d).

    A^T alone gives the m coordinates of v_a in the basis A; A turns them back into the vector. If
    B^T A = 0, then M (v_a + v_b) = A A^T A alpha + A A^T B beta = v_a.
    """
    return basis @ basis.transpose(-2, -1)


def copying_query(key: Tensor, factor: float) -> Tensor:
    """q = C k_j. For orthonormal keys the gap is C, hence 1 - a_j <= (n - 1) e^{-C}."""
    return factor * key


def averaging_query(first: Tensor, second: Tensor, factor: float) -> Tensor:
    """q = C(k_a + k_b). For orthonormal keys a_a = a_b = e^C / (n - 2 + 2 e^C)."""
    return factor * (first + second)


def stretched(means: Tensor, stretch: int, alpha: float, variance: float = 0.5) -> Tensor:
    """Covariances alpha I, and alpha I + variance mu_a mu_a^T for key `stretch`: (n, d) -> (n, d,
    d).
    """
    covariances = alpha * torch.eye(means.shape[1], dtype=means.dtype).repeat(len(means), 1, 1)
    mean = means[stretch]
    covariances[stretch] += variance * torch.outer(mean, mean)
    return covariances


@dataclass(frozen=True)
class Words:
    """Four orthogonal vectors of norm beta, the building blocks of a three-word sentence."""

    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    beta: float

    def sentence(self, added: Tensor | None = None) -> Tensor:
        """x_1 = u_d + u_b, x_2 = u_a (+ added), x_3 = u_c + u_b, as rows (3, width)."""
        second = self.a if added is None else self.a + added
        return torch.stack([self.d + self.b, second, self.c + self.b])


def words(beta: float, width: int, generator: torch.Generator) -> Words:
    """Four orthogonal vectors of norm beta in a random orientation; width >= 4."""
    a, b, c, d = beta * orthonormal(4, width, generator)[0]
    return Words(a, b, c, d, beta)


def self_attention(
    inputs: Tensor, key: Tensor, query: Tensor, value: Tensor, causal: bool = False
) -> Tensor:
    """c_i = sum_j a_ij V x_j with a_i = softmax_j((K x_j).(Q x_i)): (..., T, d) -> (..., T, d).

    Without `causal` no position is special: f(PX) = P f(X) for every permutation P, because the
    scores become P S P^T, the softmax of a permuted row is the permuted softmax, and P^T P = I.
    """
    scores = (inputs @ query.transpose(-2, -1)) @ (inputs @ key.transpose(-2, -1)).transpose(-2, -1)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.softmax(scores, dim=-1) @ (inputs @ value.transpose(-2, -1))


def value_keeping_b(u: Words) -> Tensor:
    """V = (u_b u_b^T - u_c u_c^T) / beta^2: keeps u_b, turns u_c round, drops the rest.

    Then V x_1 = u_b, V x_2 = 0 and V x_3 = u_b - u_c: what remains is to point at the right word.
    """
    return (torch.outer(u.b, u.b) - torch.outer(u.c, u.c)) / u.beta**2


def pointing_first(u: Words) -> tuple[Tensor, Tensor]:
    """K = I and Q = u_d u_a^T + u_c u_d^T: x_2 asks for u_d (word 1), x_1 asks for u_c (word 3).

    The wanted scores are beta^4, all others of these two rows 0.
    """
    identity = torch.eye(len(u.a), dtype=u.a.dtype)
    return identity, torch.outer(u.d, u.a) + torch.outer(u.c, u.d)


def pointing_second(u: Words) -> tuple[Tensor, Tensor]:
    """K = u_a u_b^T + u_a u_d^T - u_c u_c^T and Q = u_a u_a^T - u_c u_b^T + u_c u_a^T.

    Keys: k_1 = 2 beta^2 u_a, k_2 = 0, k_3 = beta^2 (u_a - u_c). Queries: q_1 = -beta^2 u_c,
    q_2 = beta^2 (u_a + u_c). Scores of x_2: 2 beta^6, 0, 0. Scores of x_1: 0, 0, beta^6.
    """
    key = torch.outer(u.a, u.b) + torch.outer(u.a, u.d) - torch.outer(u.c, u.c)
    query = torch.outer(u.a, u.a) - torch.outer(u.c, u.b) + torch.outer(u.c, u.a)
    return key, query
