"""The one causal scan behind the linear mechanisms: sum over j <= t of (a_t . b_j) c_j.

Shape letters: N batch times heads, T positions, M features, C channels.

    features side:  out_t  = sum_{j<=t} sum_m  a_tm exp(q_tm)  b_jm exp(k_jm)  c_j
    channels side:  out_tc = exp(q_tc) sum_{j<=t} (a_t . b_j)  exp(k_jc)

The logarithms q (`query_log`) and k (`key_log`) may be as large as they like: only the differences
k_j - max_{i<=t} k_i are ever exponentiated, as in online softmax. There is no epsilon anywhere, and
where a quicker way (`calm.py`) has one reference for a whole text, the future's part in it cancels:
a key never moves the outputs before it by more than rounding.

Positions are read in segments that stay in the processor's cache; a segment is cut in chunks that
are computed side by side: what lies inside a chunk through a small triangular matrix, what lies
before it through the (M, C) state. Cost T (2 M C + chunk (M + C)), and nothing of size T x T or
T x M x C; with `directions` not even T x M. The gradient is computed by the same walk, once
forwards and once backwards, instead of by recording the steps: the memory of the backward pass is
that of its results.

All of it is an opaque operator of torch, so that `torch.compile` passes over it without a graph
break while it may look at the data (see `walk.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.attention import calm, walk
from whence.attention.calm import CalmScan
from whence.attention.gradients import asked_for, refuse_tangents
from whence.attention.walk import Inputs, Walk


def causal_scan(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    *,
    query_log: Tensor | None = None,
    key_log: Tensor | None = None,
    offset: Tensor | None = None,
    directions: Tensor | None = None,
    square: float = 0.0,
    side: str = "features",
    normalise: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """a, b (..., T, M) and c (..., T, C) -> (..., T, C); None stands for ones where a logarithm is.

    `normalise` divides row t by what c = 1 would give; a row that has seen no key
    (`key_log` = -inf) is zero. Without it the caller promises q_t + max_{j<=t} k_j to be moderate.

    With `directions` (M, D) `query_log` and `key_log` are (..., T, D) and stand for their products
    with it, minus `square` |key|^2 / 2 and minus `offset` (..., T, 1; infinite hides a key) for the
    keys: the features then exist only a segment at a time. Directions and offset are constants.
    """
    if side not in ("features", "channels"):
        raise ValueError(f"side must be 'features' or 'channels', not {side!r}")
    if side == "channels" and (normalise or directions is not None):
        raise ValueError("only the features side can be normalised or have directions")
    tensors = (a, b, c, query_log, key_log, offset)
    given = [tensor for tensor in tensors if tensor is not None]
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in given))  # type: ignore[no-untyped-call]
    full = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32

    def flat(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        shared = all(size == 1 for size in tensor.shape[:-2])
        wide = tensor.to(full) if shared else tensor.to(full).expand(*lead, *tensor.shape[-2:])
        return wide.reshape(-1, *tensor.shape[-2:])

    refuse_tangents(*given)
    if directions is not None:
        directions = directions.to(full)
    if chunk is None:
        chunk = walk.CHUNK if directions is None else calm.CHUNK
    out, *_ = _scan(
        *map(flat, tensors),
        directions,
        square,
        side == "channels",
        normalise,
        chunk,
        asked_for(*given),
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
    offset: Tensor | None,
    directions: Tensor | None,
    square: float,
    channels: bool,
    normalise: bool,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, row sums, states for the gradient if it is to `keep` them, and which they are."""
    given = Inputs(a, b, c, query_log, key_log, offset, directions)
    whole = Walk(given, square, channels, normalise, chunk)
    # What came here in full precision stays in it, autocast or not.
    with torch.autocast(whole.like.device.type, enabled=False):
        quick = _calm(given, square, normalise, chunk)
        if quick is None or not quick.finite():
            return whole.forward(keep)
        way = walk.CALMLY if quick.is_calm() else walk.DIVIDED
        if way == walk.DIVIDED:
            quick.divide()
        states = whole.states_for(keep)
        out, mass, largest = quick.forward(whole.turned(states))
        if way == walk.DIVIDED and not quick.held(mass, largest):
            return whole.forward(keep)
        return out, mass, states, torch.tensor(way)


