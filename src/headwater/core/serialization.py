"""Values as bytes: the same format on the wire, in shared memory and in checkpoints.

A value is a tree of plain Python values (None, numbers, strings, tuples, lists, dicts), tensors and a few known records
(models, examples). `flatten` splits it into a JSON skeleton and a list of tensors, and `rebuild` joins them again.
Reading never executes code. A file is the skeleton, then each tensor on a 64-byte boundary, so that a memory-mapped
file can be used in place.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from headwater.core.one_bit import OneBit
from headwater.core.params import Layout, ModelRows, Params
from headwater.data.base import Examples

ALIGN = 64
MAGIC = b"HEADWATER1"
WRITERS = 16  # files that are flushed to disk at a time
PLAIN = (str, int, float, bool, type(None))
SHORT = 4096  # longest skeleton, in bytes, that is cached
Key = TypeVar("Key")
RECORDS: dict[str, type] = {kind.__name__: kind for kind in (Examples, OneBit, Params)}


class ValueInfo(NamedTuple):
    """Size of a value, for the ledger."""

    bytes: int
    models: int
    kind: str  # model, examples, array, number, …


NUMBER = ValueInfo(8, 0, "number")


@lru_cache(maxsize=256)
def layout_from(text: str) -> Layout:
    arch, trainable, floats, counters, buffers, *frozen = json.loads(text)
    back = [tuple((n, tuple(s)) for n, s in part) for part in (trainable, floats, counters, *frozen)]
    return Layout(arch, back[0], back[1], back[2], buffers, *back[3:])


@lru_cache(maxsize=256)
def layout_text(layout: Layout) -> str:
    frozen = [layout.frozen] if layout.frozen else []
    return json.dumps([layout.arch, layout.trainable, layout.floats, layout.counters, layout.buffers, *frozen])


def flatten(value: Any) -> tuple[Any, list[Tensor]]:
    """Split a value into a JSON skeleton and its tensors."""
    tensors: list[Tensor] = []
    return _flat(value, tensors), tensors


def _flat(v: Any, tensors: list[Tensor]) -> Any:
    if v is None or isinstance(v, bool | int | float | str):
        return v
    if isinstance(v, np.generic):
        return v.item()
    if isinstance(v, np.ndarray):
        v = torch.from_numpy(np.ascontiguousarray(v))
    if isinstance(v, Tensor):
        tensors.append(v.detach().contiguous())
        return {"$": "tensor", "n": len(tensors) - 1}
    if isinstance(v, Layout):
        return {"$": "layout", "v": layout_text(v)}
    if isinstance(v, tuple | list):
        return {"$": type(v).__name__, "v": [_flat(item, tensors) for item in v]}
    if isinstance(v, dict):
        return {"$": "dict", "v": [[_flat(key, tensors), _flat(item, tensors)] for key, item in v.items()]}
    if is_dataclass(v) and type(v).__name__ in RECORDS:
        return {"$": type(v).__name__, "v": {f.name: _flat(getattr(v, f.name), tensors) for f in fields(v)}}
    raise TypeError(
        f"a value of type {type(v).__name__} cannot travel; use numbers, strings, tensors, models, tuples and dicts"
    )


def rebuild(skeleton: Any, tensors: list[Tensor]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    kind: str = skeleton["$"]
    content: Any = skeleton.get("v")
    if kind == "tensor":
        return tensors[skeleton["n"]]
    if kind == "layout":
        return layout_from(content)
    if kind == "dict":
        return {rebuild(key, tensors): rebuild(item, tensors) for key, item in content}
    if kind in ("tuple", "list"):
        items = [rebuild(item, tensors) for item in content]
        return tuple(items) if kind == "tuple" else items
    return RECORDS[kind](**{name: rebuild(item, tensors) for name, item in content.items()})


def read_back(value: Any) -> Any:
    """The value as it would be after writing and reading: same types, strides and alignment, no gradient."""
    kind = type(value)
    if kind in PLAIN or (kind is Params and as_read(value)):
        return value
    if kind in (tuple, list):
        return kind(map(read_back, value))
    if kind is dict and all(type(key) in PLAIN for key in value):
        return {key: read_back(item) for key, item in value.items()}
    skeleton, tensors = flatten(value)
    return rebuild(skeleton, [aligned(tensor.view(-1).view(tensor.shape)) for tensor in tensors])


def as_rows_read(values: Sequence[Any]) -> bool:
    """True if values are rows of one matrix, of one size, and `read_back` would return all of them unchanged."""
    if not isinstance(values, ModelRows):
        return False
    step = values.matrix.stride(0) * values.matrix.itemsize
    return as_read(values[0]) and not values.matrix.data_ptr() % ALIGN and not step % ALIGN


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor at a 64-byte boundary, because the rounding of kernels may depend on alignment."""
    return tensor.clone() if tensor.data_ptr() % ALIGN else tensor


def as_read(model: Params) -> bool:
    """True if `read_back` would return the model unchanged."""
    vector, counters = model.vector, model.counters
    return (
        type(vector) is Tensor
        and type(counters) is Tensor
        and type(model.weight) in (float, int)
        and vector.stride() == counters.stride() == (1,)
        and not vector.requires_grad
        and not vector.data_ptr() % ALIGN
    )


