"""Devices: which one a run computes on, what is there, and how values come and go.

Values that move between homes are in the memory of the host. When a task begins, its inputs are put on the device;
when it returns, its result is brought back, once. Rows are put there once and stay within a budget (`RowCache`). So no
task knows its device: `ctx.data`, `ctx.flat_module` and inputs are all in one place, and `ctx.put` brings there what a
task draws or makes itself.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import ModelRows, Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.tasks.batched.buffers import whole_lines

CPU = torch.device("cpu")
KNOWN = "'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"
PLAIN = (str, int, float, type(None))
LARGE = 1 << 20  # bytes of an input from which it is kept on the device like rows, as long as the host has it
LESS_MEMORY = (
    "lower batch in [local], [sector] or [server], engine.workers, or engine.device_memory (MB of rows that stay there), "
    "or set engine.stack = 'off' or engine.device = 'cpu'"
)
UNMEASURED = 1 << 30  # bytes of rows that stay on a device that does not tell its memory


def find(name: str) -> torch.device:
    """The device of `engine.device`.

    Args:
        name: "auto" for a GPU where torch finds one and else the CPU, or a device of torch.

    Raises:
        ConfigError: torch does not know this device, or it is not in this machine.
    """
    if name == "auto":
        return next((torch.device(kind) for kind in ("cuda", "mps") if _count(kind)), CPU)
    device, count = _named(name)
    if device.type == "cpu":
        return CPU
    if not count:
        raise ConfigError(
            f"engine.device = {name!r}: torch {torch.__version__} finds no such device in this machine; use 'auto' or "
            f"'cpu', or install a build of torch for it"
        )
    if (device.index or 0) >= count:
        raise ConfigError(
            f"engine.device = {name!r}: this machine has {count} of them, numbered from 0; use {device.type!r}"
        )
    return device


def found(name: str) -> bool:
    """Whether this machine has the device of `engine.device`; raises ConfigError for a name that no device has."""
    return name == "auto" or _named(name)[1] > (_named(name)[0].index or 0)


def _named(name: str) -> tuple[torch.device, int]:
    """A device by name, and how many of its kind there are."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"engine.device must be {KNOWN}, got {name!r}") from None
    return device, 1 if device.type == "cpu" else _count(device.type)


def _count(kind: str) -> int:
    """How many devices of a kind torch can use here."""
    try:
        module: Any = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a kind of device without a module cannot be used
        return 0


def of_worker(device: torch.device, number: int) -> torch.device:
    """The device of a worker process: several GPUs are shared out in turn, unless the device has a number."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number % max(1, _count("cuda")))


def about(device: torch.device, precision: str) -> dict[str, Any]:
    """What result.json says of a device."""
    facts: dict[str, Any] = {"type": device.type, "precision": precision}
    if device.type == "cuda":
        facts |= {"name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


# -- settings of a process


@contextmanager
def settled(device: torch.device) -> Iterator[None]:
    """Choose algorithms whose results are the same every time, and full float32, while a device is used.

    An operation that has no such algorithm gives a warning of torch.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn: Any = torch.backends.cudnn
    kept = cudnn.allow_tf32, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS also needs CUBLAS_WORKSPACE_CONFIG: see `startup`
    cudnn.allow_tf32, cudnn.benchmark = False, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.allow_tf32, cudnn.benchmark = kept


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generator of a device, whose state outside tasks belongs to the user."""
    module: Any = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(module, "get_rng_state"):
        yield
        return
    where = (device,) if device.type == "cuda" else ()
    before = module.get_rng_state(*where)
    torch.Generator.manual_seed(_generator(device), seed) if device.type == "cuda" else module.manual_seed(seed)
    try:
        yield
    finally:
        module.set_rng_state(before, *where)


def _generator(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[number]


def out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left."""
    return isinstance(error, torch.OutOfMemoryError)


# -- values


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
    names = _fields(type(value))
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
def _fields(kind: type) -> tuple[str, ...]:
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
