"""What is on a device, and how values come and go.

Values that move between homes are in the memory of the host. When a task begins, its inputs are put on the device;
when it returns, its result is brought back, once. Rows are put there once and stay within a budget (`RowCache`). So no
task knows its device: `ctx.data`, `ctx.flat_module` and inputs are all in one place, and `ctx.put` brings there what a
task draws or makes itself.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import ModelRows, Params
from headwater.data.base import Examples
from headwater.tasks.batched.buffers import whole_lines
from headwater.tasks.devices import CPU

PLAIN = (str, int, float, type(None))
LARGE = 1 << 20  # bytes of an input from which it is kept on the device like rows, as long as the host has it
UNMEASURED = 1 << 30  # bytes of rows that stay on a device that does not tell its memory


def moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A value with every tensor in it moved: in models, examples, mappings, sequences and dataclasses at any depth."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, Params):
        return replace(value, vector=move(value.vector), counters=move(value.counters))
    if isinstance(value, tuple | list):
        items = [moved(item, move) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: moved(item, move) for key, item in value.items()}
    kind: Any = type(value)
    names = _fields(kind)
    if not names:
        return value
    parts = {name: getattr(value, name) for name in names}
    changed = {name: new for name, old in parts.items() if (new := moved(old, move)) is not old}
    if changed:  # without the constructor, which may check
        value = copy.copy(value)
        for name, item in changed.items():
            object.__setattr__(value, name, item)
    return value


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()


def on_host(value: Any) -> Any:
    """A result in the memory of the host. Models that are rows of one matrix are brought there by one copy."""
    if not isinstance(value, ModelRows):
        return moved(value, lambda tensor: tensor.to(CPU))
    rows, size = value.matrix.shape
    lines = torch.zeros(rows, whole_lines(size, value.matrix.dtype), dtype=value.matrix.dtype)
    matrix = lines[:, :size].copy_(value.matrix)
    counters: dict[int, Tensor] = {}  # most often one tensor for all
    for model in value:
        if id(model.counters) not in counters:
            counters[id(model.counters)] = model.counters.to(CPU)
    # Models are in the order of homes, rows in that of steps.
    at = {vector.storage_offset(): number for number, vector in enumerate(value.matrix.unbind())}
    models = [
        replace(model, vector=matrix[at[model.vector.storage_offset()]], counters=counters[id(model.counters)])
        for model in value
    ]
    return ModelRows(models, matrix)


class RowCache:
    """Rows that stay on a device. The least recently used are removed first.

    Args:
        device: the device.
        budget: bytes of rows that may stay; 0: a quarter of the device's memory.

    Attributes:
        bytes: of all rows that are there now.
    """

    def __init__(self, device: torch.device, budget: int = 0) -> None:
        self.device, self.bytes = device, 0
        self._budget = budget or _quarter(device)
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Rows on the device: those of this key, or a copy of what `make` returns."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        value = moved(make(), self._there)
        self._keep(key, value, _size(value))
        return value

    def put(self, value: Any) -> Any:
        """A value on the device. Large tables in it stay there as rows do, for as long as the host holds them."""
        return moved(value, self._tensor)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.device != CPU or tensor.dim() < 2 or tensor.nbytes < LARGE:
            return self._there(tensor)
        key = id(tensor)
        known = self._kept.get(key)
        if known is None or known[0][1]() is not tensor:
            there = self._there(tensor)
            self._keep(key, (there, weakref.ref(tensor, lambda _: self._drop(key))), there.nbytes)
            return there
        self._kept.move_to_end(key)
        found: Tensor = known[0][0]
        return found

    def _there(self, tensor: Tensor) -> Tensor:
        narrow = self.device.type == "mps" and tensor.dtype == torch.float64  # numbers which that device has not
        return tensor.to(self.device, torch.float32 if narrow else tensor.dtype)

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        self._drop(key)
        if size > self._budget:
            return
        while self._kept and self.bytes + size > self._budget:
            self._drop(next(iter(self._kept)))
        self._kept[key] = value, size
        self.bytes += size

    def _drop(self, key: Hashable) -> None:
        if (gone := self._kept.pop(key, None)) is not None:
            self.bytes -= gone[1]


def _size(value: Any) -> int:
    if isinstance(value, Examples):
        return value.x.nbytes + value.y.nbytes
    return value.nbytes if isinstance(value, Tensor) else 0


def _quarter(device: torch.device) -> int:
    """A quarter of the memory that a device has free now, so that several processes can share it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 4)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() // 4)
    return UNMEASURED


def placed_once(inputs: Mapping[str, Mapping[str, Any]], cache: RowCache) -> dict[str, dict[str, Any]]:
    """Inputs of several homes on the device. What homes share is put there once and stays shared."""
    known: dict[int, Any] = {}

    def put(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = cache.put(tensor)
        there: Tensor = known[id(tensor)]
        return there

    dicts: dict[int, dict[str, Any]] = {}
    for given in inputs.values():
        if id(given) not in dicts:
            dicts[id(given)] = {name: moved(item, put) for name, item in given.items()}
    return {node: dicts[id(given)] for node, given in inputs.items()}
