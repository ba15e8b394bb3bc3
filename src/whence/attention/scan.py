"""The one causal scan behind the linear mechanisms: sum over j <= t of (a_t . b_j) c_j.

Shape letters: N batch times heads, T positions, M features, C channels.

    features side:  out_t  = sum_{j<=t} sum_m  a_tm exp(q_tm)  b_jm exp(k_jm)  c_j
    channels side:  out_tc = exp(q_tc) sum_{j<=t} (a_t . b_j)  exp(k_jc)

The logarithms q (`query_log`) and k (`key_log`) may be as large as they like: only the differences
k_j - max_{i<=t} k_i are ever exponentiated, as in online softmax. There is no epsilon anywhere and
no maximum over the future, so a key never moves the outputs before it by more than rounding.

Positions are read in segments that stay in the processor's cache; a segment is cut in chunks that
are computed side by side: what lies inside a chunk through a small triangular matrix, what lies
before it through the (M, C) state. Cost T (2 M C + chunk (M + C)), and nothing of size T x T or
T x M x C. The gradient is computed by the same walk, once forwards and once backwards, instead of
by recording the steps: the memory of the backward pass is that of its results.

All of it is an opaque operator of torch, so that `torch.compile` passes over it without a graph
break while it may look at the data (see `walk.py`).
"""

from typing import Any

import torch
from torch import Tensor

from whence.attention import walk
from whence.attention.walk import Walk


def causal_scan(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    *,
    query_log: Tensor | None = None,
    key_log: Tensor | None = None,
    side: str = "features",
    normalise: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """a, b (..., T, M) and c (..., T, C) -> (..., T, C); None stands for ones where a logarithm is.

    `normalise` divides row t by what c = 1 would give; a row that has seen no key
    (`key_log` = -inf) is zero. Without it the caller promises q_t + max_{j<=t} k_j to be moderate.
    """
    if side not in ("features", "channels"):
        raise ValueError(f"side must be 'features' or 'channels', not {side!r}")
    if normalise and side == "channels":
        raise ValueError("only a scan with logarithms on the features side can be normalised")
    given = [tensor for tensor in (a, b, c, query_log, key_log) if tensor is not None]
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in given))  # type: ignore[no-untyped-call]
    full = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32

    def flat(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        return tensor.to(full).expand(*lead, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])

    out, _, _ = _scan(
        flat(a),
        flat(b),
        flat(c),
        flat(query_log),
        flat(key_log),
        side == "channels",
        normalise,
        chunk or walk.CHUNK,
    )
    result: Tensor = out.reshape(*lead, *out.shape[-2:])
    return result


@torch.library.custom_op("whence::causal_scan", mutates_args=())
def _scan(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    # What came here in full precision stays in it, autocast or not.
    with torch.autocast("cpu", enabled=False):
        return Walk(a, b, c, query_log, key_log, channels, normalise, chunk).forward()


@torch.library.custom_op("whence::causal_scan_backward", mutates_args=())
def _scan_backward(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    rows: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    whole = Walk(a, b, c, query_log, key_log, channels, normalise, chunk)
    with torch.autocast("cpu", enabled=False):
        return whole.backward(gradient.contiguous(), out, mass, rows)


@_scan.register_fake
def _(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    values = c if c is not None else query_log
    assert values is not None
    row = (*values.shape[:2], 1) if normalise else (0,)
    return values.new_empty(values.shape), values.new_empty(row), values.new_empty(row)


@_scan_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    rows: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> tuple[Tensor, ...]:
    given = (a, b, c, query_log, key_log)
    return tuple(out.new_empty(0 if x is None else x.shape) for x in given)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.settings = inputs[5:]
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
    out, mass, rows, *given = ctx.saved_tensors
    results = _scan_backward(gradient, out, mass, rows, *given, *ctx.settings)
    return (
        *(None if x is None else y for x, y in zip(given, results, strict=True)),
        None,
        None,
        None,
    )


_scan.register_autograd(_gradients, setup_context=_remember)
