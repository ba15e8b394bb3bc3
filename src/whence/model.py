"""One GPT. It knows that there is an attention mechanism, not which one.

Shapes: B batch, T positions, D width, V characters.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.attention.dropout import Dropout
from whence.attention.linear import Linear
from whence.attention.look_back import waves
from whence.block import Block, is_rotary, make_norm
from whence.config import ModelConfig
from whence.errors import WhenceError
from whence.files import read_json, write_bytes, write_json
from whence.memory import WordMemory
from whence.vocab import PAD

State = list[dict[str, Tensor]]  # one attention state per block, then the memory's if there is one
MOST = 0.6  # of the positions have a target: then taking them out costs more than it saves


class GPT(nn.Module):
    """Characters in, logits of the next character out.

    seed: of the graphs and features that attentions draw once and keep, another in every layer
        (`model.options` may have a seed of its own). None: all layers draw the same.
    """

    def __init__(self, config: ModelConfig, vocabulary: int, seed: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.seed = seed
        self.embedding = nn.Embedding(vocabulary, config.width)
        learned = config.positions in ("learned", "auto") and not is_rotary(config)
        self.positions = (
            nn.Parameter(torch.zeros(config.context, config.width)) if learned else None
        )
        self.dropout = Dropout(config.dropout)
        self.memory = (
            WordMemory(vocabulary, config.width, config.memory, config.memory_words)
            if config.memory
            else None
        )
        cross = "softmax" if config.bottleneck else None
        self.blocks = nn.ModuleList(
            Block(config, cross if number in (0, config.layers - 1) else None, seed, number)
            for number in range(config.layers)
        )
        self.latents = (
            nn.Parameter(torch.empty(1, config.bottleneck, config.width))
            if config.bottleneck
            else None
        )
        self.norm = make_norm(config)
        self.head = Linear(config.width, vocabulary, bias=False)
        self._start()

    def _start(self) -> None:
        """N(0, 0.02) everywhere as in the course, or blocks that start as the identity."""
        zero = self.config.start != "normal"
        if self.latents is not None:
            nn.init.xavier_uniform_(self.latents)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if zero:
                    bound = (3 / module.in_features) ** 0.5
                    nn.init.uniform_(module.weight, -bound, bound)
                else:
                    nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=1.0 if zero else 0.02)
        if zero:
            nn.init.zeros_(self.head.weight)
            for block in self.layers():
                nn.init.zeros_(block.down.weight)
                nn.init.zeros_(block.attention.proj.weight)
        if self.config.start == "near":
            self._look_back()

    @torch.no_grad()
    def _look_back(self) -> None:
        """Half of the heads read the characters before; positions are `waves` to begin with.

        Where latents look, they stand in a row like the characters, and the nearest is their own.
        """
        d = self.config.width // self.config.heads
        if self.positions is None and not is_rotary(self.config):
            raise WhenceError('model.start = "near": model.positions = "none" has nothing to go by')
        if self.positions is not None and self.config.heads < 4:
            raise WhenceError(
                'model.start = "near": the positions take the channels of one head, '
                f"and of model.heads = {self.config.heads} that is too much"
            )
        if self.positions is not None:
            self.embedding.weight[:, :d] = 0.0  # room for the waves, which are to be heard
            self.positions[:, :d] = waves(len(self.positions), d)
        if self.latents is not None:
            self.latents[..., :d] = waves(self.latents.shape[1], d)
        for number, block in enumerate(self.layers()):
            across = self.latents is not None and number in (0, self.config.layers - 1)
            try:
                block.attention.look_back(0 if across else 1)
            except ValueError as error:
                raise WhenceError(f'model.start = "near": {error}') from error

    def layers(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    @property
    def context(self) -> int:
        """Positions that all blocks see: the course's synthesizer has no weights for the last."""
        return min(block.attention.context for block in self.layers())

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite, as a training with too high a rate leaves them."""
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters())

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def describe(self) -> dict[str, Any]:
        """What really runs, read off the modules themselves and not off the configuration."""
        middle = self.layers()[len(self.blocks) // 2]
        rotation = "rope" if middle.attention.rotation is not None else "none"
        attention = middle.attention.describe()
        if "seed" in attention:
            drawn = [block.attention.describe() for block in self.layers()]
            attention["seed"] = [one["seed"] for one in drawn if "seed" in one]
        return {
            "parameters": self.parameter_count(),
            "layers": len(self.blocks),
            "positions": "learned" if self.positions is not None else rotation,
            "bottleneck": self.latents.shape[1] if self.latents is not None else 0,
            "attention": attention,
        }

    def embed(
        self, tokens: Tensor, positions: Tensor | None = None, remembered: Tensor | None = None
    ) -> Tensor:
        """positions (B,T) says where the tokens stand; without it they stand at 0 .. T-1.

        `remembered`: what the word memory found for them.
        """
        x: Tensor = self.embedding(tokens)
        if remembered is not None:
            x = x + remembered
        if self.positions is not None:
            if positions is None:
                x = x + self.positions[: tokens.shape[1]]
            else:
                x = x + self.positions[positions]
        if self.config.norm == "rms":
            x = F.rms_norm(x, (x.shape[-1],))
        dropped: Tensor = self.dropout(x)
        return dropped

    def _refuse_longer(self, length: int) -> None:
        if length > self.context:
            raise WhenceError(f"{length} characters do not fit a context of {self.context}")

    def hidden(
        self, tokens: Tensor, wanted: Tensor | None = None, reading: Tensor | None = None
    ) -> Tensor:
        """(B,T) -> (B,T,D), what the head reads; of the `wanted` positions only, (N,D).

        `reading` (B,T): where the word memory is looked at and must not be changed.
        """
        self._refuse_longer(tokens.shape[1])
        remembered = None if self.memory is None else self.memory(tokens, reading)
        x = self.embed(tokens, remembered=remembered)
        if self.latents is None:
            *blocks, last = self.layers()
            for block in blocks:
                x = block(x)
            x = last(x, wanted=wanted)
        else:
            down, *middle, up = self.layers()
            latents = down(self.asking(x), x)
            for block in middle:
                latents = block(latents)
            x = up(x, latents, wanted)
        normed: Tensor = self.norm(x)
        return normed

    def asking(self, x: Tensor) -> Tensor:
        """The latents that ask about x (B,T,D): latent i sees positions up to i and is seen from i
        on, so that those after the end would do nothing."""
        assert self.latents is not None
        return self.latents[:, : x.shape[1]].expand(len(x), -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(tokens))
        return logits

    def loss(self, inputs: Tensor, targets: Tensor, reading: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over the targets that are not padding.

        Where few positions have a target (a question and its answer), the last MLP and the head
        work on those alone; the others would only be thrown away.
        """
        wanted = targets != PAD
        if wanted.float().mean() > MOST:
            logits = self.head(self.hidden(inputs, reading=reading)).flatten(0, 1)
            return F.cross_entropy(logits, targets.flatten(), ignore_index=PAD)
        return F.cross_entropy(self.head(self.hidden(inputs, wanted, reading)), targets[wanted])

    @property
    def strides(self) -> bool:
        """Whether a step may bring several characters a row."""
        return self.latents is None and all(block.attention.strides for block in self.layers())

    def prefill(self, tokens: Tensor, room: int | None = None) -> tuple[Tensor, State]:
        """Read prompts of one length: logits after the last character, and the blocks' states.

        `room`: positions that the states will ever hold (the context if left out).
        """
        self._refuse_longer(tokens.shape[1])
        room = room or self.context
        if self.latents is not None:
            # A latent may still change while the prompt is shorter than the bottleneck; keeping
            # the characters and reading them again is simple, exact and still batched.
            kept = F.pad(tokens, (0, self.context - tokens.shape[1]), value=PAD)
            return self.forward(tokens)[:, -1], [{"tokens": kept}]
        states: State = []
        remembered = None if self.memory is None else self.memory(tokens)
        x = self.embed(tokens, remembered=remembered)
        for number, block in enumerate(self.layers(), 1):
            x, state = block.prefill(x, room, last=number == len(self.blocks))
            states.append(state)
        if self.memory is not None:  # the memory hashes what was read, so that has to be kept
            states.append({"tokens": F.pad(tokens, (0, room - tokens.shape[1]), value=PAD)})
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits, states

    def step(self, tokens: Tensor, states: State, positions: Tensor) -> tuple[Tensor, State]:
        """One more character a row, at its own position: logits after it.

        Where `strides`, tokens (B,R) may bring several, the first at the row's position: logits
        after the last.
        """
        self._refuse_longer(int(positions.max()) + (tokens.shape[1] if tokens.dim() > 1 else 1))
        if self.latents is not None:
            kept = states[0]["tokens"].clone()
            kept[torch.arange(len(kept)), positions] = tokens
            logits = self.forward(kept[:, : int(positions.max()) + 1])
            return logits[torch.arange(len(kept)), positions], [{"tokens": kept}]
        tokens = tokens.view(len(tokens), -1)
        places = positions[:, None] + torch.arange(tokens.shape[1])
        remembered = None
        following: State = []
        if self.memory is not None:
            states, read = states[:-1], states[-1]["tokens"]
            read.scatter_(1, places, tokens)
            remembered = self.memory.recall(read[:, : int(places.max()) + 1], places)
        x = self.embed(tokens, places, remembered)
        for number, (block, state) in enumerate(zip(self.layers(), states, strict=True), 1):
            x, state = block.step(x, state, positions, last=number == len(self.blocks))
            following.append(state)
        if self.memory is not None:
            following.append({"tokens": read})
        logits = self.head(self.norm(x[:, -1]))
        return logits, following

    def save_pretrained(self, folder: Path | str) -> None:
        """`model.safetensors` and `config.json`, for other tools to read."""
        from safetensors.torch import save

        folder = Path(folder)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        content = save(tensors, metadata={"format": "pt"})
        write_bytes(folder / "model.safetensors", content)
        settings = {
            "model": dataclasses.asdict(self.config),
            "vocabulary": self.vocabulary,
            "seed": self.seed,
        }
        write_json(folder / "config.json", {"format": "whence-model/1", **settings})

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> GPT:
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = Path(folder)
        settings = read_json(folder / "config.json")
        try:
            # Models of before layers had draws of their own have no seed.
            shape = ModelConfig(**settings["model"])
            model = cls(shape, settings["vocabulary"], settings.get("seed"))
            model.load_state_dict(load((folder / "model.safetensors").read_bytes()))
        except OSError as error:
            raise WhenceError(f"cannot read {error.filename}: {error.strerror}") from error
        except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
            problem = " ".join(str(error).split())[:160] or "unreadable"
            raise WhenceError(f"{folder}: not a model that Whence wrote: {problem}") from error
        return model
