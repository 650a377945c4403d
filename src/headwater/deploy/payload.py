"""Values as the payload of a message, and the checks on every value that arrives.

A value is a skeleton, sent in the head, and arrays. Bare numbers are sent as arrays of 8 bytes per number, so that the
payload of a message is what the ledger counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from urllib.parse import quote

import torch

from headwater.core import serialization
from headwater.core.one_bit import OneBit
from headwater.core.params import Layout, Params, dtype_of
from headwater.data.base import Examples
from headwater.deploy.transport import Message, RawArray
from headwater.engines.jobs import LOST
from headwater.engines.nan_check import is_finite
from headwater.models.base import ModelSpec

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
CARGO = "cargo"
LONGEST = 200  # characters of a value's name in a file name
HEAVIEST = 2.0**53  # samples behind a model; sums of larger weights would overflow


class Refused(Exception):  # noqa: N818 (reported to the sender and logged)
    """A message failed a check and is ignored as a whole."""


def pack(head: dict[str, Any], values: Mapping[str, Any]) -> Message:
    """Build a message that carries values under their names."""
    rows: list[list[Any]] = []
    parts: list[RawArray] = []
    for name, value in values.items():
        if value is LOST:
            rows.append([name, None, 0])
            continue
        skeleton, tensors = serialization.flatten(value)
        numbers: list[float] = []
        skeleton = _extract_numbers(skeleton, numbers)
        parts += [_raw_array(tensor) for tensor in tensors]
        for kind, dtype in ((int, torch.int64), (float, torch.float64)):
            parts.append(_raw_array(torch.tensor([n for n in numbers if type(n) is kind], dtype=dtype)))
        rows.append([name, {"v": skeleton}, len(tensors)])
    return Message(head | {CARGO: rows}, tuple(parts))


def _raw_array(tensor: torch.Tensor) -> RawArray:
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return RawArray(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def _extract_numbers(skeleton: Any, numbers: list[float]) -> Any:
    """Move bare numbers from the skeleton to `numbers`, in order. Numbers in records and keys stay in the head."""
    if isinstance(skeleton, bool):
        numbers.append(int(skeleton))
        return {"$": "truth"}
    if isinstance(skeleton, int | float):
        numbers.append(skeleton)
        return {"$": type(skeleton).__name__}
    return _each_item(skeleton, lambda item: _extract_numbers(item, numbers))


def _insert_numbers(skeleton: Any, ints: list[int], floats: list[float]) -> Any:
    """The inverse of `_extract_numbers`; consumes the lists."""
    kind = skeleton["$"] if isinstance(skeleton, dict) else ""
    if kind == "truth":
        return bool(ints.pop(0))
    if kind in ("int", "float"):
        return ints.pop(0) if kind == "int" else floats.pop(0)
    return _each_item(skeleton, lambda item: _insert_numbers(item, ints, floats))


def _each_item(skeleton: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to the items of a dict, tuple or list; other skeletons stay as they are."""
    if isinstance(skeleton, dict) and skeleton["$"] == "dict":
        return skeleton | {"v": [[key, change(item)] for key, item in skeleton["v"]]}
    if isinstance(skeleton, dict) and skeleton["$"] in ("tuple", "list"):
        return skeleton | {"v": [change(item) for item in skeleton["v"]]}
    return skeleton


