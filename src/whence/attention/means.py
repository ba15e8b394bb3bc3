"""Causal attention to m slots that are running means of the past: linformer and perceiver.

    K~_ti = sum_{j<=t} e^{E_ji} k_j / sum_{j<=t} e^{E_ji}        V~_ti likewise, with F
    y_t = softmax_i(q_t . K~_ti) V~_t

There are three ways. Where logarithms are moderate and all is finite, all pairs of positions are
written out if the text is short (`short.py`, not compiled), else one walk makes everything at once
(`slots.py`). Two causal scans take what is left: any logarithms, a slot that is empty so far
(-inf), NaN, and dropout of the slots' weights.

Walk or scans depends on the data; an opaque operator looks, so that `torch.compile` passes over
both. The gradient of the two scans is therefore written out here.

Shape letters: B batch, H heads, T positions, d head width, C channels, m slots; N = B H.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.attention.gradients import asked_for, refuse_tangents
from whence.attention.mass import pull_logsumexp, running_logsumexp
from whence.attention.scan import causal_scan, scan_and_pull
from whence.attention.short import SHORT, slot_pairs
from whence.attention.slots import Scan
from whence.attention.walk import CALM, by_position


def moderate(key_log: Tensor, value_log: Tensor, *others: Tensor) -> bool:
    """Whether exponentials are within bounds and all is finite: the quick ways may be taken."""
    for log in (key_log,) if key_log is value_log else (key_log, value_log):
        low, high = (float(x) for x in log.detach().aminmax())
        if not max(-low, high) <= CALM / 2:
            return False
    return all(math.isfinite(float(x.detach().sum())) for x in others)


def attend_means(
    queries: Tensor, keys: Tensor, values: Tensor, key_log: Tensor, value_log: Tensor
) -> Tensor:
    """(B,H,T,d), (B,H,T,d), (B,H,T,C), E and F (1 or B, 1 or H, T, m) -> (B,H,T,C).

    Queries are scaled by the caller. E and F may be one tensor, which is read once then.
    """
    refuse_tangents(queries, keys, values, key_log, value_log)
    short = not torch.compiler.is_compiling() and queries.shape[2] <= SHORT
    # Exponentials that are moderate in float32 are not in float16.
    short = short and values.dtype != torch.float16
    if short and moderate(key_log, value_log, keys, values):
        return slot_pairs(queries, keys, values, key_log, value_log)
    lead = keys.shape[:2]
    full = torch.float64 if keys.dtype == torch.float64 else torch.float32
    shared = key_log.shape[:2] == value_log.shape[:2] == (1, 1)

    def flat(x: Tensor) -> Tensor:
        wide = x.to(full)
        if not (shared and wide.shape[:2] == (1, 1)):
            wide = wide.expand(*lead, -1, -1)
        return wide.reshape(-1, *x.shape[-2:])

    q, k, v, e = (flat(x) for x in (queries, keys, values, key_log))
    f = None if value_log is key_log else flat(value_log)
    out: Tensor = _attend(q, k, v, e, f, asked_for(q, k, v, e, f))[0]
    return out.view(*lead, *out.shape[1:])


def by_scans(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_log: Tensor,
    value_log: Tensor,
    thin: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Tensor:
    """The same of tensors (..., T, .), whatever is in them. `thin`: dropout of slots' weights."""
    mass = running_logsumexp(key_log)
    scores = causal_scan(
        queries, keys, None, query_log=-mass, key_log=key_log, side="channels"
    ) + hide_unentered(key_log != -math.inf, queries.dtype)
    if value_log is not key_log:
        mass = running_logsumexp(value_log)
    chosen = thin(scores.softmax(-1))
    return causal_scan(chosen, None, values, query_log=-mass, key_log=value_log)


def hide_unentered(entered: Tensor, kind: torch.dtype) -> Tensor:
    """What is added to the scores (..., T, m): see `hide_empty`. The first position that has
    entered a slot fills it."""
    T = entered.shape[-2]
    first = torch.where(entered.any(-2), entered.int().argmax(-2), T)[..., None, :]
    return hide_empty(torch.arange(T, device=entered.device)[:, None] >= first, kind)


def hide_empty(filled: Tensor, kind: torch.dtype) -> Tensor:
    """-inf for an empty slot, unless all are (nothing is real)."""
    shown = filled | ~filled.any(-1, keepdim=True)
    return torch.where(shown, torch.zeros((), dtype=kind, device=filled.device), -math.inf)


@torch.library.custom_op("whence::attend_means", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, states for the gradient if it is to `keep` them, and whether they are used."""
    walk, logs = Scan(q, k, v, e, f), (e, e if f is None else f)
    states = walk.states_for(keep)
    with torch.autocast(v.device.type, enabled=False):
        quick = moderate(*logs, k, v)
        out = walk.forward(states) if quick else by_scans(q, k, v, *logs)
    return out, states, torch.tensor(quick)


@torch.library.custom_op("whence::attend_means_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    states: Tensor,
    quick: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    f: Tensor | None,
) -> list[Tensor]:
    """The gradients of q, k, v, E and, if it is another, F."""
    given = (q, k, v, e) if f is None else (q, k, v, e, f)
    with torch.autocast(v.device.type, enabled=False):
        if bool(quick):
            return Scan(q, k, v, e, f).backward(gradient, states)
        found = pull_by_scans(gradient, q, k, v, e, e if f is None else f)
        return [by_position(x, *x.shape).copy_(y) for x, y in zip(given, found, strict=True)]


def pull_by_scans(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor
) -> list[Tensor]:
    """The gradients of what `by_scans` was given, which is computed again, inside an operator,
    where torch records nothing."""
    mass = running_logsumexp(e)
    other = mass if f is e else running_logsumexp(f)
    scores, pull_scores = scan_and_pull(q, k, None, -mass, e, side="channels")
    chosen = (scores + hide_unentered(e != -math.inf, q.dtype)).softmax(-1)
    pull_out = scan_and_pull(chosen, None, v, -other, f, side="features")[1]
    to_chosen, _, to_v, less_other, to_f = pull_out(gradient)
    to_scores = torch.ops.aten._softmax_backward_data(to_chosen, chosen, -1, chosen.dtype)
    to_q, to_k, _, less_mass, to_e = pull_scores(to_scores)
    to_e += pull_logsumexp(less_mass.neg_(), e, mass)
    to_f += pull_logsumexp(less_other.neg_(), f, other)
    return [to_q, to_k, to_v, to_e.add_(to_f)] if f is e else [to_q, to_k, to_v, to_e, to_f]


@_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    walk = Scan(q, k, v, e, f)
    out = by_position(v, walk.N, walk.T, walk.C)
    return out, walk.states_for(keep), torch.empty((), dtype=torch.bool)


@_attend_backward.register_fake
def _(
    gradient: Tensor,
    states: Tensor,
    quick: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    f: Tensor | None,
) -> list[Tensor]:
    return [by_position(x, *x.shape) for x in (q, k, v, e, f) if x is not None]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # zeros as large as the states
    ctx.save_for_backward(*output[1:], *inputs[:5])
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradient: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    found = _attend_backward(gradient, *ctx.saved_tensors)
    return (*found, *[None] * (6 - len(found)))


_attend.register_autograd(_gradients, setup_context=_remember)
