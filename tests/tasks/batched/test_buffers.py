"""Memory that is used again, but never while anybody has a part of it."""

from __future__ import annotations

import pytest
import torch

from headwater.tasks.batched.buffers import ALONE, LINE, MOST, Buffers


def test_scratch_is_the_same_memory_under_the_same_name() -> None:
    buffers = Buffers()
    first = buffers.scratch("x", (4, 6), torch.float32)
    assert buffers.scratch("x", (3, 5), torch.float32).data_ptr() == first.data_ptr()
    assert buffers.scratch("y", (4, 6), torch.float32).data_ptr() != first.data_ptr()
    assert buffers.scratch("x", (5, 6), torch.float32).shape == (5, 6)
    assert buffers.scratch("x", (2,), torch.float64).dtype == torch.float64


def test_what_was_given_away_is_used_again_once_nobody_has_it() -> None:
    buffers = Buffers()
    first = buffers.lasting((8, 100), torch.float32)
    where = first.data_ptr()
    assert (first.shape, first.dtype, where % LINE) == ((8, 100), torch.float32, 0)
    del first
    assert buffers.lasting((8, 100), torch.float32).data_ptr() == where
    assert buffers.lasting((7, 100), torch.float32).data_ptr() == where


@pytest.mark.parametrize(
    "part", [lambda t: t[3], lambda t: t.unbind()[0], lambda t: t.view(-1)[:1], lambda t: t.numpy()]
)
def test_whoever_has_a_part_keeps_it(part: object) -> None:
    buffers = Buffers()
    held = part(buffers.lasting((8, 100), torch.float32).fill_(1))  # type: ignore[operator]
    buffers.lasting((8, 100), torch.float32).fill_(2)
    buffers.lasting((8, 100), torch.float32).fill_(3)
    assert (held == 1).all()


def test_a_few_rows_do_not_keep_a_large_block() -> None:
    buffers = Buffers()
    where = buffers.lasting((64, 100), torch.float32).data_ptr()
    assert buffers._last is not None
    small = buffers.lasting((2, 100), torch.float32)
    assert small.data_ptr() != where
    assert buffers._last.nbytes < 2 * small.nbytes


def test_what_is_very_large_is_not_kept() -> None:
    buffers = Buffers()
    buffers.scratch("x", (MOST + 1,), torch.uint8)
    buffers.lasting((MOST + 1,), torch.uint8)
    assert not buffers._scratch
    assert buffers._last is None


def test_a_block_is_alone_once_nobody_has_a_part() -> None:
    buffers = Buffers()
    held = buffers.lasting((8, 100), torch.float32)
    assert buffers._holders() > ALONE
    del held
    assert buffers._holders() == ALONE
