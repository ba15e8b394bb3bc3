"""Which parameter is moved by which rule, and how fast at which moment."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from whence.config import StageConfig
from whence.model import GPT


def newton_schulz(matrices: Tensor) -> Tensor:
    """Nearest half-orthogonal matrices, roughly: five quintic Newton-Schulz steps.

    The coefficients are those of Jordan et al. (Muon, 2024): they push every singular value into
    about 0.7 .. 1.2, which is enough for an update. torch.optim.Muon does this in bfloat16, which
    a CPU without the instructions is slow at, and some machines crash on; here it is float32, or
    what autocast says (`whence.precision`).
    """
    device = matrices.device.type
    low = torch.is_autocast_enabled(device)
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.to(torch.get_autocast_dtype(device) if low else x.dtype).contiguous()
    for _ in range(5):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, factor, x, beta=3.4445)
    result = x.to(matrices.dtype)
    return result.mT if tall else result


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: every direction of a matrix is moved equally far.

    Parameters of one shape are stacked, so that a step is a few batched matrix products. A matrix
    that is two or three square ones on top of each other (queries, keys, values) is taken apart.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, *, momentum: float, weight_decay: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(list(parameters), defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                rows, columns = shape
                parts = rows // columns if rows in (2 * columns, 3 * columns) else 1
                stacked = updates.view(-1, rows // parts, columns)
                moved = newton_schulz(stacked).view(updates.shape)
                scale = max(1.0, rows / parts / columns) ** 0.5
                for parameter, update in zip(parameters, moved, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "average" not in state:
            state["average"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        average: Tensor = state["average"]
        average.lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)  # Nesterov: look one step ahead


def dense_parameters(model: GPT) -> list[nn.Parameter]:
    """All but the rows of a word memory, whose gradients are sparse."""
    rows = None if model.memory is None else model.memory.table
    return [parameter for parameter in model.parameters() if parameter is not rows]


def make_optimizers(model: GPT, stage: StageConfig) -> list[torch.optim.Optimizer]:
    """Weight decay on matrices of linear maps only; Muon, if asked for, inside the blocks only."""
    inside = {id(p) for p in model.blocks.parameters()}
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    muon: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in dense_parameters(model):
        if not parameter.requires_grad:
            continue
        is_matrix = id(parameter) in linear
        if stage.optimizer == "muon" and is_matrix and id(parameter) in inside:
            muon.append(parameter)
        elif is_matrix:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": stage.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if muon:
        optimizers.append(
            Muon(muon, stage.muon_rate, momentum=0.95, weight_decay=stage.weight_decay)
        )
    adam = torch.optim.AdamW(groups, lr=stage.rate, betas=(0.9, stage.beta2), fused=True)
    optimizers.append(adam)
    if model.memory is not None:
        # Only the rows that a step touched are moved, and only their averages decay.
        optimizers.append(
            torch.optim.SparseAdam(
                [model.memory.table], lr=stage.memory_rate, betas=(0.9, stage.beta2)
            )
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["start"] = group["lr"]  # what the schedule scales
    return optimizers


def set_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["start"] * factor


def rate_factor(stage: StageConfig, spent: dict[str, float], progress: float) -> float:
    """The share of the learning rate at this moment.

    `spent` holds steps, tokens, seconds and epochs of the stage so far; `progress` is how much of
    the stage is over, in [0, 1].
    """
    now = spent[stage.unit]
    # The unit's first step already moves: a rate of zero would waste it.
    if stage.warmup and now < stage.warmup:
        return max(now, stage.warmup * 1e-2) / stage.warmup
    if stage.schedule == "constant":
        return 1.0
    if stage.decay:
        done = (now - stage.warmup) / stage.decay
    else:
        done = max(0.0, progress - stage.hold) / (1 - stage.hold)
    if stage.schedule == "linear":
        return stage.floor + (1 - stage.floor) * (1 - min(done, 1.0))
    if stage.schedule == "cosine":
        done = min(done, 1.0)
    # "cosine-rebound" goes on along the cosine, which rises again, as the older course years did.
    # Far out (a decay of next to nothing) no phase is left, and infinity has no cosine.
    turns = math.fmod(min(done, 1e15), 2.0)
    return max(stage.floor, 0.5 * (1 + math.cos(math.pi * turns)))
