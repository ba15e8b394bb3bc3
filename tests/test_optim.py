"""Which parameter is moved by which rule, how far, and how fast at which moment."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from whence.attention import MECHANISMS
from whence.config import ModelConfig, StageConfig
from whence.errors import WhenceError
from whence.model import GPT
from whence.optim import Muon, make_optimizers, newton_schulz, rate_factor, set_rates

shapes = st.tuples(st.integers(1, 3), st.integers(2, 24), st.integers(2, 24))


@given(shapes, st.integers(0, 1000), st.sampled_from([1e-4, 1.0, 1e4]))
def test_newton_schulz_makes_half_orthogonal_matrices(
    shape: tuple[int, int, int], seed: int, scale: float
) -> None:
    """All singular values near one, the singular vectors kept, whatever the scale."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    result = newton_schulz(matrices)
    assert result.dtype == torch.float32 and result.shape == matrices.shape
    left, sizes, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    kept = (left.mT @ result.double() @ right.mT).diagonal(dim1=-2, dim2=-1)
    large = sizes > 0.05 * sizes.norm(dim=-1, keepdim=True)
    assert (kept[large] > 0.6).all() and (kept[large] < 1.3).all()
    assert torch.linalg.svdvals(result).max() < 1.3


def test_muon_moves_every_direction_equally_far_in_float32() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(12, 8)), nn.Parameter(torch.randn(12, 8))]
    before = [weight.detach().clone() for weight in weights]
    muon = Muon(weights, 0.1, momentum=0.95, weight_decay=0.0)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    muon.step()
    for weight, old in zip(weights, before, strict=True):
        assert weight.dtype == torch.float32
        moved = torch.linalg.svdvals((old - weight.detach()) / 0.1 / (12 / 8) ** 0.5)
        assert moved.min() > 0.6 and moved.max() < 1.3
    assert muon.state[weights[0]]["average"].dtype == torch.float32


@pytest.mark.parametrize("count", [2, 3])
def test_muon_takes_queries_keys_and_values_apart(count: int) -> None:
    """Two or three square matrices in one parameter move as so many parameters would."""
    torch.manual_seed(0)
    parts = [nn.Parameter(torch.randn(8, 8)) for _ in range(count)]
    whole = nn.Parameter(torch.cat([part.detach() for part in parts]))
    gradients = [torch.randn(8, 8) * 10.0**power for power in range(count)]
    for part, gradient in zip(parts, gradients, strict=True):
        part.grad = gradient
    whole.grad = torch.cat(gradients)
    Muon(parts, 0.1, momentum=0.9, weight_decay=0.1).step()
    Muon([whole], 0.1, momentum=0.9, weight_decay=0.1).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


def test_muon_looks_one_step_ahead_and_decays_apart_from_the_gradient() -> None:
    weight = nn.Parameter(torch.eye(4))
    muon = Muon([weight], 0.1, momentum=0.5, weight_decay=0.5)
    weight.grad = torch.zeros(4, 4)
    muon.step()
    torch.testing.assert_close(weight.detach(), torch.eye(4) * 0.95)
    weight.grad = torch.eye(4)
    assert torch.equal(muon._momentum(weight, 0.5), torch.eye(4) * 0.75)  # half of 1 and 1/2


def small(**changes: object) -> GPT:
    fields = {"layers": 3, "heads": 2, "width": 16, "context": 16, **changes}
    return GPT(ModelConfig(**fields), 20)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_every_parameter_is_in_one_group(mechanism: str, optimizer: str) -> None:
    model = small(attention=mechanism)
    stage = StageConfig(optimizer=optimizer, weight_decay=0.3, steps=1)  # type: ignore[arg-type]
    optimizers = make_optimizers(model, stage)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    linear = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    found: dict[str, tuple[str, float]] = {}
    for each in optimizers:
        for group in each.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                assert name not in found
                found[name] = (type(each).__name__, group["weight_decay"])
    assert set(found) == set(names.values())
    for name, (rule, decay) in found.items():
        assert decay == (0.3 if name in linear else 0.0), name
        inside = name in linear and name.startswith("blocks.")
        assert rule == ("Muon" if optimizer == "muon" and inside else "AdamW"), name
    assert {"embedding.weight"} & linear == set()
    assert found["head.weight"][1] == 0.3


