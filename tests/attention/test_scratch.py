"""Memory that is lent again and again shows in no result, and nothing of it leaves."""

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from whence.attention import MECHANISMS, Attention, exact, scratch, softmax, tiles
from whence.attention.scratch import Room, block_of, lent


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    scratch.drop_kept()
    yield
    scratch.drop_kept()


shapes = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), max_size=6)


@given(shapes, st.integers(0, 300))
def test_arrays_do_not_overlap_whether_they_fit_or_not(shapes: list[list[int]], size: int) -> None:
    room = Room(block_of(size, torch.float32))
    arrays = [room.take(*shape).fill_(float(number)) for number, shape in enumerate(shapes)]
    for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        assert list(array.shape) == shape and array.is_contiguous()
        assert bool((array == number).all())


def test_the_next_piece_lies_over_the_last() -> None:
    for size in (0, 50, 200):
        room = Room(block_of(size, torch.float64))
        places = []
        for _ in range(3):
            room.clear()
            places.append([room.take(*shape).data_ptr() for shape in ((100,), (10, 3), (5,))])
        assert places[0] == places[1] == places[2]
        assert len(set(places[0])) == 3


def test_what_a_thread_keeps_is_one_block_of_what_was_needed_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scratch, "MOST", 400)
    like = torch.zeros(())
    for size, kept in ((64, 64), (64, 64), (96, 96), (64, 96), (101, 96)):
        with lent(like) as room:
            for _ in range(3):
                room.clear()
                room.take(size - 32)
                room.take(32)
        with lent(like) as room:
            assert room.blocks[0].numel() == kept
    with lent(like) as room:
        room.take(64)
    scratch.drop_kept()
    with lent(like) as room:
        assert room.blocks[0].numel() == 0


def test_a_block_is_lent_to_one_at_a_time_of_a_kind_and_thread() -> None:
    like = torch.zeros(())
    for _ in range(2):
        with lent(like) as room:
            place = room.take(50).data_ptr()
            with lent(like) as inner:
                assert inner.take(50).data_ptr() != place
    with lent(like.double()) as room:
        assert room.take(50).dtype == torch.float64
    found: list[int] = []

    def other() -> None:
        with lent(like) as room:
            found.append(room.blocks[0].numel())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [0]


def test_an_error_gives_the_block_back() -> None:
    like = torch.zeros(())
    with pytest.raises(KeyError), lent(like) as room:
        room.take(50)
        raise KeyError
    with lent(like) as room:
        assert room.blocks[0].numel() >= 50


def test_nothing_of_a_mode_is_kept() -> None:
    """A default device or a mode of torch in whose place real memory is wanted afterwards."""
    like = torch.zeros(())
    with torch.device("meta"), lent(like) as room:
        assert room.take(50).device.type == "cpu"
    with FakeTensorMode(allow_non_fake_inputs=True), lent(like) as room:
        room.take(500)
    with lent(like) as room:
        assert type(room.take(50)) is torch.Tensor
    with FakeTensorMode() as mode:
        made = mode.from_tensor(like)
        with lent(made) as room:
            assert isinstance(room.take(50), FakeTensor)
    with lent(like) as room:
        assert type(room.take(50).fill_(1.0)) is torch.Tensor


def spoil() -> int:
    """Fills what this thread keeps with no numbers."""
    block = scratch._kept.block
    if block is None:
        return 0
    block.fill_(torch.nan)
    return block.numel()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_what_was_there_before_shows_in_no_result(
    kind: type[Attention], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in one of before, which would have to lie there. Inference first, then training."""
    monkeypatch.setattr(tiles, "LEAST", 0)
    monkeypatch.setattr(softmax, "SHORT", {})
    monkeypatch.setattr(exact, "onednn_pays", lambda: True)
    attention = kind(64, 2, 300, causal)
    x = torch.randn(2, 299, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.inference_mode():
        quick = attention(x)
        spoil()
        assert quick.isfinite().all()
    results, kept = [], 0
    for _ in range(2):
        y = attention(x)
        kept += spoil()
        found = torch.autograd.grad(y.square().sum(), [x, *attention.parameters()])
        results.append([y.detach(), *found])
        kept += spoil()
    for one, two in zip(*results, strict=True):
        assert one.isfinite().all() and torch.equal(one, two)
    assert kept or not (causal and kind.mechanism in ("linformer", "perceiver", "performer"))
