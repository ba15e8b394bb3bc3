"""Linear maps by the quicker of the two libraries that torch's CPU build brings along.

torch gives products of float32 numbers to MKL, which keeps to 256-bit kernels on processors that
are not Intel's. oneDNN, which torch has for convolutions and for bfloat16, takes what the processor
has: 2.2 times as many multiplications a second on an AMD with full AVX-512 (docs/log.md), about as
many on others. So both are tried once a process, and where oneDNN is clearly ahead it gets the
products that are large enough. They are the same products in the same float32.

Shape letters: N rows, D features of a row, E features of the result.
"""

import time
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

# Multiplications from which on the few microseconds of a call are nothing.
LEAST = 1 << 22
# Times as fast as MKL. Below, what oneDNN takes to write a program for each shape is not made up.
PAYS = 1.4
TURNS = 16
Way = Callable[[Tensor, Tensor, None], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (.., D), weight (E, D), bias (E) or None -> x weight^T + bias (.., E)."""
    large = x.numel() * len(weight) >= LEAST
    if not (large and _suits(x, weight, bias) and onednn_pays()):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    found = _multiply(rows, weight, bias) if _bare() else _recorded(rows, weight, bias)
    return found.view(*x.shape[:-1], len(weight))


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN may be asked. What does not fit together is torch's to refuse."""
    return (
        x.device.type == "cpu"
        and x.dtype is weight.dtype is torch.float32
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or (bias.dtype is torch.float32 and bias.shape == weight.shape[:1]))
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


def _bare() -> bool:
    """Whether nobody asks for derivatives, backward or forward, or maps over a batch."""
    return not (
        torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """(1 or B, N, D) @ (B, D, E) -> (B, N, E)."""
    if len(right) != 1:
        return left @ right
    return linear(left[0], right[0].mT)[None]


class Linear(nn.Linear):
    """torch's, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def onednn_pays() -> bool:
    """Whether oneDNN is clearly quicker here, as found out at the first question."""
    with _one_at_a_time:  # lanes may ask together, and are to be told the same
        return _tried()


_one_at_a_time = Lock()


@cache
def _tried() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    ways: tuple[Way, Way] = (F.linear, _multiply)
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        steps = torch.arange(512 * 256, dtype=torch.float32, device="cpu")
        x, weight = steps.sin().view(512, 256), steps[: 256 * 256].cos().view(256, 256)
        try:
            plain, other = (way(x, weight, None) for way in ways)
        except (AttributeError, RuntimeError, TypeError):  # a torch that has no such operator
            return False
        if not torch.allclose(plain, other, rtol=1e-4, atol=1e-4):
            return False
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for way, taken in zip(ways, times, strict=True):
                began = time.perf_counter()
                way(x, weight, None)
                taken.append(time.perf_counter() - began)
    # The least of each: what else runs on the machine only adds to them.
    return min(times[0]) >= PAYS * min(times[1])


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        bias = bias.contiguous()  # gaps are not seen
    found: Tensor = torch.ops.mkldnn._linear_pointwise(
        _dense(x), _dense(weight), bias, "none", [], ""
    )
    return found


def _dense(x: Tensor) -> Tensor:
    """Rows or columns without gaps."""
    return x if x.is_contiguous() or x.mT.is_contiguous() else x.contiguous()


def _outer(gradient: Tensor, x: Tensor) -> Tensor:
    """(N, E), (N, D) -> gradient^T x, with the shorter of both as rows: a tenth quicker."""
    if gradient.shape[1] > x.shape[1]:
        return linear(x.mT, gradient.mT).mT.contiguous()
    return linear(gradient.mT, x.mT)


def _recorded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = _Map.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Map(torch.autograd.Function):
    """The operator has no derivatives of its own; these have all further ones, too."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _multiply(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        if torch.is_autocast_enabled("cpu"):  # what was made in float32 has gradients in float32
            with torch.autocast("cpu", enabled=False):
                return _Map.backward(ctx, gradient)
        return (
            linear(gradient, weight.mT) if of_x else None,
            _outer(gradient, x) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )

    @staticmethod
    def jvp(ctx: Any, *moved: Tensor | None) -> Tensor:
        (x, weight), (by_x, by_weight, by_bias) = ctx.saved_tensors, moved
        parts = [] if by_x is None else [linear(by_x, weight)]
        if by_weight is not None:
            parts.append(linear(x, by_weight))
        if by_bias is not None:
            parts.append(by_bias.expand(len(x), -1))
        return torch.stack(parts).sum(0)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        return torch.vmap(F.linear, dims)(*given), 0
