"""Values as the cargo of a message, and all that is checked before a value that came in is believed.

A value is a skeleton, which goes with the head, and arrays. Bare numbers are arrays too, eight bytes each, so that the
payload of a message is just what the ledger counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from urllib.parse import quote

import torch

from headwater.core import serialization
from headwater.core.params import Layout, Params
from headwater.data.base import Examples
from headwater.deploy.message import Message, Part
from headwater.engines.base import LOST
from headwater.engines.nan_check import sound
from headwater.models.base import ModelSpec

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
CARGO = "cargo"
LONGEST = 200  # letters of a value's name as that of a file
HEAVIEST = 2.0**53  # samples behind a model: sums of more would not be finite for long


class Refused(Exception):  # noqa: N818 (told to the other side, and logged)
    """What came in is not believed, and changes nothing."""


def pack(head: dict[str, Any], values: Mapping[str, Any]) -> Message:
    """A message with these values under their names."""
    rows: list[list[Any]] = []
    parts: list[Part] = []
    for name, value in values.items():
        if value is LOST:
            rows.append([name, None, 0])
            continue
        skeleton, tensors = serialization.flatten(value)
        numbers: list[float] = []
        skeleton = _lifted(skeleton, numbers)
        parts += [_part(tensor) for tensor in tensors]
        for kind, dtype in ((int, torch.int64), (float, torch.float64)):
            parts.append(_part(torch.tensor([n for n in numbers if type(n) is kind], dtype=dtype)))
        rows.append([name, {"v": skeleton}, len(tensors)])
    return Message(head | {CARGO: rows}, tuple(parts))


def _part(tensor: torch.Tensor) -> Part:
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Part(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def _lifted(skeleton: Any, numbers: list[float]) -> Any:
    """The skeleton with bare numbers taken out, in order. Those of a record, and keys, belong to the head."""
    if isinstance(skeleton, bool):
        numbers.append(int(skeleton))
        return {"$": "truth"}
    if isinstance(skeleton, int | float):
        numbers.append(skeleton)
        return {"$": type(skeleton).__name__}
    if isinstance(skeleton, dict) and skeleton["$"] == "dict":
        return skeleton | {"v": [[key, _lifted(item, numbers)] for key, item in skeleton["v"]]}
    if isinstance(skeleton, dict) and skeleton["$"] in ("tuple", "list"):
        return skeleton | {"v": [_lifted(item, numbers) for item in skeleton["v"]]}
    return skeleton


def _lowered(skeleton: Any, ints: list[int], floats: list[float]) -> Any:
    """The inverse; the lists are used up."""
    if not isinstance(skeleton, dict):
        return skeleton
    if skeleton["$"] == "truth":
        return bool(ints.pop(0))
    if skeleton["$"] in ("int", "float"):
        return ints.pop(0) if skeleton["$"] == "int" else floats.pop(0)
    if skeleton["$"] == "dict":
        return skeleton | {"v": [[key, _lowered(item, ints, floats)] for key, item in skeleton["v"]]}
    if skeleton["$"] in ("tuple", "list"):
        return skeleton | {"v": [_lowered(item, ints, floats) for item in skeleton["v"]]}
    return skeleton


@dataclass(frozen=True)
class Customs:
    """What a party takes for a value: known kinds of arrays, models as the configuration has them, finite numbers."""

    models: Mapping[str, ModelSpec]
    most: int  # bytes of a message

    def unpack(self, message: Message) -> dict[str, Any]:
        """The cargo of a message, all of it or nothing."""
        if message.payload > self.most:
            raise Refused(
                f"a message of {message.payload:,} bytes is larger than deploy.max_mb allows ({self.most:,} bytes)"
            )
        found: dict[str, Any] = {}
        at = 0
        for row in message.head.get(CARGO, ()):
            try:
                name, held, count = row[0], row[1], int(row[2])
                if not isinstance(name, str) or len(quote(name, safe="")) > LONGEST or name in found:
                    raise Refused(f"{name!r:.80} is no name of a value, or comes twice")
                if held is None:
                    found[name] = LOST
                    continue
                taken = message.parts[at : at + count + 2]
                if count < 0 or len(taken) < count + 2:
                    raise Refused(f"the value {name!r} lacks arrays")
                at += count + 2
                found[name] = self._value(name, held["v"], taken)
            except Refused:
                raise
            except Exception as error:  # whatever is wrong with it, it is not ours to break over
                raise Refused(f"a value is malformed ({type(error).__name__}: {error})") from error
        if at < len(message.parts):
            raise Refused(f"{len(message.parts) - at} arrays of a message belong to no value")
        return found

    def _value(self, name: str, skeleton: Any, parts: Sequence[Part]) -> Any:
        tensors = [_tensor(name, part) for part in parts]
        ints, floats = tensors.pop(-2).tolist(), tensors.pop().tolist()
        value = serialization.rebuild(_lowered(skeleton, ints, floats), tensors)
        self._check(name, value)
        return value

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, Params):
            self._check_model(name, value)
        elif isinstance(value, Examples):
            if len(value.x) != len(value.y) or value.y.dtype != torch.int64:
                raise Refused(f"{name!r} is no set of examples: {tuple(value.x.shape)} with {tuple(value.y.shape)}")
        elif isinstance(value, dict | tuple | list):
            for item in value.values() if isinstance(value, dict) else value:
                self._check(name, item)
        if not sound(value):
            raise Refused(f"{name!r} holds numbers that are not finite")

    def _check_model(self, name: str, model: Params) -> None:
        arch = model.layout.arch
        spec = self.models.get(arch)
        if spec is None:
            raise Refused(f"{name!r} is a model {arch!r}, which is none of this federation's: {', '.join(self.models)}")
        agreed, dtype = _outline(spec, arch)
        told = model.layout
        if told != agreed:
            raise Refused(f"{name!r} is laid out unlike the model {arch!r} of the configuration")
        sizes = [sum(prod(shape) for _, shape in part) for part in (told.trainable + told.floats, told.counters)]
        if [tuple(model.vector.shape), tuple(model.counters.shape)] != [(size,) for size in sizes]:
            shape = tuple(model.vector.shape)
            raise Refused(f"{name!r} has numbers of shape {shape}, but its layout asks for {sizes[0]}")
        if model.vector.dtype != dtype or model.counters.dtype != torch.int64:
            raise Refused(f"{name!r} has numbers of type {model.vector.dtype}, but {arch!r} has {dtype}")
        if not 0 <= model.weight <= HEAVIEST:
            raise Refused(f"{name!r} comes with the weight {model.weight}")


_OUTLINES: dict[int, tuple[ModelSpec, Layout, torch.dtype]] = {}


def _outline(spec: ModelSpec, arch: str) -> tuple[Layout, torch.dtype]:
    """How a model's numbers are laid out, and their type; worked out once."""
    if id(spec) not in _OUTLINES:
        module = spec.outline()
        dtype = next((p.dtype for p in module.parameters()), torch.float32)
        _OUTLINES[id(spec)] = spec, Layout.of(module, arch, spec.buffers), dtype
    return _OUTLINES[id(spec)][1:]


def _tensor(name: str, part: Part) -> torch.Tensor:
    if part.dtype not in DTYPES:
        raise Refused(f"an array of {name!r} is of type {part.dtype!r}; known are {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, part.dtype)
    shape = tuple(part.shape)
    if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) * kind.itemsize != len(part.data):
        raise Refused(f"an array of {name!r} says shape {list(shape)} of {part.dtype} but has {len(part.data)} bytes")
    if not part.data:
        return torch.zeros(shape, dtype=kind)
    return torch.frombuffer(bytearray(part.data), dtype=torch.uint8).view(kind).view(shape)
