"""Whence: small transformers whose knowledge you control, and where their answers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whence.answer import Answerer

__all__ = ["__version__", "load"]


def load(run: str) -> Answerer:
    """Open a run directory: an object with `.ask(names)`, `.model`, `.vocab`."""
    from whence.answer import Answerer

    return Answerer.open(run)
