"""Memory that is used again: the system clears every fresh page, which takes longer than what a stack does with it."""

from __future__ import annotations

import sys
from math import prod

import numpy as np
import torch
from torch import Tensor

LINE = 64  # bytes of a cache line
MOST = 64 << 20  # bytes that are worth keeping: whoever works with more has other things to wait for


class Buffers:
    def __init__(self) -> None:
        self._scratch: dict[str, Tensor] = {}
        self._last: np.ndarray | None = None

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """For work that is over before this name is asked for again; it holds whatever it held."""
        held, count = self._scratch.get(name), prod(shape)
        if count * dtype.itemsize > MOST:
            return torch.empty(shape, dtype=dtype)
        if held is None or held.dtype != dtype or len(held) < count:
            held = self._scratch[name] = _part(_block(count * dtype.itemsize), count * dtype.itemsize).view(dtype)
        return held[:count].view(shape)

    def lasting(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """To be given away: its memory is used again once nobody has any part of it."""
        need = prod(shape) * dtype.itemsize
        if need > MOST:
            return torch.empty(shape, dtype=dtype)
        # A much larger block would be kept alive by the few who hold a part of it.
        if self._last is None or not need <= self._last.nbytes - LINE <= 1.25 * need or self._holders() > ALONE:
            self._last = _block(need)
        return _part(self._last, need).view(dtype).view(shape)

    def _holders(self) -> int:
        """A tensor made from an array holds it for as long as one of its views lives. Beside it there are this object
        and, in some versions of Python, the call that counts."""
        return sys.getrefcount(self._last)


def whole_lines(count: int, dtype: torch.dtype) -> int:
    """So many numbers and as many more as fill whole cache lines."""
    line = LINE // dtype.itemsize
    return -(-count // line) * line


def _block(size: int) -> np.ndarray:
    """Room for so many bytes. numpy asks for large pages, of which a few do."""
    return np.empty(size + LINE, dtype=np.uint8)


def _part(block: np.ndarray, size: int) -> Tensor:
    """So many bytes from the first whole cache line on."""
    first = -block.ctypes.data % LINE
    return torch.from_numpy(block[first : first + size])


def _alone() -> int:
    """The holders of a block that nobody else has a part of."""
    fresh = Buffers()
    fresh._last = _block(1)
    return fresh._holders()


ALONE = _alone()
