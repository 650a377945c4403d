"""A second device without hardware: it computes on the CPU, and notices every tensor that was forgotten there.

`torch.device("pretend")` is made of torch's backend for devices of one's own. A tensor on it is a wrapper around a CPU
tensor, on which every operator is computed, so results have the CPU's bits. An operator that gets both one of these and
a CPU tensor with dimensions raises, as on a GPU. To register it changes the process for good: import this in a process
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
_setup_privateuseone_for_python_backend(NAME)


class Forgotten(RuntimeError):  # noqa: N818
    """A tensor on the CPU met one on the device."""


class Pretended(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        made: Pretended = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, Pretended), "a tensor of the CPU became part of a module on the device"
        self.held = other.held

    def tolist(self) -> Any:
        crossings["back"] += 1
        return self.held.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


crossings: dict[str, int] = {"there": 0, "back": 0}  # tensors that were copied; numbers that were read count as back


def compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name = func._overloadpacket.__name__
    if name in ("_to_copy", "copy_", "_copy_from"):
        return copied(func, name, args, kwargs)
    if name == "_local_scalar_dense":
        crossings["back"] += 1
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    seen: list[Tensor] = []

    def held(x: Any) -> Any:
        if isinstance(x, Pretended):
            return x.held
        if isinstance(x, Tensor):
            seen.append(x)
        return x

    plain, named = tree_map(held, tuple(args)), tree_map(held, kwargs)
    if any(each.dim() for each in seen):
        raise Forgotten(f"{func}: a tensor on the CPU met one on the device {NAME!r}")
    return wrapped(func, args, kwargs, func(*plain, **named))


def wrapped(func: Any, args: Sequence[Any], kwargs: dict[str, Any], found: Any) -> Any:
    """Results on the device; an operator in place returns its own argument."""
    mine = {id(x.held): x for x in torch.utils._pytree.tree_leaves((tuple(args), kwargs)) if isinstance(x, Pretended)}
    return tree_map(lambda x: x if not isinstance(x, Tensor) else mine[id(x)] if id(x) in mine else Pretended(x), found)


def copied(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Copies may cross from one memory to the other."""
    first = args[0]
    if name == "_to_copy":
        wanted = kwargs.get("device")
        to_cpu = wanted is not None and torch.device(wanted).type == "cpu"
        plain = {**kwargs, "device": torch.device("cpu")}
        made = func(first.held if isinstance(first, Pretended) else first, **plain)
        count(first, not to_cpu)
        return made if to_cpu else Pretended(made)
    target, source = (args[1], args[0]) if name == "_copy_from" else (args[0], args[1])
    count(source, isinstance(target, Pretended))
    bare = [x.held if isinstance(x, Pretended) else x for x in (target, source)]
    bare[0].copy_(bare[1])
    return target


def count(source: Any, there: bool) -> None:
    if source.dim() and isinstance(source, Pretended) is not there:
        crossings["there" if there else "back"] += 1


_library = torch.library.Library("aten", "IMPL")


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Tensor:  # fmt: skip  # noqa: E501
    return Pretended(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:  # fmt: skip  # noqa: E501
    return Pretended(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    found: Tensor = copied(None, "_copy_from", (source, target), {})
    return found


_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
