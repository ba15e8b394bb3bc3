"""The course's perceiver, in all the forms in which it was handed in.

The handout leaves the two outer blocks to the student, and a state dict does not say what they
compute: where the layer norm stands, and what is added back. So a stranger's checkpoint is tried
in every form, and the one in which its weights make sense is the one it was trained in: a single
wrong place costs a trained model most of what it knows.

Shapes: B batch, T positions, D width, m latents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.block import Block
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.model import GPT
from whence.vocab import PAD

Examples = tuple[Tensor, Tensor]  # inputs, targets


@dataclass(frozen=True)
class Side:
    """One outer block: what is normed before the attention, and what is added to its result."""

    query_normed: bool
    source_normed: bool
    query_added: bool
    mlp_added: bool = True

    def describe(self, query: str, source: str) -> str:
        asked = f"ln1({query})" if self.query_normed else query
        seen = f"ln1({source})" if self.source_normed else source
        attended = f"attention({asked} asks {seen})"
        mixed = f"{query} + {attended}" if self.query_added else attended
        return f"z = {mixed}, then {'z + ' if self.mlp_added else ''}mlp(ln2(z))"


@dataclass(frozen=True)
class Form:
    down: Side
    up: Side

    def describe(self) -> str:
        return f"down: {self.down.describe('C', 'x')}; up: {self.up.describe('x', 'y')}"


# "Use the layernorm layers on C, and then on the input to the MLP"; in the up block "on y".
HANDOUT = Form(Side(True, False, True), Side(False, True, True))
SIDES = tuple(Side(*bits) for bits in itertools.product((True, False), repeat=4))
FORMS = tuple(Form(down, up) for down in SIDES for up in SIDES)
SHORTLIST = 16
# By how much a form may be worse than the best, and be as good: standard errors of the difference
# on the same examples, and a share of the loss, for weights that were hardly trained.
NOISE, ALIKE = 3.0, 0.01


class CoursePerceiver(GPT):
    """Whence's GPT with a bottleneck whose outer blocks follow a form."""

    def __init__(self, config: ModelConfig, vocabulary: int, form: Form = HANDOUT) -> None:
        if not config.bottleneck:
            raise WhenceError("a perceiver needs --bottleneck_dim of at least 1")
        super().__init__(config, vocabulary)
        self.form = form

    def hidden(
        self, tokens: Tensor, wanted: Tensor | None = None, reading: Tensor | None = None
    ) -> Tensor:
        if tokens.shape[1] > self.context:
            raise WhenceError(
                f"{tokens.shape[1]} characters do not fit a context of {self.context}"
            )
        x = self.embed(tokens)
        spread = self.spread(x, self.gather(x, self.form.down), self.form.up)
        return spread if wanted is None else spread[wanted]

    def gather(self, x: Tensor, side: Side) -> Tensor:
        """(B,T,D) -> (B,m,D): the latents ask the input, then talk among themselves."""
        latents = cross(self.blocks[0], self.asking(x), x, side)
        for block in self.blocks[1:-1]:
            latents = block(latents)
        return latents

    def spread(self, x: Tensor, latents: Tensor, side: Side) -> Tensor:
        """(B,T,D) and (B,m,D) -> (B,T,D): every position asks the latents."""
        normed: Tensor = self.norm(cross(self.blocks[-1], x, latents, side))
        return normed


def cross(block: torch.nn.Module, query: Tensor, source: Tensor, side: Side) -> Tensor:
    assert isinstance(block, Block)
    asked = block.norm1(query) if side.query_normed else query
    seen = block.norm1(source) if side.source_normed else source
    mixed: Tensor = block.dropout(block.attention(asked, seen))
    if side.query_added:
        mixed = query + mixed
    branch: Tensor = block.dropout(block.down(block.activation(block.up(block.norm2(mixed)))))
    return mixed + branch if side.mlp_added else branch


@torch.inference_mode()
def losses(
    model: CoursePerceiver, examples: Sequence[Examples], forms: Collection[Form]
) -> dict[Form, list[Tensor]]:
    """Each form's mean loss of every example (B,), one kind of example after the other."""
    training = model.training
    model.eval()
    result: dict[Form, list[Tensor]] = {form: [] for form in forms}
    for inputs, targets in examples:
        x = model.embed(inputs)
        for down in SIDES:
            ups = [form.up for form in forms if form.down == down]
            latents = model.gather(x, down) if ups else x
            for up in ups:
                logits = model.head(model.spread(x, latents, up)).mT
                each = F.cross_entropy(logits, targets, ignore_index=PAD, reduction="none")
                result[Form(down, up)].append(each.sum(1) / (targets != PAD).sum(1))
    model.train(training)
    return result


def level(kinds: Sequence[Tensor]) -> float:
    """The loss on the kind of example that a form is best at.

    A model that was only pretrained knows spans and one that was only finetuned knows questions;
    the right form is the one that is good at what the weights were trained on.
    """
    return min(float(kind.mean()) for kind in kinds)


def choose_form(model: CoursePerceiver, examples: Sequence[Examples]) -> tuple[Form, list[Form]]:
    """The form in which the weights make most sense, and others that make as much.

    The handout's form is taken where it is as good as the best: weights that were hardly trained
    fit many forms.
    """
    # First all forms on few examples, then those that are left on all of them.
    few = [(inputs[:3], targets[:3]) for inputs, targets in examples]
    found = losses(model, few, FORMS)
    ranked = sorted(found, key=lambda form: level(found[form]))
    found = losses(model, examples, {HANDOUT, *ranked[:SHORTLIST]})
    best = min(found, key=lambda form: level(found[form]))
    least = level(found[best])
    kind = next(number for number, each in enumerate(found[best]) if float(each.mean()) == least)

    def as_good(form: Form) -> bool:
        worse = found[form][kind] - found[best][kind]
        error = float(worse.std()) / math.sqrt(len(worse)) if len(worse) > 1 else math.inf
        return float(worse.mean()) <= max(NOISE * error, ALIKE * least)

    good = [form for form in found if as_good(form)]
    good.sort(key=lambda form: (form != HANDOUT, level(found[form])))
    return good[0], good[1:]
