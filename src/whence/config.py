"""What a recipe may say: frozen dataclasses that refuse what makes no sense."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from whence.errors import WhenceError

Positions = Literal["auto", "learned", "rope", "none"]
MOST_THREADS = 1024
Precision = Literal["float32", "bfloat16", "auto"]
LARGEST = 1 << 20  # of any size of a model: beyond it is a slip of the pen, not a small transformer


@dataclass(frozen=True)
class CorpusConfig:
    """Which text and questions. What is left out is the corpus's own default; what a corpus does
    not have is refused."""

    name: str = "world"  # world, lahman or course:FOLDER
    people: int | None = None  # how many
    seed: int | None = None  # which world; of Lahman: who, in which split
    withhold: int | None = None  # people asked about whose documents are removed
    stated: float | None = None  # share of the people whose documents state what is asked
    attributes: tuple[str, ...] | None = None  # what is asked about each person
    paraphrases: int | None = None  # in how many forms a training question is asked
    rewrites: int | None = None  # how often a person is written about, at most
    dev_share: float | None = None  # share of the people who are asked about in dev
    test_share: float | None = None  # and in test
    fold: int | None = None  # for tuning: ask this quarter of the training people, not dev


@dataclass(frozen=True)
class ModelConfig:
    """One GPT; the defaults are the course's (3,323,392 parameters with its text)."""

    layers: int = 4  # blocks of attention and MLP
    heads: int = 8  # of attention
    width: int = 256  # of a position's vector; a multiple of the heads
    context: int = 128  # positions the model can see
    attention: str = "softmax"  # a mechanism: a name in whence.attention.MECHANISMS
    options: dict[str, Any] = field(default_factory=dict)  # of that mechanism
    positions: Positions = "auto"  # auto: rope for attention = "rope", learned elsewhere
    norm: Literal["layer", "rms"] = "layer"  # LayerNorm or RMSNorm
    activation: Literal["gelu", "relu2"] = "gelu"  # of the MLP
    dropout: float = 0.1  # of embeddings, attention and both outputs of a block
    bias: bool = True  # whether the linear maps inside the blocks have one
    qk_norm: bool = False  # normalise queries and keys before they meet
    # normal: N(0, 0.02); zero: every block starts as the identity; near: and half of its heads (of
    # a synthesizer all) look back 1, 2, ... characters
    start: Literal["normal", "zero", "near"] = "normal"
    # of the course's perceiver: its first block goes down to this many latents, the last one up
    # again; 0: none
    bottleneck: int = 0
    memory: int = 0  # rows of the word memory for each of its orders; 0: no memory
    memory_words: int = 3  # its orders: the word, it and the one before, ...

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise WhenceError(
                    f"model.{name} must lie in 1..{LARGEST:,}, not {getattr(self, name)}"
                )
        if self.width % self.heads:
            raise WhenceError(
                f"model.width = {self.width} is not a multiple of model.heads = {self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise WhenceError(f"model.dropout must lie in [0, 1), not {self.dropout}")
        if self.attention == "rope" and self.positions not in ("auto", "rope"):
            raise WhenceError(
                f'model.attention = "rope" rotates positions; '
                f'model.positions = "{self.positions}" contradicts it'
            )
        if self.memory < 0 or self.memory == 1 or not 1 <= self.memory_words <= 8:
            raise WhenceError("model.memory is 0 or at least 2 rows, of 1 to 8 memory_words")
        if self.bottleneck < 0 or self.bottleneck > self.context:
            raise WhenceError(f"model.bottleneck must lie in 0..{self.context}")
        if self.bottleneck and self.layers < 2:
            raise WhenceError("model.bottleneck needs at least two layers: one down, one up")
        if self.bottleneck and self.layers == 2 and self.attention != "softmax":
            raise WhenceError(
                f"model.attention = {self.attention!r} would not run: the two layers of a "
                "bottleneck are cross-attention; set model.layers to 3 or more"
            )


@dataclass(frozen=True)
class StageConfig:
    """One stretch of training: what it trains on, for how long, and how."""

    name: str = "pretrain"  # by which --set and a study's systems find it
    mixture: dict[str, float] = field(default_factory=lambda: {"spans": 1.0})  # objective = share
    words_before: int = 3  # of a salient or picked span: up to so many are given, drawn anew
    numbers: bool = True  # whether numbers are salient, beside capitalised words
    picked_share: float = 0.95  # how often "picked" asks for a picked span, not just a salient one
    epochs: float = 0.0  # passes over the largest part of the mixture; 0: not bounded by this
    steps: int = 0  # optimiser steps; 0: not bounded by this
    share: float = 1.0  # its part of train.seconds and train.steps, relative to the other stages
    batch: int = 8192  # positions in a step, padding included; one example at least
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for the matrices inside the blocks
    rate: float = 6e-3  # learning rate of AdamW
    muon_rate: float = 0.02  # learning rate of Muon
    memory_rate: float = 0.01  # learning rate of the word memory's rows
    beta2: float = 0.95  # of AdamW
    weight_decay: float = 0.1  # of matrices
    clip: float = 1.0  # largest norm of the gradient, a word memory's aside; 0: no limit
    # how the rates fall; cosine-rebound: the course's, which rises again when decay is over
    schedule: Literal["constant", "linear", "cosine", "cosine-rebound"] = "cosine"
    unit: Literal["steps", "tokens", "seconds", "epochs"] = "steps"  # of warmup and decay
    warmup: float = 0.0  # how long the rates rise from zero
    decay: float = 0.0  # how long the rate falls; 0: to the end of the stage
    hold: float = 0.0  # share of the stage before the rate begins to fall, if decay is 0
    floor: float = 0.1  # share of the rate that is left at the end

    def __post_init__(self) -> None:
        if not self.mixture or any(not share > 0 for share in self.mixture.values()):
            raise WhenceError(f"stage {self.name!r}: mixture needs shares above zero")
        for name in ("epochs", "steps", "warmup", "decay", "clip", "weight_decay"):
            if getattr(self, name) < 0:
                raise WhenceError(f"stage {self.name!r}: {name} must not be negative")
        for name in ("batch", "share", "rate", "muon_rate", "memory_rate"):
            if getattr(self, name) <= 0:
                raise WhenceError(f"stage {self.name!r}: {name} must be above zero")
        if self.words_before < 0 or not 0 <= self.picked_share <= 1:
            raise WhenceError(
                f"stage {self.name!r}: words_before is at least 0, picked_share lies in [0, 1]"
            )
        if not 0 <= self.beta2 < 1:
            raise WhenceError(f"stage {self.name!r}: beta2 must lie in [0, 1), not {self.beta2}")
        if not 0 <= self.hold < 1:
            raise WhenceError(f"stage {self.name!r}: hold must lie in [0, 1), not {self.hold}")
        if not 0 <= self.floor <= 1:
            raise WhenceError(f"stage {self.name!r}: floor must lie in [0, 1], not {self.floor}")


@dataclass(frozen=True)
class TrainConfig:
    """Bounds on the whole training and how it is watched."""

    seconds: float = 0.0  # shared out between the stages; 0: the stages' own bounds
    steps: int = 0  # the same in optimiser steps
    evaluations: int = 8  # how many times each stage asks the dev questions
    save_seconds: float = 30.0  # how often a checkpoint is written; seldom if that takes long
    compile: Literal["auto", "off"] = "off"  # auto: torch.compile where it works
    # of the matrix products; bfloat16 is tried first, in a process of its own, and refused where it
    # does not work; auto: bfloat16 where it works and pays
    precision: Precision = "float32"
    threads: int = 0  # 0: as many as there are cores to use

    def __post_init__(self) -> None:
        for name in ("seconds", "steps", "evaluations", "save_seconds", "threads"):
            if getattr(self, name) < 0:
                raise WhenceError(f"train.{name} must not be negative")
        if self.threads > MOST_THREADS:
            raise WhenceError(f"train.threads must be at most {MOST_THREADS}, not {self.threads}")


@dataclass(frozen=True)
class SystemConfig:
    """One row of a study: a name and what it changes in the recipe."""

    name: str  # of its folder
    label: str = ""  # in the table; the name if left out
    set: dict[str, Any] = field(default_factory=dict)  # dotted key -> value
    skip: tuple[str, ...] = ()  # names of stages that it leaves out

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith(".") or set(self.name) & set("/\\\0\n"):
            raise WhenceError(f"a system's name becomes a folder; {self.name!r} cannot")


@dataclass(frozen=True)
class StudyConfig:
    """The rows of a study; empty for a recipe that trains one system."""

    title: str = ""  # of the report
    # rows that are not trained; "open book" (the picker reading the lines) is another
    baselines: tuple[str, ...] = ("London", "most common place", "similar name")
    systems: tuple[SystemConfig, ...] = ()  # rows that are: [[study.systems]]


@dataclass(frozen=True)
class Config:
    """A recipe: everything that decides a result."""

    seed: int = 0
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    stages: tuple[StageConfig, ...] = (StageConfig(),)
    study: StudyConfig = field(default_factory=StudyConfig)

    def __post_init__(self) -> None:
        if not self.stages:
            raise WhenceError("a recipe needs at least one [[stages]]")
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise WhenceError(f"two stages have one name: {', '.join(names)}")
        bounded = self.train.seconds or self.train.steps
        for stage in self.stages:
            if not (bounded or stage.steps or stage.epochs):
                raise WhenceError(
                    f"stage {stage.name!r} has no end: set its epochs or steps, "
                    "train.seconds or train.steps"
                )
