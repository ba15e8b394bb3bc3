"""A start in which heads look back, and positions that are waves so that they can.

A head that looks one position back has to be found in training before words can be read, and with
a learned vector for each position it has to be found for every position on its own. Where the
vectors start as waves, in as many channels as a head is wide, one matrix turns those of position s
into those of s + 1, for all s, and a head can start out looking back. Rotations do the same to its
biases. From there on everything is learned.
"""

import math

import torch
from torch import Tensor

from whence.attention.base import Attention
from whence.attention.rotation import Rotation

FAST = 0.09  # radians for a position: rotations that tell neighbours apart
PULL = 37.0  # square of a bias: in a head of width 32 neighbours are 4.5 below the one looked at
KEPT = 0.1  # of what the text says to such a head at first, which would be noise on top
SCORE = 32**0.5  # of the position looked at, whatever the width: that of a head of 32
NARROWEST = 16  # with fewer rotations some position far away looks like the one before


def frequencies(pairs: int) -> Tensor:
    """(pairs,), in radians for a position: up to pi, so that neighbours differ; most are slow, so
    that positions repeat after 2 pairs^2 only. In float64: angles grow with the position."""
    return math.pi * ((torch.arange(pairs, dtype=torch.float64) + 1) / pairs) ** 2


def waves(positions: int, channels: int) -> Tensor:
    """(positions, channels): sines, then cosines, each with a mean square of 1 as after a norm."""
    angles = torch.arange(positions)[:, None] * frequencies(channels // 2)
    table = torch.zeros(positions, channels)
    table[:, : 2 * (channels // 2)] = 2**0.5 * torch.cat([angles.sin(), angles.cos()], 1)
    return table


def turn(channels: int, ahead: int) -> Tensor:
    """(channels, channels): makes the waves of position s + ahead from those of position s."""
    angles = ahead * frequencies(channels // 2)
    cosine, sine = torch.diag(angles.cos()), torch.diag(angles.sin())
    matrix = torch.zeros(channels, channels)
    pairs = 2 * (channels // 2)
    matrix[:pairs, :pairs] = torch.cat(
        [torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)], 0
    )
    return matrix


def refuse_alike(attention: Attention, pairs: int) -> None:
    """Positions that have the same waves cannot be told apart."""
    if attention.context > 2 * pairs**2:
        raise ValueError(
            f"heads of width {attention.head_width} tell {2 * pairs**2} positions apart, "
            f"not {attention.context}"
        )


def backwards(attention: Attention, nearest: int, heads: int) -> list[tuple[slice, int]]:
    """The rows of each of the first heads, which are to look back, and how far."""
    d = attention.head_width
    found = [(slice(head * d, head * d + d), nearest + head) for head in range(heads)]
    return [(rows, back) for rows, back in found if back < attention.context]


def half(attention: Attention) -> int:
    """So many heads look back; the others are free to find what the text says."""
    return max(1, attention.heads // 2)


def aim_back(attention: Attention, nearest: int, gain: float = 1.0) -> None:
    """Queries that match the keys of the position looked at, where the best match wins."""
    if attention.rotation is None:
        aim_by_waves(attention, nearest, gain)
    else:
        aim_by_rotation(attention, attention.rotation, nearest)


@torch.no_grad()
def aim_by_waves(attention: Attention, nearest: int, gain: float) -> None:
    D, d = attention.width, attention.head_width
    refuse_alike(attention, d // 2)
    strength = gain * max(1.0, SCORE / d**0.5) ** 0.5
    queries, keys = attention.qkv.weight[:D], attention.qkv.weight[D : 2 * D]
    for rows, back in backwards(attention, nearest, half(attention)):
        queries[rows], keys[rows] = 0.0, 0.0
        queries[rows, :d], keys[rows, :d] = strength * torch.eye(d), strength * turn(d, back)


@torch.no_grad()
def aim_by_rotation(attention: Attention, rotation: Rotation, nearest: int) -> None:
    D, bias = attention.width, attention.qkv.bias
    if bias is None:
        raise ValueError("with rope a head looks back by its biases, and there are none")
    if attention.qk_norm:
        raise ValueError("with rope a head looks back by large biases, which qk_norm undoes")
    if attention.head_width < NARROWEST:
        raise ValueError(f"with rope heads must be {NARROWEST} wide, not {attention.head_width}")
    queries, keys = attention.qkv.weight[:D], attention.qkv.weight[D : 2 * D]
    size = torch.where(rotation.theta >= FAST, PULL**0.5, 0.0)[:, None]
    for rows, back in backwards(attention, nearest, half(attention)):
        queries[rows] *= KEPT
        keys[rows] *= KEPT
        bias[:D][rows] = (size * rotation.turns[0]).flatten()
        bias[D : 2 * D][rows] = (size * rotation.turns[back]).flatten()
