"""Queries, keys and values that are parts of one product, and gradients that lie as they do.

Taken apart by torch, their gradients are put together by a copy of all three: of a short text a
fortieth of a layer's time, of a long one as much memory again. Whoever makes the gradients asks
`beside` for their room, and the copy is spared.

Shape letters: B batch, T positions, H heads, d width of a head.
"""

from typing import Any

import torch
from torch import Tensor

from whence.attention.linear import derived, onednn_pays


def apart(joined: Tensor) -> tuple[Tensor, ...]:
    """(B,T,3,H,d) -> three of (B,T,H,d)."""
    recorded = torch.is_grad_enabled() and not (torch.compiler.is_compiling() or derived())
    # Only there are gradients made beside each other (`exact.py`); torch's kernel does not.
    if not (recorded and onednn_pays()):
        return joined.unbind(2)
    found: tuple[Tensor, ...] = _Apart.apply(joined)  # type: ignore[no-untyped-call]
    return found


def beside(*heads: Tensor) -> tuple[Tensor, ...]:
    """Room for as many numbers as each (B,H,T,d) has: next to each other, if they are alike."""
    B, H, T, d = heads[0].shape
    if any(x.shape != heads[0].shape for x in heads):
        return tuple(
            x.new_empty(len(x), x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in heads
        )
    joined = heads[0].new_empty(B, T, len(heads), H, d)
    return tuple(part.transpose(1, 2) for part in joined.unbind(2))


def as_one(*parts: Tensor) -> Tensor | None:
    """(B,T,H,d) that `beside` made, as the (B,T,n,H,d) that they are parts of."""
    first, n = parts[0], len(parts)
    B, T, H, d = first.shape
    step = H * d
    steps = (T * n * step, n * step, d, 1)
    try:
        memory, start = first.untyped_storage().data_ptr(), first.storage_offset()
    except NotImplementedError:  # many gradients at once
        return None
    for number, x in enumerate(parts):
        near = x.shape == first.shape and x.stride() == steps and x.dtype == first.dtype
        same = near and x.untyped_storage().data_ptr() == memory
        if not (same and x.storage_offset() == start + number * step):
            return None
    return first.as_strided((B, T, n, H, d), (T * n * step, n * step, step, d, 1), start)


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.like = joined.shape, joined.dtype, joined.device
        return joined.unbind(2)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled() and all(x is not None for x in given):
            found = as_one(*(x for x in given if x is not None))
            if found is not None:
                return found
        shape, kind, device = ctx.like
        B, T, _, H, d = shape
        nothing = torch.zeros((), dtype=kind, device=device).expand(B, T, H, d)
        return torch.stack([nothing if x is None else x for x in given], 2)
