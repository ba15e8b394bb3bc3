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

FAST = 0.09  # radians for a position: rotations that tell neighbours apart
PULL = 37.0  # square of a bias: in a head of width 32 neighbours are 4.5 below the one looked at
KEPT = 0.1  # of what the text says to such a head at first, which would be noise on top


def frequencies(pairs: int) -> Tensor:
    """(pairs,), in radians for a position: up to pi, so that neighbours differ; most are slow, so
    that no two positions of a context are alike."""
    return math.pi * ((torch.arange(pairs) + 1) / pairs) ** 2


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


def backwards(attention: Attention, nearest: int) -> list[tuple[slice, int]]:
    """The rows of each head that is to look back, and how far: half of the heads."""
    d, heads = attention.head_width, max(1, attention.heads // 2)
    found = [(slice(head * d, head * d + d), nearest + head) for head in range(heads)]
    return [(rows, back) for rows, back in found if back < attention.context]


@torch.no_grad()
def aim_back(attention: Attention, nearest: int, gain: float = 1.0) -> None:
    """Queries that match the keys of the position looked at, where the best match wins."""
    D, d, bias = attention.width, attention.head_width, attention.qkv.bias
    queries, keys = attention.qkv.weight[:D], attention.qkv.weight[D : 2 * D]
    rotation = attention.rotation
    for rows, back in backwards(attention, nearest):
        if rotation is None:
            queries[rows], keys[rows] = 0.0, 0.0
            queries[rows, :d], keys[rows, :d] = gain * torch.eye(d), gain * turn(d, back)
            continue
        if bias is None:
            raise ValueError("with rope a head looks back by its biases: set model.bias = true")
        size = gain * torch.where(rotation.theta >= FAST, PULL**0.5, 0.0)[:, None]
        queries[rows] *= KEPT
        keys[rows] *= KEPT
        bias[:D][rows] = (size * rotation.turns[0]).flatten()
        bias[D : 2 * D][rows] = (size * rotation.turns[back]).flatten()
