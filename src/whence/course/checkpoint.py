"""The course's `*.params` files: read without running anything in them, and written.

A file is taken apart by role and shape. What cannot be matched is an error that names it: a model
that is loaded in part would answer, only differently from the program that wrote it.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.config import ModelConfig
from whence.course.layout import (
    BLOCK,
    CONTAINERS,
    HEADS,
    canonical_name,
    is_buffer,
    variant_of,
)
from whence.course.translation import course_state, whence_state
from whence.errors import WhenceError
from whence.files import write_bytes
from whence.model import GPT


@dataclass(frozen=True)
class Checkpoint:
    """Somebody's weights under their canonical names, and what they say about the model."""

    path: Path
    variant: str
    sign: str  # by what one sees the variant
    state: dict[str, Tensor]
    remarks: tuple[str, ...]  # what was matched by shape alone

    @property
    def vocabulary(self) -> int:
        return self.state["tok_emb.weight"].shape[0]

    @property
    def latents(self) -> int:
        return self.state["down_block.C"].shape[1] if self.variant == "perceiver" else 0


def load_tensors(path: Path) -> dict[str, Tensor]:
    """A torch file's tensors; nothing that the file may contain is ever executed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WhenceError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about storage classes of old files
            loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|global:?) (?!GLOBAL)([\w.]+)", str(error))
        if named:
            raise WhenceError(
                f"{path} was not loaded: it holds {named[1]}, not only tensors, "
                "and such a file could run any program"
            ) from None
        raise WhenceError(f"{path} is not a torch checkpoint, or it is damaged") from None
    except Exception:  # torch raises many kinds for damaged files
        raise WhenceError(
            f"{path} is not a torch checkpoint, or it is cut short ({len(content):,} bytes)"
        ) from None
    for _ in CONTAINERS:  # in any order, but not for ever: a file can hold itself
        inside = (loaded.get(name) for name in CONTAINERS) if isinstance(loaded, Mapping) else ()
        loaded = next((value for value in inside if isinstance(value, Mapping)), loaded)
    if not isinstance(loaded, Mapping) or not loaded:
        raise WhenceError(f"{path} holds no state dict: expected names with tensors")
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
    if len(tensors) < len(loaded):
        other = next(name for name, value in loaded.items() if not isinstance(value, Tensor))
        raise WhenceError(f"{path} holds no state dict: {other!r} is not a tensor")
    for name, tensor in tensors.items():
        _check_numbers(path, name, tensor)
    return tensors


def _check_numbers(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse what is no plain array of numbers, and numbers that no training should end with."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    turned = tensor.is_complex() and is_buffer(name)  # a table of rotations may be
    if not plain or tensor.is_quantized or (tensor.is_complex() and not turned):
        kind = "complex" if tensor.is_complex() else "sparse, quantized or without data"
        raise WhenceError(f"{path}: {name} is {kind}: expected a plain tensor of numbers")
    if is_buffer(name):
        return
    if not tensor.is_floating_point():
        raise WhenceError(f"{path}: {name} holds {tensor.dtype} numbers: weights are fractions")
    if not bool(tensor.float().isfinite().all()):
        raise WhenceError(f"{path}: {name} holds NaN or infinity: the training of it has failed")


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and name every tensor; the shapes are checked when a model is made of it."""
    tensors = load_tensors(path)
    state: dict[str, Tensor] = {}
    nameless: list[str] = []
    for name, tensor in tensors.items():
        canonical = canonical_name(name)
        if canonical is None:
            nameless.append(name)
        elif canonical in state:
            raise WhenceError(f"{path}: two tensors could be {canonical}, one of them {name}")
        else:
            tensor = _table(tensor) if canonical.endswith(".rope_cache") else tensor
            state[canonical] = tensor.float() if tensor.is_floating_point() else tensor
    if "tok_emb.weight" not in state or "head.weight" not in state:
        known = ", ".join(list(tensors)[:4])
        raise WhenceError(
            f"{path} is the checkpoint of another kind of model: expected tok_emb.weight, "
            f"blocks.0.attn.... and head.weight, found {known}, ..."
        )
    _check_dimensions(path, state)
    for name in ("pos_emb", "down_block.C"):
        if name in state:
            state[name] = _one(path, name, state[name])
    remarks = _by_shape(path, tensors, state, nameless)
    variant, sign = variant_of(state)
    return Checkpoint(path, variant, sign, state, tuple(remarks))


def _table(turns: Tensor) -> Tensor:
    """Cosines and sines (T, d/2, 2), also of complex numbers and with a place for the batch."""
    turns = torch.view_as_real(turns) if turns.is_complex() else turns
    while turns.ndim > 3 and turns.shape[0] == 1:
        turns = turns[0]
    return turns


def _check_dimensions(path: Path, state: Mapping[str, Tensor]) -> None:
    """The tensors that the model's shape is read off have to have the shape of such tensors."""
    expected = {
        "tok_emb.weight": (2,),
        "head.weight": (2,),
        "pos_emb": (2, 3),
        "down_block.C": (2, 3),
        "blocks.0.attn.mask": (2, 3, 4),
        "blocks.0.attn.rope_cache": (3,),
        "blocks.0.attn.w2": (2,),
    }
    for name, allowed in expected.items():
        if name in state and (state[name].ndim not in allowed or 0 in state[name].shape):
            wanted = " or ".join(f"{number} dimensions" for number in allowed)
            raise WhenceError(
                f"{path}: {name} has the shape {tuple(state[name].shape)}, expected {wanted}"
            )


