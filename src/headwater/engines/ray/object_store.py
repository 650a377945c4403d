"""Values in Ray's object store: a skeleton and arrays, which processes of a node use in place without copying."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.engines.jobs import Ref, pick
from headwater.engines.ray.cluster import import_ray

Packed = tuple[Any, list[tuple[str, tuple[int, ...], Any]]]  # skeleton; type, shape and bytes of each tensor
Outline = tuple[Any, list[tuple[str, tuple[int, ...]]]]  # the same without the bytes
Batch = list[Packed | None]  # all values of one call, as one object: an object costs Ray about as much as a call


@dataclass(frozen=True)
class RayValue:
    """A value in the object store of a node. Ray deletes a batch with the last reference to it.

    Args:
        batch: reference to the `Batch` that holds it.
        index: its position there.
        node: the node that computed it.
        outline: for sizes of its parts; None if it has none.
    """

    batch: Any
    index: int
    node: str
    outline: Outline | None

    def value(self) -> Any:
        return unpacked(import_ray().get(self.batch)[self.index], copy=True)  # stays valid after the store is closed

    def info(self, part: tuple[Any, ...]) -> ValueInfo:
        assert self.outline is not None
        return info_of(self.outline, part)

    def remove(self) -> None: ...


def packed(value: Any) -> Packed:
    """Prepare a value for the store. Ray copies the arrays there once, aligned to 64 bytes, and pickles the rest."""
    skeleton, tensors = serialization.flatten(value)
    return skeleton, [(_dtype(t), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy()) for t in tensors]


def unpacked(value: Packed, copy: bool = False) -> Any:
    """Reverse `packed`.

    Args:
        value: the packed value.
        copy: copy the arrays. Otherwise they are in the store, and valid while this process is connected to it.
    """
    skeleton, tensors = value
    return serialization.rebuild(skeleton, [_tensor(*tensor, copy) for tensor in tensors])


def outline(value: Packed) -> Outline | None:
    """Return what the sizes of all parts of a value follow from; None if it has no parts."""
    skeleton, tensors = value
    if not isinstance(skeleton, dict) or skeleton["$"] not in ("dict", "tuple", "list"):
        return None
    return skeleton, [(dtype, shape) for dtype, shape, _ in tensors]


def info_of(outline: Outline, part: tuple[Any, ...]) -> ValueInfo:
    """Return size and kind of a part of a value, without its numbers."""
    skeleton, tensors = outline
    empty = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for dtype, shape in tensors]
    return serialization.info(pick(serialization.rebuild(skeleton, empty), Ref("", "", part)))


class _Writable:
    """Memory of the store, which is read-only, declared writable: torch warns otherwise. Values are never changed."""

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps it alive
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(dtype: str, shape: tuple[int, ...], data: Any, copy: bool) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not prod(shape):
        return torch.zeros(shape, dtype=kind)
    flat = torch.from_numpy(np.asarray(_Writable(data)))
    # A small array comes with the message and is not aligned, and kernels may be selected by alignment.
    if copy or flat.data_ptr() % serialization.ALIGN:
        flat = flat.clone()
    return flat.view(kind).view(shape)
