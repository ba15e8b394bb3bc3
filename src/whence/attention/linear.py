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
MANY = 512  # rows
Way = Callable[[Tensor, Tensor, None], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (.., D), weight (E, D), bias (E) or None -> x weight^T + bias (.., E)."""
    compiling = torch.compiler.is_compiling()  # nothing can be tried while code is made
    if not (compiling or onednn_pays()):
        return F.linear(x, weight, bias)
    if x.numel() * len(weight) < LEAST or not _suits(x, weight, bias):
        return F.linear(x, weight, bias)
    if compiling and derived():
        return F.linear(x, weight, bias)
    if compiling:
        made: Tensor = _opaque(x.reshape(-1, x.shape[-1]), weight, bias)
        return made.view(*x.shape[:-1], len(weight))
    rows = x.reshape(-1, x.shape[-1])
    found = (
        _recorded(rows, weight, bias)
        if torch.is_grad_enabled() or derived()
        else multiply(rows, weight, bias)
    )
    return found.view(*x.shape[:-1], len(weight))


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN may be asked. What does not fit together is torch's to refuse."""
    return (
        weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or (bias.dtype is torch.float32 and bias.shape == weight.shape[:1]))
        and plain_numbers(x, weight)
    )


def plain_numbers(*tensors: Tensor) -> bool:
    """Float32 in this machine's memory, which nobody wants in another precision."""
    return (
        all(x.dtype is torch.float32 and x.device.type == "cpu" for x in tensors)
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


def derived() -> bool:
    """Whether somebody asks for forward derivatives, or maps over a batch."""
    return forward_ad._current_level >= 0 or bool(torch._C._are_functorch_transforms_active())


def product(left: Tensor, right: Tensor) -> Tensor:
    """(1 or B, N, D) @ (B, D, E) -> (B, N, E)."""
    B, D, E = right.shape
    if B == len(left) == 1:
        # Not [0], whose gradient would be put into zeros of all batches.
        return linear(left.squeeze(0), right.squeeze(0).mT)[None]
    small = B == 0 or len(left) not in (1, B) or left.shape[1] * D * E < LEAST
    if small or torch.compiler.is_compiling() or not onednn_pays():
        return left @ right
    pairs = zip(left.expand(B, -1, -1).unbind(), right.unbind(), strict=True)
    return torch.stack([linear(one, two.mT) for one, two in pairs])


class Linear(nn.Linear):
    """torch's, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def onednn_pays() -> bool:
    """Whether oneDNN is clearly quicker here, as found out at the first question."""
    if not _known:
        with _one_at_a_time:  # lanes may ask together, and are to be told the same
            if not _known:
                _known.append(_tried())
    return _known[0]


# Asked before every product, so it is looked up and nothing else.
_known: list[bool] = []
_one_at_a_time = Lock()


def _tried() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    ways: tuple[Way, Way] = (F.linear, multiply)
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


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `linear` says, of rows (N, D), by oneDNN."""
    if bias is not None:
        bias = bias.contiguous()  # gaps are not seen
    found: Tensor = torch.ops.mkldnn._linear_pointwise(
        _dense(x), _dense(weight), bias, "none", [], ""
    )
    return found


def _dense(x: Tensor) -> Tensor:
    """Rows or columns without gaps."""
    if x.is_contiguous() or x.mT.is_contiguous():
        return x
    return x.mT.contiguous().mT if x.stride(0) == 1 else x.contiguous()


def outer(gradient: Tensor, x: Tensor) -> Tensor:
    """A weight's: (N, E), (N, D) -> gradient^T x. The shorter as rows: a tenth quicker, and made up
    for by the copy of what is found if there are few numbers to sum."""
    if gradient.shape[1] > x.shape[1] and len(x) >= MANY:
        return linear(x.mT, gradient.mT).mT.contiguous()
    return linear(gradient.mT, x.mT)


def _recorded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    way = _Transformed if derived() else _Map
    found: Tensor = way.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Map(torch.autograd.Function):
    """The operator has no derivatives of its own; these have all further ones, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        if torch.is_autocast_enabled("cpu"):  # what was made in float32 has gradients in float32
            with torch.autocast("cpu", enabled=False):
                return _Map.backward(ctx, gradient)
        return (
            linear(gradient, weight.mT) if of_x else None,
            outer(gradient, x) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


class _Transformed(_Map):
    """The same for forward derivatives and maps over a batch. torch looks up the signature of such
    a function at every call, which takes as long as a small product."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        return multiply(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

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


@torch.library.custom_op("whence::linear", mutates_args=())
def _opaque(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """For a compiler, which would take torch's own."""
    return (multiply if onednn_pays() else F.linear)(x, weight, bias)


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    return (
        _opaque(gradient, weight.mT, None) if of_x else None,
        _opaque(gradient.mT, x.mT, None) if of_weight else None,
        gradient.sum(0) if of_bias else None,
    )


_opaque.register_autograd(_gradients, setup_context=_remember)
