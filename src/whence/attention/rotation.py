"""Rotary positions (Su et al. 2021, arXiv:2104.09864), for every mechanism with queries and keys.

Position t turns the i-th adjacent pair of a head's query and key by the angle t * theta_i with
theta_i = 10000^(-2(i-1)/d), so that a score depends on the distance of the two positions only.
"""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from whence.attention.checks import refuse_below
from whence.attention.linear import derived


class Rotation(nn.Module):
    """Turns adjacent pairs of the last dimension by an angle that grows with the position."""

    theta: Tensor  # (d/2,): the angle from one position to the next
    turns: Tensor  # (context, d/2, 2): cosine and sine

    def __init__(self, size: int, context: int, base: float = 10000.0) -> None:
        super().__init__()
        refuse_below(1, size=size, context=context)
        if size % 2:
            raise ValueError(f"rope turns pairs: a head of width {size} is not even")
        self.size, self.context, self.base = size, context, base
        # Made from the arguments alone, so no part of a checkpoint.
        like = torch.empty(0)
        for name, table in zip(("theta", "turns"), self.tables(like), strict=True):
            self.register_buffer(name, table, persistent=False)

    def tables(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """theta and turns on a tensor's device, in its precision but float32 at least."""
        # In float64: the angle of position 16,000 in float32 would be wrong by 1e-3.
        steps = torch.arange(0, self.size, 2, dtype=torch.float64, device=like.device)
        theta = self.base ** (-steps / self.size)
        places = torch.arange(self.context, dtype=torch.float64, device=like.device)
        angles = places[:, None] * theta
        turns = torch.stack((angles.cos(), angles.sin()), -1)
        kind = torch.promote_types(like.dtype, torch.float32)
        return theta.to(kind), turns.to(kind)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moved or converted, the tables are made anew: converting them twice would round them, and
        of a layer made without memory (the device "meta") they would be anything."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.theta, self.turns = self.tables(self.turns)
        return self

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate x (B, H, T, d); `positions`, (B,) or (B, T), places the tokens of a step."""
        return self.turn(positions, x.transpose(1, 2))[0].transpose(1, 2)

    def turn(self, positions: Tensor | None, *places: Tensor) -> list[Tensor]:
        """The same of tensors (B, T, H, d) of one shape and precision: queries and keys at once."""
        x = places[0]
        rows, T, heads, size = x.shape
        turns = self.turns_of(x, positions)
        if torch.compiler.is_compiling():
            return turned_by_halves(turns.to(x.dtype).unsqueeze(-3), *places)
        # One complex product is about 20 times faster in eager mode than strided halves. There are
        # no complex numbers of low precision: those are turned in full and rounded again.
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        by = torch.view_as_complex(turns.to(kind)).unsqueeze(-2)
        found = []
        for x in places:
            full = lying_in_pairs(x.to(kind))
            pairs = torch.view_as_complex(full.view(rows, T, heads, size // 2, 2))
            turned = torch.view_as_real(pairs * by).flatten(-2)
            found.append(turned.to(x.dtype))
        return found

    def turn_in_place(self, positions: Tensor | None, places: Tensor) -> None:
        """The same of queries and keys side by side (B,T,n,H,d), which nobody else has seen: of a
        short text the new memory for them costs as much as the product."""
        turns = self.turns_of(places[:, :, 0], positions)
        pairs = torch.view_as_complex(places.view(*places.shape[:-1], -1, 2))
        pairs *= torch.view_as_complex(turns)[..., None, None, :]

    def may_turn_in_place(self, joined: Tensor) -> bool:
        """Whether there are complex numbers of that precision, and nothing is recorded."""
        full = joined.dtype in (torch.float32, torch.float64) and joined.dtype == self.turns.dtype
        return full and not (joined.requires_grad or torch.compiler.is_compiling() or derived())

    def turns_of(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Cosine and sine (T or B,T, d/2, 2) for the positions of x (B,T,H,d)."""
        rows, T, _, size = x.shape
        if size != self.size or (positions is None and self.context < T):
            raise ValueError(
                f"these rotations are for {self.context} positions of width {self.size}, "
                f"not {T} of width {size}"
            )
        return self.turns[:T] if positions is None else self.turns[positions].view(rows, T, -1, 2)


def turned_by_halves(turns: Tensor, *places: Tensor) -> list[Tensor]:
    """What a compiler fuses: it does not generate code for complex numbers."""
    cosine, sine = turns.unbind(-1)
    found = []
    for x in places:
        even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
        found.append(turned.flatten(-2))
    return found


def lying_in_pairs(x: Tensor) -> Tensor:
    """Adjacent pairs begin at even places of the memory, as complex numbers have to."""
    *steps, last = x.stride()
    odd = x.storage_offset()
    for step in steps:
        odd |= step
    return x.contiguous() if odd % 2 or last != 1 else x