@dataclass(frozen=True)
class PayloadReader:
    """Reads the values of a message: known array types, models of the configuration's layout and finite numbers only.

    Args:
        models: the architectures of the federation, by name.
        max_bytes: largest accepted payload of a message.
    """

    models: Mapping[str, ModelSpec]
    max_bytes: int

    def unpack(self, message: Message) -> dict[str, Any]:
        """All values of a message by name.

        Raises:
            Refused: if any part of the message fails a check.
        """
        if message.payload > self.max_bytes:
            raise Refused(
                f"a message of {message.payload:,} bytes is larger than deploy.max_mb allows ({self.max_bytes:,} bytes)"
            )
        values: dict[str, Any] = {}
        at, rows = 0, message.head.get(CARGO, [])
        if not isinstance(rows, list):
            raise Refused("it does not say which values it has")
        for row in rows:
            try:
                name, content, count = row[0], row[1], int(row[2])
                if not isinstance(name, str) or len(quote(name, safe="")) > LONGEST or name in values:
                    raise Refused(f"{name!r:.80} is no name of a value, or comes twice")
                if content is None:
                    values[name] = LOST
                    continue
                parts = message.parts[at : at + count + 2]
                if count < 0 or len(parts) < count + 2:
                    raise Refused(f"the value {name!r} lacks arrays")
                at += count + 2
                values[name] = self._value(name, content["v"], parts)
            except Refused:
                raise
            except Exception as error:  # malformed input of any kind must not end this process
                raise Refused(f"a value is malformed ({type(error).__name__}: {error})") from error
        if at < len(message.parts):
            raise Refused(f"{len(message.parts) - at} arrays of a message belong to no value")
        return values

    def _value(self, name: str, skeleton: Any, parts: Sequence[RawArray]) -> Any:
        tensors = [_tensor(name, part) for part in parts]
        ints, floats = tensors.pop(-2).tolist(), tensors.pop().tolist()
        value = serialization.rebuild(_insert_numbers(skeleton, ints, floats), tensors)
        self._check(name, value)
        return value

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, Params):
            self._check_model(name, value)
        elif isinstance(value, OneBit):
            self._check_model(name, value.unpacked())
        elif isinstance(value, Examples):
            if len(value.x) != len(value.y) or value.y.dtype != torch.int64:
                raise Refused(f"{name!r} is no set of examples: {tuple(value.x.shape)} with {tuple(value.y.shape)}")
        elif isinstance(value, dict | tuple | list):
            for item in value.values() if isinstance(value, dict) else value:
                self._check(name, item)
        if not is_finite(value):
            raise Refused(f"{name!r} holds numbers that are not finite")

    def _check_model(self, name: str, model: Params) -> None:
        arch = model.layout.arch
        spec = self.models.get(arch)
        if spec is None:
            raise Refused(f"{name!r} is a model {arch!r}, which is none of this federation's: {', '.join(self.models)}")
        expected, dtype = _layout_of(spec, arch)
        layout = model.layout
        if layout != expected:
            raise Refused(f"{name!r} is laid out unlike the model {arch!r} of the configuration")
        sizes = [sum(prod(shape) for _, shape in part) for part in (layout.trainable + layout.floats, layout.counters)]
        if [tuple(model.vector.shape), tuple(model.counters.shape)] != [(size,) for size in sizes]:
            shape = tuple(model.vector.shape)
            raise Refused(f"{name!r} has numbers of shape {shape}, but its layout asks for {sizes[0]}")
        if model.vector.dtype != dtype or model.counters.dtype != torch.int64:
            raise Refused(f"{name!r} has numbers of type {model.vector.dtype}, but {arch!r} has {dtype}")
        if not 0 <= model.weight <= HEAVIEST:
            raise Refused(f"{name!r} comes with the weight {model.weight}")


_LAYOUTS: dict[int, tuple[ModelSpec, Layout, torch.dtype]] = {}


def _layout_of(spec: ModelSpec, arch: str) -> tuple[Layout, torch.dtype]:
    """Layout and number type of a model, computed once per process."""
    if id(spec) not in _LAYOUTS:
        module = spec.outline()
        _LAYOUTS[id(spec)] = spec, Layout.of(module, arch, spec.buffers), dtype_of(module)
    return _LAYOUTS[id(spec)][1:]


def _tensor(name: str, part: RawArray) -> torch.Tensor:
    if part.dtype not in DTYPES:
        raise Refused(f"an array of {name!r} is of type {part.dtype!r}; known are {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, part.dtype)
    shape = tuple(part.shape)
    if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) * kind.itemsize != len(part.data):
        raise Refused(f"an array of {name!r} says shape {list(shape)} of {part.dtype} but has {len(part.data)} bytes")
    if not part.data:
        return torch.zeros(shape, dtype=kind)
    return torch.frombuffer(bytearray(part.data), dtype=torch.uint8).view(kind).view(shape)
