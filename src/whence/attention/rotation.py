"""Rotary positions (Su et al. 2021, arXiv:2104.09864), for every mechanism with queries and keys.

Position t turns the i-th adjacent pair of a head's query and key by the angle t * theta_i with
theta_i = 10000^(-2(i-1)/d), so that a score depends on the distance of the two positions only.
"""

import torch
from torch import Tensor, nn


class Rotation(nn.Module):
    """Turns adjacent pairs of the last dimension by an angle that grows with the position."""

    theta: Tensor  # (d/2,): the angle from one position to the next
    turns: Tensor  # (context, d/2, 2): cosine and sine

    def __init__(self, size: int, context: int, base: float = 10000.0) -> None:
        super().__init__()
        if size % 2:
            raise ValueError(f"rope turns pairs: a head of width {size} is not even")
        # In float64: the angle of position 16,000 in float32 would be wrong by 1e-3.
        theta = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * theta
        # Made from the arguments alone, so no part of a checkpoint.
        turns = torch.stack((angles.cos(), angles.sin()), -1).to(torch.get_default_dtype())
        self.register_buffer("turns", turns, persistent=False)
        self.register_buffer("theta", theta.to(turns.dtype), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate x (B, H, T, d); `positions`, (B,) or (B, T), places the tokens of a step."""
        return self.turn(x.transpose(1, 2), positions).transpose(1, 2)

    def turn(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """The same of x (B, T, ..., d): heads inside positions, as they lie in memory."""
        between = (1,) * (x.dim() - 3)
        if positions is None:
            turns = self.turns[: x.shape[1]].view(1, x.shape[1], *between, -1, 2)
        else:
            turns = self.turns[positions].view(*x.shape[:2], *between, -1, 2)
        if torch.compiler.is_compiling():
            # The compiler fuses this form; it does not generate code for complex numbers.
            pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
            (even, odd), (cosine, sine) = pairs.unbind(-1), turns.to(x.dtype).unbind(-1)
            turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
            return turned.flatten(-2)
        # One complex product is about 20 times faster in eager mode than strided halves. There are
        # no complex numbers of low precision: those are turned in full and rounded again.
        full = x if x.dtype == torch.float64 else x.float()
        pairs = full.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
        uneven = any(step % 2 for step in (full.storage_offset(), *full.stride()[:-1]))
        if full.stride(-1) != 1 or uneven:
            pairs = pairs.contiguous()
        product = torch.view_as_complex(pairs) * torch.view_as_complex(turns.to(full.dtype))
        return torch.view_as_real(product).flatten(-2).to(x.dtype)
