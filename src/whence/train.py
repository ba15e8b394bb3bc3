"""One loop, read from top to bottom: stages, steps, evaluations, checkpoints, signals."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

import torch
from torch import Tensor

from whence.attention.dropout import drawing_from
from whence.batches import Batch, Batches, Place, seeded
from whence.config import Config
from whence.corpus.base import Corpus
from whence.errors import WhenceError
from whence.evaluate import accuracy
from whence.gradient import Loss, backward
from whence.heap import Heap
from whence.lanes import Lanes, worth
from whence.model import GPT
from whence.optim import dense_parameters, make_optimizers, rate_factor, set_rates
from whence.precision import confirm, products
from whence.progress import Progress
from whence.run import TRAINING, Run, usable_threads
from whence.stages import Clock, after_save, due, stage_bounds, stage_share, whole_share
from whence.vocab import PAD, Vocab

LOG_LINES = 1000  # of losses in the log of a stage, at most; evenly spread over it
# In bfloat16 oneDNN writes a program for every shape of a product, and keeps a thousand. Lengths
# that are multiples of this need fewer.
LENGTHS = 8


class Interrupted(Exception):
    """A signal asked to stop; everything is saved."""


def build_model(config: Config, vocab: Vocab) -> GPT:
    """Weights drawn from the recipe's seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeded(config.seed, "weights").getrandbits(63))
        model = GPT(config.model, len(vocab), config.seed)
        if model.memory is not None:
            model.memory.mark_letters("".join(vocab.characters))
        return model


def train(
    run: Run,
    corpus: Corpus,
    vocab: Vocab,
    model: GPT,
    progress: Progress,
) -> Clock:
    """Train the model in place through all stages; goes on from the run's newest checkpoint."""
    config = run.config
    clock = Clock()
    saved = run.latest()
    if saved is not None:
        with refuse_misfit(run):
            clock = Clock(**saved["clock"])
            model.load_state_dict(saved["model"])
    run.forget_after(clock.step)
    torch.set_num_threads(usable_threads(config.train.threads))
    clock.precision = confirm(config.train.precision, clock.precision, progress.say)
    dev = corpus.questions("dev") if config.train.evaluations else []
    compiling = config.train.compile == "auto"
    loss_of = compiled_loss(model, progress) if compiling else model.loss
    score: float | None = None
    heap = Heap(clock.precision)

    with (
        stopped_by_signals() as asked_to_stop,
        torch.random.fork_rng(devices=[]),
        # A compiler wants one thread.
        Lanes(
            1 if compiling else torch.get_num_threads(), worth(model.blocks.parameters())
        ) as lanes,
    ):
        while clock.stage < len(config.stages):
            stage = config.stages[clock.stage]
            bounds = stage_bounds(config, stage)
            optimizers = make_optimizers(model, stage)
            if saved is not None:
                with refuse_misfit(run):
                    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
                        optimizer.load_state_dict(state)
                saved = None
            preparing = time.monotonic()
            batches = Batches(
                corpus,
                vocab,
                stage.mixture,
                block=config.model.context,
                positions=stage.batch,
                seed=config.seed,
                stage=stage.name,
                words_before=stage.words_before,
                numbers=stage.numbers,
                picked_share=stage.picked_share,
                multiple=1 if clock.precision == "float32" else LENGTHS,
            )
            # A picker's fit is training, and goes with the first step; resumed, it was counted.
            prepared = 0.0 if clock.stage_step else time.monotonic() - preparing
            if not clock.stage_step:
                for remark in batches.remarks():
                    progress.say(remark)
                if batches.picked:
                    seconds = round(clock.seconds, 3)
                    run.log(clock.step, stage=stage.name, seconds=seconds, picker=batches.picked)
            stream = batches.read(Place(clock.window, clock.batch))
            next_save = time.monotonic() + config.train.save_seconds
            while (share := stage_share(bounds, clock, batches)) < 1:
                began = time.monotonic()
                batch, place = next(stream)
                # Of tokens and epochs this step's own count, as in the course.
                spent = {
                    "steps": clock.stage_step,
                    "tokens": clock.stage_tokens + int((batch.targets != PAD).sum()),
                    "seconds": clock.stage_seconds,
                    "epochs": batches.epochs(clock.stage_examples + batch.examples),
                }
                rate = rate_factor(stage, spent, share)
                set_rates(optimizers, rate)

                # Dropout is a function of seed, step and part: a resumed run draws the same.
                seed = seeded(config.seed, "dropout", clock.step).getrandbits(62)
                torch.manual_seed(seed)  # compiled code draws from torch's own generator
                model.train()
                value = backward(
                    loss_of,
                    model.parameters(),
                    batch,
                    precision=clock.precision,
                    seed=seed,
                    lanes=lanes,
                )
                if stage.clip:
                    torch.nn.utils.clip_grad_norm_(dense_parameters(model), stage.clip)
                if not math.isfinite(value):
                    raise WhenceError(describe_failure(model, vocab, batch, clock.step, value))
                with products(clock.precision):  # Muon's
                    for optimizer in optimizers:
                        optimizer.step()

                heap.tidy_if_grown()
                took = time.monotonic() - began + prepared
                prepared = 0.0
                clock.step += 1
                clock.stage_step += 1
                clock.seconds += took
                clock.stage_seconds += took
                clock.characters += batch.characters
                clock.stage_tokens += int((batch.targets != PAD).sum())
                clock.stage_examples += batch.examples
                clock.epochs = batches.epochs(clock.stage_examples)
                clock.window, clock.batch = place.window, place.batch
                clock.loss = value if math.isnan(clock.loss) else 0.95 * clock.loss + 0.05 * value

                before, share = share, stage_share(bounds, clock, batches)
                whole = whole_share(config, clock.stage, share)
                over = share >= 1 and clock.stage == len(config.stages) - 1
                # After the very last step the caller evaluates, with all that belongs to it.
                if dev and not over and due(config.train.evaluations, clock.evaluated, share):
                    clock.evaluated += 1
                    heap.tidy()  # the caches of some hundred answers want their own
                    right, total = accuracy(model, vocab, dev)
                    heap.tidy()
                    score = 100 * right / total
                    run.log(
                        clock.step,
                        stage=stage.name,
                        seconds=round(clock.seconds, 3),
                        epochs=round(clock.epochs, 3),
                        accuracy=score,
                        correct=right,
                        total=total,
                    )
                if int(share * LOG_LINES) > int(before * LOG_LINES) or clock.stage_step == 1:
                    run.log(
                        clock.step,
                        stage=stage.name,
                        seconds=round(clock.seconds, 3),
                        loss=round(clock.loss, 5),
                        rate=round(rate, 5),
                        characters=clock.characters,
                    )
                progress.update(
                    stage=stage.name,
                    step=clock.step,
                    share=whole,
                    seconds=clock.seconds,
                    loss=clock.loss,
                    speed=clock.characters / max(clock.seconds, 1e-9),
                    score=score,
                )
                stop = asked_to_stop()
                now = time.monotonic()
                if stop or now >= next_save:
                    save(run, model, optimizers, clock)
                    next_save = after_save(now, time.monotonic(), config.train.save_seconds)
                if stop:
                    progress.close()
                    raise Interrupted(f"stopped at step {clock.step}")
            clock.next_stage()
            if clock.stage < len(config.stages):
                save(run, model, make_optimizers(model, config.stages[clock.stage]), clock)
    progress.close()
    if not model.is_finite():
        raise WhenceError(
            f"the weights are not finite after step {clock.step}: the rate may be too high"
        )
    model.eval()
    return clock


