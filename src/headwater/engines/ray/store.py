"""Values as objects of Ray's store: a skeleton, and arrays that are used where they lie."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.base import Ref, pick

Packed = tuple[Any, list[tuple[str, tuple[int, ...], Any]]]  # skeleton; type, shape and bytes of each tensor
Outline = tuple[Any, list[tuple[str, tuple[int, ...]]]]  # the same without the bytes


def packed(value: Any) -> Packed:
    """Ray copies the arrays into its store once, each on a boundary of 64 bytes, and only pickles the rest."""
    skeleton, tensors = serialization.flatten(value)
    return skeleton, [(_kind(t), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy()) for t in tensors]


def unpacked(held: Packed, copy: bool = False) -> Any:
    """The value; unless it is copied, it lies in the store and is there as long as this process is connected to it."""
    skeleton, tensors = held
    return serialization.rebuild(skeleton, [_tensor(*tensor, copy) for tensor in tensors])


def outline(held: Packed) -> Outline | None:
    """What tells the size of any part of a value; nothing where it has no parts."""
    skeleton, tensors = held
    if not isinstance(skeleton, dict) or skeleton["$"] not in ("dict", "tuple", "list"):
        return None
    return skeleton, [(kind, shape) for kind, shape, _ in tensors]


def info_of(told: Outline, part: tuple[Any, ...]) -> Info:
    """Size and kind of a part of a value that is elsewhere."""
    skeleton, tensors = told
    empty = [torch.empty(shape, dtype=getattr(torch, kind), device="meta") for kind, shape in tensors]
    return serialization.info(pick(serialization.rebuild(skeleton, empty), Ref("", "", part)))


class _Lent:
    """Memory that torch takes without a warning. Nobody writes there: a value never changes, on any engine."""

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps it alive
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(name: str, shape: tuple[int, ...], data: Any, copy: bool) -> torch.Tensor:
    kind = getattr(torch, name)
    if not prod(shape):
        return torch.zeros(shape, dtype=kind)
    flat = torch.from_numpy(np.asarray(_Lent(data)))
    if (
        copy or flat.data_ptr() % serialization.ALIGN
    ):  # a small one comes with the message; kernels may go by where it lies
        flat = flat.clone()
    return flat.view(kind).view(shape)