def info(value: Any) -> ValueInfo:
    """Size of a value: array bytes (8 for a plain number) and models. Names, shapes and weights are not counted."""
    if type(value) in (Params, OneBit):
        return ValueInfo(value.nbytes, 1, "model")
    if type(value) is float:
        return NUMBER
    total, models = _weigh(value)
    names: list[tuple[type | tuple[type, ...], str]] = [
        (Params, "model"),
        (Examples, "examples"),
        ((Tensor, np.ndarray), "array"),
        ((int, float, np.generic), "number"),
    ]
    kind = next((name for kinds, name in names if isinstance(value, kinds)), "models" if models else "numbers")
    return ValueInfo(total, models, kind)


def _weigh(value: Any) -> tuple[int, int]:
    """Bytes and number of models."""
    if isinstance(value, Params | OneBit):
        return value.nbytes, 1
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes, 0
    if isinstance(value, int | float | np.generic):
        return 8, 0
    if isinstance(value, Examples):
        return value.x.nbytes + value.y.nbytes, 0
    if isinstance(value, dict | tuple | list):
        found = [_weigh(item) for item in (value.values() if isinstance(value, dict) else value)]
        return sum(total for total, _ in found), sum(models for _, models in found)
    return 0, 0


def on_its_own(value: Any) -> Any:
    """Copy tensors that are small views of a larger storage, so that the storage can be freed."""
    skeleton, tensors = flatten(value)
    views = [tensor.untyped_storage().nbytes() > 2 * tensor.nbytes for tensor in tensors]
    if not any(views):
        return value
    return rebuild(skeleton, [t.clone() if is_view else t for t, is_view in zip(tensors, views, strict=True)])


@dataclass(frozen=True)
class Laid:
    """A value prepared for a file."""

    head: bytes
    tensors: list[Tensor]
    bytes: int

    @staticmethod
    def out(value: Any) -> Laid:
        skeleton, tensors = flatten(value)
        places, at = [], 0
        for tensor in tensors:
            places.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at])
            at += -(-tensor.nbytes // ALIGN) * ALIGN
        text = json.dumps({"value": skeleton, "tensors": places, "bytes": at}).encode()
        head = MAGIC + len(text).to_bytes(8, "little") + text
        head += b"\0" * (-len(head) % ALIGN)
        return Laid(head, tensors, len(head) + at)

    def write(self, file: BinaryIO) -> None:
        file.write(self.head)
        for tensor in self.tensors:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
            file.write(b"\0" * (-tensor.nbytes % ALIGN))


def write(value: Any, file: BinaryIO) -> None:
    Laid.out(value).write(file)


def to_bytes(value: Any) -> bytes:
    """A value as the content of a file."""
    write(value, file := io.BytesIO())
    return file.getvalue()


def from_bytes(content: bytes) -> Any:
    """The value that `to_bytes` wrote."""
    return _read(torch.frombuffer(bytearray(content), dtype=torch.uint8), len(content), "a message")


def read(path: Path) -> Any:
    """Read a value. Its tensors are views of the memory-mapped file (copy on write)."""
    if not (size := path.stat().st_size):
        raise ValueError(f"{path} does not hold a value")
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)  # unlike mmap, keeps no file open
    return _read(whole, size, path)


def _read(whole: Tensor, size: int, path: Path | str) -> Any:
    mapped, at = whole.numpy(), len(MAGIC) + 8
    if size < at:
        raise ValueError(f"{path} does not hold a value")
    if mapped[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError(f"{path} does not hold a value")
    length = int.from_bytes(mapped[len(MAGIC) : at].tobytes(), "little")
    if size < at + length:
        raise ValueError(f"{path} is cut short")
    text = mapped[at : at + length].tobytes()
    head = _head(text) if length <= SHORT else json.loads(text)
    start = -(-(at + length) // ALIGN) * ALIGN
    if size < start + head["bytes"]:
        raise ValueError(f"{path} is cut short")
    return rebuild(head["value"], [_tensor(whole, dtype, shape, start + at) for dtype, shape, at in head["tensors"]])


@lru_cache(maxsize=256)
def _head(text: bytes) -> Any:
    """Cached, because many small values have equal skeletons. Do not modify the result."""
    return json.loads(text)


def _tensor(data: Tensor, dtype: str, shape: list[int], at: int) -> Tensor:
    kind, count = getattr(torch, dtype), prod(shape)
    if not count:
        return torch.zeros(shape, dtype=kind)
    flat = data[at : at + count * kind.itemsize].view(kind)
    return flat if len(shape) == 1 else flat.view(shape)


def store(value: Any, directory: Path) -> str:
    """Write a value atomically under a name derived from its content; equal content is written once."""
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f"draft-{os.getpid()}-{threading.get_ident()}"
    with draft.open("w+b") as file:
        write(value, file)
        file.flush()
        file.seek(0)
        name = hashlib.file_digest(file, "sha256").hexdigest() + ".value"
        os.fsync(file.fileno())
    os.replace(draft, directory / name)
    return name


def store_all(stores: Mapping[Key, Callable[[], str]]) -> dict[Key, str]:
    """Run functions that store one value each, several in parallel."""
    if len(stores) < 2:
        return {name: store() for name, store in stores.items()}
    with ThreadPoolExecutor(min(WRITERS, len(stores))) as writers:
        return dict(zip(stores, writers.map(lambda store: store(), stores.values()), strict=True))


def part_of(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
