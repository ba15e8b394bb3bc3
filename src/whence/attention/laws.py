"""What every attention mechanism must obey, as checks that run on any class with the interface.

    from whence.attention import laws
    laws.check(MyAttention)            # raises AssertionError with the law and the numbers

The tests run every law on every mechanism, variant and mode; `docs/add-a-mechanism.md` shows how a
new one gets them. Everything is checked in float64 with parameters far from their start, so that
what is a difference is not mistaken for rounding.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.attention.base import Attention
from whence.attention.checks import State

WIDTH, HEADS, CONTEXT, LENGTH, ROWS = 8, 2, 29, 23, 2


class Mode(NamedTuple):
    """A mechanism, one of its variants, causal or not."""

    kind: type[Attention]
    variant: str
    causal: bool

    def __str__(self) -> str:
        return f"{self.kind.mechanism}-{self.variant}-{'causal' if self.causal else 'full'}"

    def make(self, **changes: Any) -> Attention:
        options = {**self.kind.variants[self.variant], "causal": self.causal, **changes}
        sizes = {name: options.pop(name, d) for name, d in _SIZES.items()}
        with torch.random.fork_rng():
            torch.manual_seed(7)
            attention = self.kind(**sizes, **options).double().eval()
            with torch.no_grad():
                for parameter in attention.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.4)
        return attention


_SIZES = {"width": WIDTH, "heads": HEADS, "context": CONTEXT}


def modes(kinds: Iterable[type[Attention]]) -> list[Mode]:
    """Every variant of the mechanisms, in every mode that it has."""
    found = []
    for kind in kinds:
        for variant, options in kind.variants.items():
            for causal in [options["causal"]] if "causal" in options else [True, False]:
                found.append(Mode(kind, variant, causal))
    return found


def inputs(length: int = LENGTH, rows: int = ROWS, width: int = WIDTH, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, width, generator=generator, dtype=torch.float64)


def same(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    assert found.shape == expected.shape, f"{what}: {found.shape} is not {expected.shape}"
    size = max(1.0, float(expected.detach().abs().amax())) if expected.numel() else 1.0
    off = float((found - expected).detach().abs().amax()) if expected.numel() else 0.0
    assert off <= tolerance * size, f"{what}: off by {off:.3g} where the largest is {size:.3g}"


# Causality ------------------------------------------------------------------------------------


def past_is_blind(mode: Mode) -> None:
    """Changing position t, by a little or by a factor 10, does not move the outputs before it."""
    if not mode.causal:
        return
    attention, x = mode.make(), inputs()
    before = attention(x)
    for t in (0, 1, 8, LENGTH - 1):
        for change in (x[:, t] + 0.5, x[:, t] * 10, -x[:, t]):
            changed = x.clone()
            changed[:, t] = change
            after = attention(changed)
            same(after[:, :t], before[:, :t], f"outputs before {t} after a change at {t}")
            assert not torch.equal(after[:, t], before[:, t]), f"position {t} ignores itself"


def past_is_blind_to_keys(mode: Mode) -> None:
    """A key alone, made huge, does not move the outputs before it."""
    attention, x = mode.make(), inputs()
    if not mode.causal or type(attention).mix is Attention.mix:
        return
    queries, keys, values = attention.heads_of(x)
    before = attention.mix(queries, keys, values, None)
    for t in (1, 8, LENGTH - 1):
        for factor in (3.0, 10.0, -1000.0):
            changed = keys.clone()
            changed[:, :, t] *= factor
            after = attention.mix(queries, changed, values, None)
            same(after[:, :, :t], before[:, :, :t], f"key {t} times {factor}: outputs before it")


def gradient_is_blind(mode: Mode) -> None:
    """d out[s] / d x[t] = 0 for s < t."""
    if not mode.causal:
        return
    attention, x = mode.make(), inputs().requires_grad_()
    for s in (0, 7, LENGTH - 2):
        (gradient,) = torch.autograd.grad(attention(x)[:, s].square().sum(), x)
        same(gradient[:, s + 1 :], torch.zeros_like(gradient[:, s + 1 :]), f"gradient of {s}")
        assert gradient[:, s].abs().amax() > 0, f"output {s} has no gradient of its own input"


def nan_stays(mode: Mode) -> None:
    """A NaN at position t is a NaN at t, and leaves what is before it as it was; so does infinity.

    With a padding mask as without, and whether gradients are recorded or not.
    """
    if not mode.causal:
        return
    attention, x = mode.make(), inputs()
    before = attention(x)
    everywhere = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    for t, what in ((0, torch.nan), (9, torch.nan), (9, torch.inf)):
        broken = x.clone()
        broken[0, t] = what
        for padding in (None, everywhere):
            with torch.no_grad():
                unrecorded = attention(broken, padding=padding)
            for found in (unrecorded, attention(broken, padding=padding)):
                same(found[0, :t], before[0, :t], f"outputs before {what} at {t}")
                same(found[1], before[1], "another row of the batch")
                assert not found[0, t].isfinite().any(), f"the {what} at {t} vanished"


# The picture ----------------------------------------------------------------------------------


def picture_is_computation(mode: Mode) -> None:
    """forward(x) == project(pattern(x) @ values(x)), with padding and with a source too."""
    attention, x = mode.make(), inputs()

    def look(source: Tensor | None, padding: Tensor | None, what: str) -> None:
        about = x if source is None else source
        pattern = attention.pattern(x, source, padding)
        shape = (ROWS, HEADS, LENGTH, about.shape[1])
        assert pattern.shape == shape, f"pattern is {tuple(pattern.shape)}, not {shape}"
        drawn = attention.project(pattern @ attention.values(about))
        same(attention(x, source, padding), drawn, what)

    look(None, None, "forward against the picture")
    ends = torch.arange(LENGTH) < torch.tensor([[LENGTH], [14]])
    starts = torch.arange(LENGTH) >= torch.tensor([[6], [0]])
    look(None, ends, "with padding at the end")
    look(None, starts, "with padding at the start")
    look(inputs(11, seed=2), None, "with a shorter source")
    look(inputs(27, seed=3), None, "with a longer source")
    look(inputs(11, seed=2), torch.arange(11) < torch.tensor([[11], [4]]), "source with padding")


def dropout_rests(mode: Mode) -> None:
    """Dropout acts in training, does nothing in evaluation, and never in the picture."""
    attention, x = mode.make(dropout=0.5), inputs()
    plain = mode.make()
    same(attention(x), plain(x), "evaluation with dropout")
    attention.train()
    same(attention.pattern(x), plain.pattern(x), "picture in training")
    assert attention.training, "the picture changed the mode"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert not torch.allclose(attention(x), plain(x)), "dropout changes nothing in training"


def rows_sum_to_one(mode: Mode) -> None:
    """Where claimed, the weights of a query sum to one, so that values of one give one."""
    attention, x = mode.make(), inputs()
    if not attention.rows_sum_to_one:
        return
    total = attention.pattern(x).sum(-1)
    same(total, torch.ones_like(total), "row sums")
    if type(attention).mix is not Attention.mix:
        queries, keys, values = attention.heads_of(x)
        ones = attention.mix(queries, keys, torch.ones_like(values), None)
        same(ones, torch.ones_like(ones), "values of one")


# Lengths --------------------------------------------------------------------------------------


def prefix_is_consistent(mode: Mode) -> None:
    """The outputs of a beginning are the beginning of the outputs."""
    if not mode.causal:
        return
    attention, x = mode.make(), inputs()
    whole = attention(x)
    for t in (1, 2, 5, 16, LENGTH):
        same(attention(x[:, :t]), whole[:, :t], f"the first {t} positions alone")


def steps_are_forward(mode: Mode) -> None:
    """Decoding with a cache, rows at different positions, gives what forward gives."""
    if not mode.causal:
        return
    attention, x = mode.make(), inputs(CONTEXT, rows=3)
    whole = attention(x)
    begins = [1, 6, 11]
    states: list[State] = []
    for row, begin in enumerate(begins):
        y, state = attention.prefill(x[row : row + 1, :begin])
        same(y, whole[row : row + 1, :begin], "prefill")
        states.append(state)
    joined = {name: torch.cat([state[name] for state in states]) for name in states[0]}
    rows, positions = torch.arange(3), torch.tensor(begins)
    for _ in range(CONTEXT - begins[-1]):
        y, joined = attention.step(x[rows, positions][:, None], joined, positions)
        same(y[:, 0], whole[rows, positions], f"step at {positions.tolist()}")
        positions = positions + 1


def strides_are_forward(mode: Mode) -> None:
    """Several tokens in one step, rows at different positions, give what forward gives."""
    if not mode.causal:
        return
    attention, x = mode.make(), inputs(CONTEXT, rows=3)
    if not attention.strides:
        return
    whole, begins, ahead = attention(x), [1, 6, 2], 4
    states = [attention.prefill(x[row : row + 1, :t])[1] for row, t in enumerate(begins)]
    joined = {name: torch.cat([state[name] for state in states]) for name in states[0]}
    positions = torch.tensor(begins)
    for _ in range(2):
        rows, places = torch.arange(3)[:, None], positions[:, None] + torch.arange(ahead)
        y, joined = attention.step(x[rows, places], joined, positions)
        same(y, whole[rows, places], f"{ahead} tokens at once from {positions.tolist()}")
        positions = positions + ahead


def one_position(mode: Mode) -> None:
    """T = 1 works, and a single source is all there is."""
    attention, x = mode.make(), inputs(1)
    same(attention(x), attention.project(attention.pattern(x) @ attention.values(x)), "T = 1")
    if attention.rows_sum_to_one:
        same(attention(x), attention.project(attention.values(x)), "the only value")


def padding_is_absence(mode: Mode) -> None:
    """A batch of different lengths, padded at the end, equals each row alone."""
    attention, x = mode.make(), inputs(rows=3)
    lengths = [LENGTH, 9, 1]
    padding = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    together = attention(x, padding=padding)
    for row, length in enumerate(lengths):
        alone = attention(x[row : row + 1, :length])
        same(together[row : row + 1, :length], alone, f"row of length {length}")
    for junk in (torch.nan, torch.inf):
        dirty = x.masked_fill(~padding[..., None], junk)
        clean = attention(dirty, padding=padding)
        same(clean[padding], together[padding], f"{junk} where nothing is real")
    nothing = attention(x, padding=torch.zeros_like(padding))
    same(nothing, attention.project(torch.zeros_like(attention.values(x))), "nothing is real")


def nobody_is_there(mode: Mode) -> None:
    """A batch without rows has a result without rows, and so has its picture."""
    attention, x = mode.make(), inputs(rows=0)
    assert attention(x).shape == x.shape
    assert attention.pattern(x).shape == (0, HEADS, LENGTH, LENGTH)


def strides_do_not_matter(mode: Mode) -> None:
    """Non-contiguous inputs give the same result."""
    attention, x = mode.make(), inputs()
    apart = x.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.stack([x, x], -1)[..., 0]
    for view in (apart, wide, x.flip(0).flip(0)):
        same(attention(view), attention(x), "a non-contiguous input")


# Gradients ------------------------------------------------------------------------------------


def gradients_are_right(mode: Mode) -> None:
    """Torch's gradcheck in float64, for the input and every parameter."""
    attention, x = mode.make(width=4, context=6), inputs(5, rows=1, width=4).requires_grad_()
    names, parameters = zip(*attention.named_parameters(), strict=True)

    def function(x: Tensor, *given: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(
            attention, dict(zip(names, given, strict=True)), (x,)
        )
        return result

    assert torch.autograd.gradcheck(function, (x, *parameters), fast_mode=True)


def absence_has_a_gradient(mode: Mode) -> None:
    """A row that is all padding has the gradient zero, and spoils nobody else's."""
    attention, x = mode.make(), inputs().requires_grad_()
    padding = torch.tensor([[True], [False]]).expand(ROWS, LENGTH)
    attention(x, padding=padding).square().sum().backward()
    assert x.grad is not None
    same(x.grad[1], torch.zeros_like(x.grad[1]), "gradient of a row without positions")
    for name, parameter in attention.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), f"gradient of {name}"


LAWS: list[Callable[[Mode], None]] = [
    past_is_blind,
    past_is_blind_to_keys,
    gradient_is_blind,
    nan_stays,
    picture_is_computation,
    dropout_rests,
    rows_sum_to_one,
    prefix_is_consistent,
    steps_are_forward,
    strides_are_forward,
    one_position,
    padding_is_absence,
    nobody_is_there,
    strides_do_not_matter,
    gradients_are_right,
    absence_has_a_gradient,
]


def check(*kinds: type[Attention]) -> None:
    """Every law, on every variant and mode of the given mechanisms."""
    for mode in modes(kinds):
        for law in LAWS:
            try:
                law(mode)
            except AssertionError as error:
                raise AssertionError(f"{mode} breaks the law {law.__name__!r}: {error}") from error