def log_score(run: Run, clock: Clock, right: int, total: int) -> None:
    """The score after the very last step, which the loop leaves to its caller."""
    # A run that was killed right here has this line already.
    if any("accuracy" in line and line["step"] == clock.step for line in run.metrics()):
        return
    run.log(
        clock.step,
        stage=run.config.stages[-1].name,
        seconds=round(clock.seconds, 3),
        epochs=round(clock.epochs, 3),
        accuracy=100 * right / total,
        correct=right,
        total=total,
    )


def save(run: Run, model: GPT, optimizers: list[torch.optim.Optimizer], clock: Clock) -> None:
    run.save(
        {
            "clock": asdict(clock),
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }
    )


@contextmanager
def refuse_misfit(run: Run) -> Iterator[None]:
    """A checkpoint that does not fit is the user's to know of, not a programming error."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[-1].strip()
        raise WhenceError(
            f"{run.path / TRAINING} does not belong to the model of this run: {reason}"
        ) from error


def compiled_loss(model: GPT, progress: Progress) -> Loss:
    """torch.compile where it works; otherwise one line, and eager from then on.

    The blocks are compiled, not the whole: they are alike, so one compilation serves all of them.
    The first batch is tried forward and backward, because either can fail.
    """
    for block in model.layers():
        block.compile(dynamic=True)
    tried = False

    def loss(inputs: Tensor, targets: Tensor, reading: Tensor) -> Tensor:
        nonlocal tried
        if not tried:
            tried = True
            counted = None if model.memory is None else model.memory.written.clone()
            try:
                coins = torch.Generator().manual_seed(0)  # not those of the step that follows
                with torch.random.fork_rng(devices=[]), drawing_from(coins):
                    model.loss(inputs, targets, reading).backward()  # type: ignore[no-untyped-call]
            except Exception as error:  # no compiler, or any of the ways it can fail
                for block in model.layers():
                    block._compiled_call_impl = None  # what Module.compile set
                reason = (str(error).strip() or repr(error)).splitlines()[0][:120]
                progress.say(f"torch.compile does not work here ({reason}); going on without it")
            model.zero_grad(set_to_none=True)
            if model.memory is not None and counted is not None:
                model.memory.written.copy_(counted)  # the trial was not a step
        return model.loss(inputs, targets, reading)

    return loss


def describe_failure(model: GPT, vocab: Vocab, batch: Batch, step: int, value: float) -> str:
    """Which row of the batch broke the loss, so that the data can be looked at."""
    said = f"the loss is {value} at step {step + 1}"
    model.eval()
    with torch.no_grad():
        broken = [
            number
            for number in range(len(batch.inputs))
            if not bool(model(batch.inputs[number : number + 1]).isfinite().all())
        ]
    if len(broken) == len(batch.inputs) and not model.is_finite():
        return f"{said}: the weights are not finite before it; the rate may be too high"
    if not broken:
        return f"{said}, in no single row: the rate may be too high"
    text = vocab.decode(batch.inputs[broken[0]].tolist()).rstrip("□")
    return f"{said}, row {broken[0] + 1}: {text!r}"


@contextmanager
def stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM let the step finish, then stop; a second one stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever started the thread handles signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
