"""Features of rows under an extractor that never changes: computed once per process and kept."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

ROOM = 1 << 30  # bytes of tables that are kept; the one that was not used for longest goes first


class FeatureTables:
    """Tables of features by the content of their rows, so that a table serves whoever has the same rows.

    What is in memory never changes a number: a table that is not kept is computed again in the same way.

    Args:
        room: bytes that may be kept.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room, self._kept = room, OrderedDict[tuple[object, ...], Tensor]()

    def of(self, x: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The table of these rows, made if it is not known. Treat it as immutable."""
        key = (tuple(x.shape), x.dtype, _sha256(x))
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > self._room:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _sha256(x: Tensor) -> bytes:
    return hashlib.sha256(x.contiguous().cpu().view(-1).view(torch.uint8).numpy().data).digest()
