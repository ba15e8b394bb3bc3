"""Queries and keys that are turned where they lie: only where nobody sees it, and to the same."""

import pytest
import torch
from torch import Tensor, nn

from whence.attention import MECHANISMS, Rope
from whence.attention.base import Attention


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []
    turned = Attention.turned

    def note(self: Attention, joined: Tensor, positions: Tensor | None) -> bool:
        found.append(turned(self, joined, positions))
        return found[-1]

    monkeypatch.setattr(Attention, "turned", note)
    return found


def rotated(mechanism: str) -> Attention:
    options = {} if mechanism == "rope" else {"rope": True}
    return MECHANISMS[mechanism](32, 2, 40, **options)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("mechanism", ["rope", "linformer", "perceiver", "bigbird", "performer"])
def test_in_place_is_beside(mechanism: str, kind: torch.dtype, noted: list[bool]) -> None:
    attention, x = rotated(mechanism).to(kind), drawn(2, 37, 32).to(kind)
    expected = attention(x)
    with torch.no_grad():
        found = attention(x)
    with torch.inference_mode():
        again = attention(x)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found, again)
    assert noted == [False, True, True]


def test_steps_place_their_tokens(noted: list[bool]) -> None:
    attention, x = rotated("rope"), drawn(2, 12, 32)
    expected = attention(x)
    _, state = attention.prefill(x[:, :9])
    for position in range(9, 12):
        y, state = attention.step(x[:, position : position + 1], state, torch.full((2,), position))
        torch.testing.assert_close(y, expected[:, position : position + 1])
    assert noted == [False] + [True] * 4


def test_half_precision_is_turned_in_full(noted: list[bool]) -> None:
    attention, x = rotated("rope").bfloat16(), drawn(2, 12, 32).bfloat16()
    with torch.no_grad():
        attention(x)
    assert noted == [False]


@pytest.mark.parametrize("everywhere", [True, False])
def test_who_watches_the_projection_sees_what_it_made(everywhere: bool, noted: list[bool]) -> None:
    attention, x, seen = rotated("rope"), drawn(2, 12, 32), []

    def keep(module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        if module is attention.qkv:
            seen.append(y)

    hook = (
        nn.modules.module.register_module_forward_hook(keep)
        if everywhere
        else attention.qkv.register_forward_hook(keep)
    )
    with hook, torch.no_grad():
        y = attention(x)
        plain = attention.qkv(x)
    assert torch.equal(seen[0], plain)
    with torch.no_grad():
        torch.testing.assert_close(y, attention(x))
    assert noted == [False, True]


def test_a_projection_of_somebody_elses_is_not_written_to(noted: list[bool]) -> None:
    """One that remembers, or hands on what it was given."""
    attention = Rope(32, 2, 40)
    given = drawn(2, 12, 96)
    before = given.clone()
    attention.qkv = nn.Identity()  # type: ignore[assignment]
    with torch.no_grad():
        attention.heads_of(given)
    assert torch.equal(given, before)
    assert noted == [False]


def test_nor_is_one_that_remembers(noted: list[bool]) -> None:
    attention, x = rotated("rope"), drawn(2, 12, 32)
    with torch.no_grad():
        expected, made = attention(x), attention.qkv(x)
        attention.qkv.forward = lambda _: made  # type: ignore[method-assign]
        for _ in range(2):
            torch.testing.assert_close(attention(x), expected)
    assert noted == [True, False, False]