def _calm(given: Inputs, square: float, normalise: bool, chunk: int) -> CalmScan | None:
    """The quicker way, where there is one: features without mantissas, nothing shared."""
    a, b, c, query_log, key_log, offset, directions = given
    if directions is None or a is not None or b is not None or not normalise:
        return None
    assert c is not None and query_log is not None and key_log is not None
    if not len(c) == len(query_log) == len(key_log):
        return None
    return CalmScan(query_log, key_log, c, offset, directions, square, chunk)


@torch.library.custom_op("whence::causal_scan_backward", mutates_args=())
def _scan_backward(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    states: Tensor,
    known: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    offset: Tensor | None,
    directions: Tensor | None,
    square: float,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> list[Tensor]:
    given = Inputs(a, b, c, query_log, key_log, offset, directions)
    with torch.autocast(gradient.device.type, enabled=False):
        if int(known) in (walk.CALMLY, walk.DIVIDED):
            quick = _calm(given, square, normalise, chunk)
            assert quick is not None
            if int(known) == walk.DIVIDED:
                quick.divide()
            whole = Walk(given, square, channels, normalise, chunk)
            if not len(states):  # somebody recorded this who had said that nothing would be
                states = whole.states_for(True)
                quick.forward(whole.turned(states))
            to_query, to_key, to_c = quick.backward(gradient, out, mass, whole.turned(states))
            nothing = out.new_empty(0)
            return [nothing, nothing.clone(), to_c, to_query, to_key]
        whole = Walk(given, square, channels, normalise, chunk)
        return whole.backward(gradient, out, mass, states, int(known) == walk.KNOWN)


@_scan.register_fake
def _(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    offset: Tensor | None,
    directions: Tensor | None,
    square: float,
    channels: bool,
    normalise: bool,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    whole = Walk(
        Inputs(a, b, c, query_log, key_log, offset, directions), square, channels, normalise, chunk
    )
    N, T, like = whole.N, whole.T, whole.like
    return (
        walk.by_position(like, N, T, whole.C),
        like.new_empty((N, T, 1) if normalise else (0,)),
        whole.states_for(keep),
        torch.empty((), dtype=torch.int64),
    )


@_scan_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    mass: Tensor,
    states: Tensor,
    known: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor | None,
    key_log: Tensor | None,
    offset: Tensor | None,
    directions: Tensor | None,
    square: float,
    channels: bool,
    normalise: bool,
    chunk: int,
) -> list[Tensor]:
    given = (a, b, c, query_log, key_log)
    return [out.new_empty(0) if x is None else walk.by_position(x, *x.shape) for x in given]


def scan_and_pull(
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    query_log: Tensor,
    key_log: Tensor,
    side: str,
) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """For whoever is an operator: (N,T,.) in full precision, and what makes the five gradients."""
    given = (a, b, c, query_log, key_log, None, None, 0.0, side == "channels", False, walk.CHUNK)
    results = _scan(*given, True)

    def pull(gradient: Tensor) -> list[Tensor]:
        found: list[Tensor] = _scan_backward(gradient, *results, *given)
        return found

    return results[0], pull


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # zeros as large as the states
    ctx.save_for_backward(*output, *inputs[:7])
    ctx.settings = inputs[7:-1]
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
    if gradient is None:
        return (None,) * 12
    out, mass, states, known, *given = ctx.saved_tensors
    results = _scan_backward(gradient, out, mass, states, known, *given, *ctx.settings)
    wanted = (None if x is None else y for x, y in zip(given[:5], results, strict=True))
    return (*wanted, *[None] * 7)


_scan.register_autograd(_gradients, setup_context=_remember)
