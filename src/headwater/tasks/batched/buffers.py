"""Reusable buffers. The operating system zeroes every new page, which takes longer than the work of a small stack."""

from __future__ import annotations

import sys
from math import prod

import numpy as np
import torch
from torch import Tensor

LINE = 64  # bytes of a cache line
MOST = 64 << 20  # bytes of the largest reused buffer: above it, zeroing pages is a small part of the time


class Buffers:
    """Buffers of one thread, by name.

    Args:
        device: where they are; None for the host. Memory of a device is reused by torch itself.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._scratch: dict[str, Tensor] = {}
        self._last: np.ndarray | None = None

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with arbitrary content, valid until this name is asked for again."""
        buffer, count = self._scratch.get(name), prod(shape)
        if count * dtype.itemsize > MOST or self._device is not None:
            return torch.empty(shape, dtype=dtype, device=self._device)
        if buffer is None or buffer.dtype != dtype or len(buffer) < count:
            buffer = self._scratch[name] = _part(_block(count * dtype.itemsize), count * dtype.itemsize).view(dtype)
        return buffer[:count].view(shape)

    def lasting(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor that the caller may keep. Its memory is reused once no view of it exists."""
        need = prod(shape) * dtype.itemsize
        if need > MOST or self._device is not None:
            return torch.empty(shape, dtype=dtype, device=self._device)
        # A small view of a much larger block would keep the whole block alive.
        if self._last is None or not need <= self._last.nbytes - LINE <= 1.25 * need or self._holders() > ALONE:
            self._last = _block(need)
        return _part(self._last, need).view(dtype).view(shape)

    def _holders(self) -> int:
        """Reference count of the block: its views, this object and, in some versions of Python, this call."""
        return sys.getrefcount(self._last)


def whole_lines(count: int, dtype: torch.dtype) -> int:
    """Round a count of numbers up to whole cache lines."""
    line = LINE // dtype.itemsize
    return -(-count // line) * line


def _block(size: int) -> np.ndarray:
    """Allocate `size` bytes, and room to align them. numpy requests huge pages, so there are few page faults."""
    return np.empty(size + LINE, dtype=np.uint8)


def _part(block: np.ndarray, size: int) -> Tensor:
    """Return `size` bytes of a block, from a cache-line boundary on."""
    first = -block.ctypes.data % LINE
    return torch.from_numpy(block[first : first + size])


def _alone() -> int:
    """Reference count of a block without views."""
    fresh = Buffers()
    fresh._last = _block(1)
    return fresh._holders()


ALONE = _alone()
