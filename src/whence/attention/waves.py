"""Positions as waves: a vector of sines and cosines that a matrix can move along.

A head that looks one position back has to be found in training before words can be read, and with
a learned vector for each position it has to be found for every position on its own. Where the
vectors start as waves, one matrix turns those of position s into those of s + 1, for all s, so a
head can start out looking back (`Attention.look_back`); from there on everything is learned.
"""

import math

import torch
from torch import Tensor


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
