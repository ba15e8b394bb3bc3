"""From a course checkpoint to a model that answers as the program that wrote it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from whence.batches import seeded
from whence.config import ModelConfig
from whence.corpus.base import Document, Question
from whence.course.checkpoint import (
    Checkpoint,
    fill,
    model_config,
    read_checkpoint,
    variant_options,
)
from whence.course.layout import BLOCK
from whence.course.material import CourseText, nearby
from whence.course.perceiver import HANDOUT, CoursePerceiver, Examples, choose_form
from whence.errors import WhenceError
from whence.model import GPT
from whence.objective import Objective, QuestionAnswer, SpanCorruption

Say = Callable[[str], None]
PROBES = 32  # examples of a kind by which a perceiver's wiring is found out


def new_model(variant: str, vocabulary: int, bottleneck: int, seed: int) -> GPT:
    """The course's model of a variant with fresh weights."""
    latents = bottleneck if variant == "perceiver" else 0
    config = ModelConfig(bottleneck=latents, **variant_options(variant))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeded(seed, "weights").getrandbits(63))
        return make_model(config, vocabulary)


def make_model(config: ModelConfig, vocabulary: int) -> GPT:
    kind = CoursePerceiver if config.bottleneck else GPT
    return kind(config, vocabulary)


def load_model(
    path: Path, variant: str, bottleneck: int | None, text: CourseText, near: Path | None, say: Say
) -> GPT:
    """The model in the file, which has to be the variant that was asked for."""
    checkpoint = read_checkpoint(path)
    if checkpoint.variant != variant:
        raise WhenceError(
            f"{path} holds a {checkpoint.variant} model ({checkpoint.sign}), "
            f"not the {variant} model that was asked for"
        )
    if checkpoint.vocabulary != len(text.vocab):
        raise WhenceError(
            f"{path} was trained with {checkpoint.vocabulary} characters and "
            f"{text.path} has {len(text.vocab)}: they do not belong together"
        )
    if bottleneck and checkpoint.latents and bottleneck != checkpoint.latents:
        raise WhenceError(
            f"{path} has {checkpoint.latents} latents, not the {bottleneck} of --bottleneck_dim"
        )
    for remark in checkpoint.remarks:
        say(remark)
    model = make_model(model_config(checkpoint), checkpoint.vocabulary)
    fill(model, checkpoint)
    if isinstance(model, CoursePerceiver):
        set_form(model, checkpoint, text, near, say)
    return model.eval()


def set_form(
    model: CoursePerceiver, checkpoint: Checkpoint, text: CourseText, near: Path | None, say: Say
) -> None:
    """Find out what the writer's blocks compute; see `whence.course.perceiver`."""
    form, others = choose_form(model, probes(model.context, text, near, say))
    model.form = form
    if others:
        say(
            f"{checkpoint.path}: its weights fit {len(others) + 1} ways to wire the outer blocks "
            f"of a perceiver, which a checkpoint does not tell; taken for {form.describe()}"
        )
    elif form != HANDOUT:
        say(f"{checkpoint.path}: not wired as in the handout but {form.describe()}")


def probes(context: int, text: CourseText, near: Path | None, say: Say) -> list[Examples]:
    """Some span corruptions and, where a training file is near, some training questions."""
    generator = random.Random(0)
    documents = generator.sample(text.documents, min(PROBES, len(text.documents)))
    found = [_batch(SpanCorruption(min(context, BLOCK // 2)), documents, text, generator)]
    train = nearby("train", text.path, near)
    if train is not None:
        try:
            questions = text.questions(train, need_answers=True)
            chosen = generator.sample(questions, min(PROBES, len(questions)))
            found.append(_batch(QuestionAnswer(context), chosen, text, generator))
        except WhenceError as error:  # nobody asked for this file: it must not stop anything
            say(f"the checkpoint is looked at without the training questions: {error}")
    return found


def _batch(
    objective: Objective,
    items: Sequence[Document | Question],
    text: CourseText,
    generator: random.Random,
) -> Examples:
    drawn = [objective(item, text.vocab, generator) for item in items]
    inputs = torch.stack([example.inputs for example in drawn])
    targets = torch.stack([example.targets for example in drawn])
    used = int((targets != 0).any(dim=0).nonzero().max()) + 1
    return inputs[:, :used], targets[:, :used]
