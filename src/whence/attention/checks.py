"""What an attention refuses, in one sentence, before it would fail later, or worse, not fail."""

from typing import ClassVar

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def refuse_below(least: int, **sizes: object) -> None:
    """Refuse options that are not whole numbers of at least `least`, by their names."""
    refuse_unless_whole(**sizes)
    for name, size in sizes.items():
        if isinstance(size, int) and size < least:
            raise ValueError(f"{name} must be at least {least}, not {size}")


def refuse_unless_whole(**numbers: object) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{name} must be a whole number, not {number!r}")


def refuse_unless_share(**shares: object) -> None:
    """Refuse options that are not numbers from 0 to below 1."""
    for name, share in shares.items():
        if not (isinstance(share, int | float) and 0.0 <= share < 1.0):
            raise ValueError(f"{name} must be in [0, 1), not {share!r}")


def refuse_unless_flag(**flags: object) -> None:
    """Refuse options that are not True or False: the text "no" would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, not {flag!r}")


class Checked(nn.Module):
    """The checks of arguments; `Attention` has the rest."""

    mechanism: ClassVar[str] = ""
    # Whether a step may bring several tokens a row: the rest of a prompt whose beginning is known.
    strides: ClassVar[bool] = False
    width: int
    context: int
    causal: bool
    dropout: float
    proj: nn.Linear

    def check(self, x: Tensor, source: Tensor | None, padding: Tensor | None) -> None:
        """Refuse what would otherwise fail later, or worse, not fail."""
        if source is None and padding is None and x.dim() == 3:  # nearly always, so with few calls
            _, length, width = x.shape
            if width == self.width and 1 <= length <= self.context:
                return self.check_type("x", x)
        for name, tensor in (("x", x), ("source", source)):
            if tensor is None:
                continue
            if tensor.dim() != 3 or tensor.shape[2] != self.width:
                raise ValueError(
                    f"{name} must be (batch, length, {self.width}), not {tuple(tensor.shape)}"
                )
            if tensor.shape[1] < 1:
                raise ValueError(f"{name} has no positions")
            if tensor.shape[1] > self.context:
                raise ValueError(
                    f"{name} has {tensor.shape[1]} positions, "
                    f"but this attention was made for a context of {self.context}"
                )
            self.check_type(name, tensor)
        if source is None and padding is None:
            return
        real = x if source is None else source
        if source is not None and source.shape[0] != x.shape[0]:
            raise ValueError(f"x has {x.shape[0]} rows and source {source.shape[0]}")
        if padding is not None and (padding.dtype != torch.bool or padding.shape != real.shape[:2]):
            raise ValueError(
                f"padding must be bool of shape {tuple(real.shape[:2])} (True = a real position), "
                f"not {padding.dtype} of shape {tuple(padding.shape)}"
            )

    def check_decoding(self, x: Tensor) -> None:
        if not self.causal:
            raise ValueError(f"{self.mechanism} is not causal: it cannot decode step by step")
        if self.training and self.dropout:
            raise ValueError("decoding is for evaluation: call eval() first, or drop nothing")
        if x.shape[0] < 1:
            raise ValueError("x has no rows")

    def check_prefill(self, x: Tensor, room: int | None) -> None:
        self.check_decoding(x)
        self.check(x, None, None)
        if room is not None:
            refuse_unless_whole(room=room)
        if room is not None and not x.shape[1] <= room <= self.context:
            raise ValueError(
                f"room must be between the {x.shape[1]} positions given and the context "
                f"({self.context}), not {room}"
            )

    def check_type(self, name: str, tensor: Tensor) -> None:
        weight = self.proj.weight
        if tensor.dtype == weight.dtype:
            return
        # Autocast converts whatever it takes for low precision, and float64 it does not touch.
        rounded = torch.float64 not in (tensor.dtype, weight.dtype)
        converted = rounded and torch.is_autocast_enabled(tensor.device.type)
        if not converted:
            raise ValueError(
                f"{name} is {tensor.dtype} and the weights are {weight.dtype}: convert one"
            )

    def check_step(
        self, x: Tensor, state: State, positions: Tensor, room: int | None = None
    ) -> None:
        """`room`: how many positions the state has place for, where it has one for each."""
        self.check_decoding(x)
        self.check_type("x", x)
        if positions.is_floating_point() or positions.is_complex():
            raise ValueError(f"positions must be whole numbers, not {positions.dtype}")
        fits = x.dim() == 3 and x.shape[2] == self.width and positions.shape == x.shape[:1]
        if not fits or x.shape[1] < 1 or (x.shape[1] > 1 and not self.strides):
            raise ValueError(
                f"a step takes x (batch, 1, {self.width}) and positions (batch,), "
                f"not {tuple(x.shape)} and {tuple(positions.shape)}"
            )
        for tensor in state.values():
            if tensor.shape[0] != x.shape[0]:
                raise ValueError(f"the state has {tensor.shape[0]} rows and x {x.shape[0]}")
            if tensor.shape[0] > 1 and tensor.stride(0) == 0:
                raise ValueError("rows of the state share their memory: repeat it, do not expand")
        room = room or self.context
        if int(positions.max()) + x.shape[1] > room or int(positions.min()) < 0:
            what = "room of the state" if room < self.context else "context"
            raise ValueError(f"positions must be in 0 ... {room - 1}: the {what} is full")
