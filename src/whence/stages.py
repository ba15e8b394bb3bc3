"""How far a training is: what was spent, what bounds it, and what is due."""

from __future__ import annotations

import math
from dataclasses import dataclass

from whence.batches import Batches
from whence.config import Config, StageConfig

SELDOM = 20  # times as long as a checkpoint took to write, at least, until the next


@dataclass
class Clock:
    """How far a training is. Everything in here is saved with a checkpoint."""

    stage: int = 0
    step: int = 0  # over all stages
    seconds: float = 0.0  # over all stages, without pauses between interruption and resumption
    characters: int = 0  # over all stages, padding not counted
    stage_step: int = 0
    stage_seconds: float = 0.0
    stage_tokens: int = 0  # targets that carried a loss
    stage_examples: int = 0
    epochs: float = 0.0  # passes over the largest part of the stage, also after its end
    evaluated: int = 0  # evaluations done in this stage
    loss: float = math.nan  # of the stage, averaged over the last steps
    window: int = 0  # the place in the stage's batches
    batch: int = 0
    precision: str = ""  # of the products; chosen once, kept for the whole training

    def next_stage(self) -> None:
        self.stage += 1
        self.stage_step = self.stage_tokens = self.stage_examples = self.window = self.batch = 0
        self.evaluated = 0
        self.stage_seconds = 0.0
        self.loss = math.nan


def stage_bounds(config: Config, stage: StageConfig) -> dict[str, float]:
    """Where this stage ends: its own bounds, and its part of the whole training's."""
    part = stage.share / sum(other.share for other in config.stages)
    bounds = {"epochs": stage.epochs, "steps": float(stage.steps)}
    bounds["seconds"] = config.train.seconds * part
    if config.train.steps:
        shared = max(1, round(config.train.steps * part))
        bounds["steps"] = min(bounds["steps"] or shared, shared)
    return {name: bound for name, bound in bounds.items() if bound}


def stage_share(bounds: dict[str, float], clock: Clock, batches: Batches) -> float:
    """How much of the stage is over, by whichever bound comes first."""
    spent = {
        "epochs": batches.epochs(clock.stage_examples),
        "steps": clock.stage_step,
        "seconds": clock.stage_seconds,
    }
    return min(1.0, max(spent[name] / bound for name, bound in bounds.items()))


def whole_share(config: Config, stage: int, share: float) -> float:
    """How much of all stages is over; stages count by their shares."""
    shares = [other.share for other in config.stages]
    return (sum(shares[:stage]) + share * shares[stage]) / sum(shares)


def due(evaluations: int, done: int, share: float) -> bool:
    """Evaluations are spread evenly over a stage."""
    return done < evaluations and share >= (done + 1) / evaluations


def after_save(began: float, ended: float, every: float) -> float:
    """When to save again. A state of gigabytes takes long to write, and is written less often."""
    return ended + (max(every, SELDOM * (ended - began)) if every else 0.0)  # 0: every step
