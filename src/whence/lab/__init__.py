"""The attention lab: attention as plain functions, the claims about it, and a grader for written
answers.

    import torch
    from whence.lab import multi_head, orthonormal, sample_keys, single_head, spread, stretched

    generator = torch.Generator().manual_seed(0)
    means = orthonormal(8, 8, generator)[0]
    keys = sample_keys(means, stretched(means, 0, alpha=1e-9), generator, samples=10_000)
    C, values = 30.0, torch.eye(8, dtype=torch.float64)
    one = single_head(C * (means[0] + means[1]), keys, values)
    two = multi_head([C * means[0], C * means[1]], keys, values)
    spread(one), spread(two)

Names are loaded on first use: the command line imports this package and must not pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.lab.constructions import (
        Words,
        averaging_query,
        copying_query,
        orthonormal,
        pointing_first,
        pointing_second,
        projection,
        self_attention,
        stretched,
        subspaces,
        value_keeping_b,
        words,
    )
    from whence.lab.heads import attend, multi_head, sample_keys, single_head, spread, weights
    from whence.lab.positions import frequencies, rotate, rotate_complex, sinusoids

__all__ = [
    "Words",
    "attend",
    "averaging_query",
    "copying_query",
    "frequencies",
    "multi_head",
    "orthonormal",
    "pointing_first",
    "pointing_second",
    "projection",
    "rotate",
    "rotate_complex",
    "sample_keys",
    "self_attention",
    "single_head",
    "sinusoids",
    "spread",
    "stretched",
    "subspaces",
    "value_keeping_b",
    "weights",
    "words",
]

_HOMES = ("heads", "constructions", "positions")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"whence.lab.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