def test_the_options_of_a_stage_reach_the_optimizers() -> None:
    stage = StageConfig(optimizer="muon", rate=0.5, muon_rate=0.25, beta2=0.9, steps=1)
    muon, adam = make_optimizers(small(), stage)
    assert adam.param_groups[0]["betas"] == (0.9, 0.9)
    set_rates([muon, adam], 0.5)
    assert {group["lr"] for group in adam.param_groups} == {0.25}
    assert {group["lr"] for group in muon.param_groups} == {0.125}
    set_rates([muon, adam], 1.0)
    assert {group["lr"] for group in adam.param_groups} == {0.5}


UNITS = ("steps", "tokens", "seconds", "epochs")


def factor(stage: StageConfig, now: float, progress: float = 0.5) -> float:
    """With the other units at absurd values: only the stage's own may count."""
    spent = {unit: 1e9 for unit in UNITS} | {stage.unit: now}
    return rate_factor(stage, spent, progress)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "cosine-rebound"])
def test_warm_up_is_a_straight_line_in_its_unit(unit: str, schedule: str) -> None:
    stage = StageConfig(schedule=schedule, unit=unit, warmup=200, decay=1000, steps=1)  # type: ignore[arg-type]
    assert factor(stage, 0) == 0.01  # never nothing at all
    assert factor(stage, 50) == 0.25
    assert factor(stage, 150) == 0.75
    assert factor(stage, 200) == 1.0


@pytest.mark.parametrize("unit", UNITS)
def test_schedules_at_known_moments(unit: str) -> None:
    def at(schedule: str, now: float) -> float:
        stage = StageConfig(schedule=schedule, unit=unit, warmup=100, decay=1000, steps=1)  # type: ignore[arg-type]
        return factor(stage, now)

    assert at("constant", 5000) == 1.0
    assert at("linear", 600) == pytest.approx(0.55)
    assert at("linear", 1100) == at("linear", 9999) == pytest.approx(0.1)
    assert at("cosine", 600) == pytest.approx(0.5)
    assert at("cosine", 350) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert at("cosine", 1100) == at("cosine", 2100) == 0.1
    # The older course years go on along the cosine: down, up again, down.
    assert at("cosine-rebound", 1100) == 0.1
    assert at("cosine-rebound", 1600) == pytest.approx(0.5)
    assert at("cosine-rebound", 2100) == pytest.approx(1.0)
    assert at("cosine-rebound", 3100) == 0.1


def test_without_a_length_the_rate_falls_until_the_end_of_the_stage() -> None:
    stage = StageConfig(schedule="linear", floor=0.0, steps=1)
    assert [factor(stage, 7, progress) for progress in (0, 0.25, 1)] == [1.0, 0.75, 0.0]
    cosine = StageConfig(schedule="cosine", floor=0.0, steps=1)
    assert factor(cosine, 7, 0.5) == pytest.approx(0.5)
    assert factor(cosine, 7, 1.0) == pytest.approx(0.0)


def test_a_rate_that_is_held_falls_afterwards() -> None:
    held = StageConfig(schedule="linear", floor=0.0, hold=0.4, steps=100)
    for progress, expected in ((0.0, 1.0), (0.4, 1.0), (0.7, 0.5), (1.0, 0.0)):
        assert factor(held, 5, progress) == pytest.approx(expected)
    with pytest.raises(WhenceError, match="hold must lie in"):
        StageConfig(hold=1.0, steps=1)


@given(
    st.sampled_from(["constant", "linear", "cosine", "cosine-rebound"]),
    st.floats(0, 1),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e7),
    st.floats(0, 1),
)
@example("cosine-rebound", 0.0, 0.0, 5e-324, 1.0, 0.0)
def test_the_factor_stays_between_nothing_and_one(
    schedule: str, floor: float, warmup: float, decay: float, now: float, progress: float
) -> None:
    stage = StageConfig(schedule=schedule, floor=floor, warmup=warmup, decay=decay, steps=1)  # type: ignore[arg-type]
    value = factor(stage, now, progress)
    assert 0 <= value <= 1 + 1e-12
    if now >= warmup:
        assert value >= floor - 1e-12