def _one(path: Path, name: str, tensor: Tensor) -> Tensor:
    """(n, D) or (1, n, D) -> (1, n, D): one table for all rows of a batch."""
    if tensor.ndim == 3 and tensor.shape[0] != 1:
        raise WhenceError(
            f"{path}: {name} has the shape {tuple(tensor.shape)}, expected 1 in the first place"
        )
    return tensor.reshape(1, *tensor.shape[-2:])


def _by_shape(
    path: Path, tensors: Mapping[str, Tensor], state: dict[str, Tensor], nameless: list[str]
) -> list[str]:
    """The perceiver's basis has had many names; it is the one nameless tensor of width D."""
    remarks = []
    width = state["tok_emb.weight"].shape[1]
    if any(name.startswith("down_block.") for name in state) and "down_block.C" not in state:
        fitting = [
            name
            for name in nameless
            if tensors[name].ndim in (2, 3) and tensors[name].shape[-1] == width
        ]
        if len(fitting) == 1:
            state["down_block.C"] = _one(path, fitting[0], tensors[fitting[0]].float())
            nameless.remove(fitting[0])
            remarks.append(f"{path}: {fitting[0]} is taken for down_block.C by its shape")
    if nameless:
        listed = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in nameless[:6])
        raise WhenceError(f"{path}: what these tensors are for is not known: {listed}")
    return remarks


def model_config(checkpoint: Checkpoint, dropout: float = 0.1) -> ModelConfig:
    """The shape of the model, read off the tensors."""
    state, variant = checkpoint.state, checkpoint.variant
    width = state["tok_emb.weight"].shape[1]
    numbers = {int(n.split(".")[1]) for n in state if n.startswith("blocks.")}
    if numbers != set(range(len(numbers))):
        raise WhenceError(f"{checkpoint.path}: blocks {sorted(numbers)} are not numbered from 0 on")
    layers = len(numbers) + (2 if variant == "perceiver" else 0)
    if layers == 0:
        raise WhenceError(f"{checkpoint.path}: the model has no blocks")
    context, heads, columns = BLOCK, HEADS, BLOCK - 1
    if "pos_emb" in state:
        context = state["pos_emb"].shape[1]
    elif "blocks.0.attn.mask" in state:
        context = state["blocks.0.attn.mask"].shape[-1]
    if "blocks.0.attn.rope_cache" in state:
        if "blocks.0.attn.mask" not in state:
            context = state["blocks.0.attn.rope_cache"].shape[0]
        heads = width // (2 * state["blocks.0.attn.rope_cache"].shape[1])
    if "blocks.0.attn.w2" in state:
        heads = width // state["blocks.0.attn.w2"].shape[0]
        columns = state["blocks.0.attn.w2"].shape[1]
    if heads < 1 or width % heads:
        raise WhenceError(f"{checkpoint.path}: a width of {width} is not one of {heads} heads")
    return ModelConfig(
        layers=layers,
        heads=heads,
        width=width,
        context=context,
        dropout=dropout,
        bottleneck=checkpoint.latents,
        **variant_options(variant, columns),
    )


def variant_options(variant: str, columns: int = BLOCK - 1) -> dict[str, Any]:
    """What a variant is called in a recipe; the synthesizer's weights end before the block."""
    if variant == "synthesizer":
        return {"attention": "synthesizer", "options": {"form": "course", "columns": columns}}
    return {"attention": "rope" if variant == "rope" else "softmax"}


def fill(model: GPT, checkpoint: Checkpoint) -> None:
    """Put the checkpoint's weights into a model of its shape; all of them or an error."""
    expected = course_state(model)
    found = {name: t for name, t in checkpoint.state.items() if not is_buffer(name)}
    wanted = {name: t for name, t in expected.items() if not is_buffer(name)}
    missing = [name for name in wanted if name not in found]
    spare = [name for name in found if name not in wanted]
    if missing or spare:
        parts = [f"missing {', '.join(missing[:4])}"] if missing else []
        parts += [f"left over {', '.join(spare[:4])}"] if spare else []
        raise WhenceError(
            f"{checkpoint.path} does not fit a {checkpoint.variant} model: {'; '.join(parts)}"
        )
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise WhenceError(
                f"{checkpoint.path}: {name} has the shape {tuple(found[name].shape)}, "
                f"expected {tuple(tensor.shape)}"
            )
    _check_rotation(checkpoint, expected)
    model.load_state_dict(whence_state(model, found))


def _check_rotation(checkpoint: Checkpoint, expected: Mapping[str, Tensor]) -> None:
    """A table of other angles means another function: then the answers would not be the same."""
    for name, theirs in checkpoint.state.items():
        if not name.endswith(".rope_cache"):
            continue
        table = expected.get(name)
        if table is None:
            raise WhenceError(
                f"{checkpoint.path}: {name} stands beside learned positions: "
                "its model computes something else than the course's"
            )
        # It may be longer than the model; and bfloat16 rounds by 2e-3.
        used = theirs[: len(table)].float()
        if used.shape != table.shape or not torch.allclose(used, table, atol=5e-3):
            raise WhenceError(
                f"{checkpoint.path}: {name} is not the course's rotation "
                "(cos and sin of t / 10000^(2i/d)): its model computes something else"
            )


def write_checkpoint(path: Path, model: GPT) -> None:
    """The course's layout, masks included, so that the course's program loads it strictly."""
    buffer = io.BytesIO()  # torch's own writer does not say that the disk is full
    torch.save(course_state(model), buffer)
    write_bytes(path, buffer.getbuffer())
