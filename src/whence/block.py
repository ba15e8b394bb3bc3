"""What a model is made of: norms, activations, an attention by its name, and the block around it.

Shapes: B batch, T positions, D width.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from whence.attention import MECHANISMS, Attention
from whence.attention.dropout import Dropout
from whence.attention.linear import Linear
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.naming import nearest


class RMSNorm(nn.Module):
    """x / root mean square of x, without parameters: the matrices that follow can scale."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],))


class SquaredReLU(nn.Module):
    """relu(x)^2 (So et al. 2021): cheaper than GELU on a CPU, and sparser."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


def make_norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.width) if config.norm == "layer" else RMSNorm()


def make_attention(
    config: ModelConfig, mechanism: str | None = None, seed: int | None = None, number: int = 0
) -> Attention:
    """The mechanism that the configuration names; its options are checked by the mechanism.

    `seed`: of what it draws once and keeps, unless its options say; every layer has its own.
    """
    name = mechanism or config.attention
    if name not in MECHANISMS:
        raise WhenceError(f"unknown attention {name!r}; known: {', '.join(sorted(MECHANISMS))}")
    options: dict[str, Any] = {} if mechanism else dict(config.options)
    if is_rotary(config) and name != "rope":
        options["rope"] = True
    if config.qk_norm:
        options["qk_norm"] = True
    kind = MECHANISMS[name]
    known = [option for option in known_options(kind) if option not in ("dropout", "bias")]
    for option in options:
        if option not in known:
            raise WhenceError(
                f"attention {name!r} has no option {option!r}{nearest(option, known)}; "
                f"it has {', '.join(known)}"
            )
    if seed is not None and "seed" in known:
        options["seed"] = own_seed(options.get("seed", seed), config.layers, number)
    try:
        return kind(
            width=config.width,
            heads=config.heads,
            context=config.context,
            causal=True,
            dropout=config.dropout,
            bias=config.bias,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise WhenceError(f"attention {name!r}: {error}") from error


def own_seed(seed: Any, layers: int, number: int) -> Any:
    """Another one for every layer of every seed; what is no number is refused where it is used."""
    return (seed * layers + number) % 2**63 if isinstance(seed, int) else seed


def known_options(kind: type[Attention]) -> list[str]:
    """The options of a mechanism by their names, its own first."""
    found: dict[str, None] = {}
    for layer in kind.__mro__[: kind.__mro__.index(Attention) + 1]:
        made = inspect.signature(layer).parameters.values()
        found |= dict.fromkeys(one.name for one in made if one.kind is one.KEYWORD_ONLY)
    return list(found)


def is_rotary(config: ModelConfig) -> bool:
    """Whether positions are rotations of queries and keys, in every block."""
    return config.attention == "rope" or config.positions == "rope"


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(
        self,
        config: ModelConfig,
        mechanism: str | None = None,
        seed: int | None = None,
        number: int = 0,
    ) -> None:
        super().__init__()
        width = config.width
        self.norm1 = make_norm(config)
        self.attention = make_attention(config, mechanism, seed, number)
        self.norm2 = make_norm(config)
        self.up = Linear(width, 4 * width, bias=config.bias)
        self.activation = nn.GELU() if config.activation == "gelu" else SquaredReLU()
        self.down = Linear(4 * width, width, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def mlp(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down(self.activation(self.up(self.norm2(x))))
        result: Tensor = x + self.dropout(mixed)
        return result

    def forward(
        self, x: Tensor, source: Tensor | None = None, wanted: Tensor | None = None
    ) -> Tensor:
        """With a source, x asks and the normalised source is looked at (the perceiver's blocks).

        `wanted` (B,T): the only positions whose results are needed; they come as (N,D).
        """
        looked = self.attention(self.norm1(x)) if source is None else self._look(x, source)
        x = x + self.dropout(looked)
        return self.mlp(x if wanted is None else x[wanted])

    def _look(self, x: Tensor, source: Tensor) -> Tensor:
        result: Tensor = self.attention(x, self.norm1(source))
        return result

    def prefill(self, x: Tensor, room: int, last: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """`last`: only the final position's result is wanted, so the MLP sees only that."""
        mixed, state = self.attention.prefill(self.norm1(x), room)
        return self.mlp((x + mixed)[:, -1:] if last else x + mixed), state

    def step(
        self, x: Tensor, state: dict[str, Tensor], positions: Tensor, last: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mixed, state = self.attention.step(self.norm1(x), state, positions)
        return self.mlp((x + mixed)[:, -1:] if last else x + mixed), state
