"""What a value looks like as bytes: on the wire, in shared memory and in a checkpoint alike.

A value is a tree of plain things (None, numbers, strings, tuples, lists, dicts) with tensors and a few known records
(models, examples) in it. `flatten` splits it into a JSON skeleton and a list of tensors, `rebuild` joins them again;
no code is ever executed by reading. A file is the skeleton, then each tensor on a 64-byte boundary, so that it can be
used in place by mapping it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.params import Layout, Params

ALIGN = 64
MAGIC = b"HEADWATER1"
RECORDS: dict[str, type] = {kind.__name__: kind for kind in (Examples, Params)}


@dataclass(frozen=True)
class Info:
    """What the ledger wants to know of a value."""

    bytes: int
    models: int
    kind: str  # model, examples, array, number, …


@lru_cache(maxsize=256)
def _layout(text: str) -> Layout:
    arch, trainable, floats, counters, buffers = json.loads(text)
    back = [tuple((n, tuple(s)) for n, s in part) for part in (trainable, floats, counters)]
    return Layout(arch, back[0], back[1], back[2], buffers)


@lru_cache(maxsize=256)
def _layout_text(layout: Layout) -> str:
    return json.dumps([layout.arch, layout.trainable, layout.floats, layout.counters, layout.buffers])


def flatten(value: Any) -> tuple[Any, list[Tensor]]:
    """(skeleton, tensors)."""
    tensors: list[Tensor] = []

    def walk(v: Any) -> Any:
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
            return {"$": "layout", "v": _layout_text(v)}
        if isinstance(v, tuple | list):
            return {"$": type(v).__name__, "v": [walk(item) for item in v]}
        if isinstance(v, dict):
            return {"$": "dict", "v": [[walk(key), walk(item)] for key, item in v.items()]}
        if is_dataclass(v) and type(v).__name__ in RECORDS:
            return {"$": type(v).__name__, "v": {f.name: walk(getattr(v, f.name)) for f in fields(v)}}
        raise TypeError(
            f"a value of type {type(v).__name__} cannot travel; use numbers, strings, tensors, models, tuples and dicts"
        )

    return walk(value), tensors


def rebuild(skeleton: Any, tensors: list[Tensor]) -> Any:
    def walk(s: Any) -> Any:
        if not isinstance(s, dict):
            return s
        kind = s["$"]
        if kind == "tensor":
            return tensors[s["n"]]
        if kind == "layout":
            return _layout(s["v"])
        if kind == "dict":
            return {walk(key): walk(item) for key, item in s["v"]}
        if kind in ("tuple", "list"):
            items = [walk(item) for item in s["v"]]
            return tuple(items) if kind == "tuple" else items
        return RECORDS[kind](**{name: walk(item) for name, item in s["v"].items()})

    return walk(skeleton)


def info(value: Any) -> Info:
    """Array bytes (8 for a bare number) and how many models; weights, names and shapes are headers and free."""
    total = models = 0

    def walk(v: Any) -> None:
        nonlocal total, models
        if isinstance(v, Params):
            total, models = total + v.nbytes, models + 1
        elif isinstance(v, Tensor | np.ndarray):
            total += v.nbytes
        elif isinstance(v, int | float | np.generic):
            total += 8
        elif isinstance(v, Examples):
            total += v.x.nbytes + v.y.nbytes
        elif isinstance(v, dict):
            for item in v.values():
                walk(item)
        elif isinstance(v, tuple | list):
            for item in v:
                walk(item)

    walk(value)
    names: list[tuple[type | tuple[type, ...], str]] = [
        (Params, "model"),
        (Examples, "examples"),
        ((Tensor, np.ndarray), "array"),
        ((int, float, np.generic), "number"),
    ]
    kind = next((name for kinds, name in names if isinstance(value, kinds)), "models" if models else "numbers")
    return Info(total, models, kind)


def write(value: Any, file: BinaryIO) -> None:
    skeleton, tensors = flatten(value)
    places, at = [], 0
    for tensor in tensors:
        places.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at])
        at += -(-tensor.nbytes // ALIGN) * ALIGN
    head = json.dumps({"value": skeleton, "tensors": places, "bytes": at}).encode()
    start = len(MAGIC) + 8 + len(head)
    file.write(MAGIC + len(head).to_bytes(8, "little") + head + b"\0" * (-start % ALIGN))
    for tensor in tensors:
        file.write(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
        file.write(b"\0" * (-tensor.nbytes % ALIGN))


def read(path: Path) -> Any:
    """The value in a file; its tensors are the mapped file itself (copied only where somebody writes)."""
    size, at = path.stat().st_size, len(MAGIC) + 8
    if size < at:
        raise ValueError(f"{path} does not hold a value")
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)  # keeps no file open, unlike mmap

    def text(start: int, end: int) -> bytes:
        return whole[start:end].numpy().tobytes()

    if text(0, len(MAGIC)) != MAGIC:
        raise ValueError(f"{path} does not hold a value")
    length = int.from_bytes(text(len(MAGIC), at), "little")
    if size < at + length:
        raise ValueError(f"{path} is cut short")
    head = json.loads(text(at, at + length))
    start = -(-(at + length) // ALIGN) * ALIGN
    if size < start + head["bytes"]:
        raise ValueError(f"{path} is cut short")
    return rebuild(head["value"], [_tensor(whole[start:], *place) for place in head["tensors"]])


def _tensor(data: Tensor, dtype: str, shape: list[int], at: int) -> Tensor:
    kind, count = getattr(torch, dtype), int(np.prod(shape, dtype=np.int64))
    return data[at : at + count * kind.itemsize].view(kind).view(shape) if count else torch.zeros(shape, dtype=kind)


def store(value: Any, directory: Path) -> str:
    """Write a value under a name made from its content, whole or not at all; the same content is written once."""
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


def part_of(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
