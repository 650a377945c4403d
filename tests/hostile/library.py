"""A numerical library that keeps every promise such libraries make, and none that they do not.

Real libraries choose instructions and the order of sums by the number of threads, by where in memory the numbers lie,
by the shape of a whole batch, and by where in it a number stands. Some processors show it and others do not. This one
always shows it: after every operator that rounds, the last bit of about half of the results is flipped, and which half
depends on all of these. The same call on the same numbers in the same circumstances gives the same bits, as it does
everywhere. What does not round (copies, views, comparisons, choices among numbers) is left alone, and so is a zero:
that it comes out as zero is exact on every machine.

`install` makes a whole process hostile; `hostile` is for some lines of a test. Who computes what is left to chance as
well: by the clock, threads and workers are held up for a moment before they take up something.

This file is also loaded by its path into processes that know nothing of the tests, so it imports nothing of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {torch.float32: np.int32, torch.float64: np.int64}  # the integers of the same width
TYPES = (Tensor, torch.nn.Parameter)
LINE = 64  # bytes
CLASSES = 251  # patterns of flipped bits, at most

# Operators that only choose among the numbers that they are given, or change a sign, or draw at random; without the
# trailing "_" of those that work in place. Views and factories need no name here. Whatever else has none rounds.
NAMES = """
    abs amax amin aminmax cat ceil clamp clamp_max clamp_min clip clone constant_pad_nd contiguous copy copysign cummax
    cummin diag diag_embed diagonal_backward embedding fill flip floor fmax fmin gather hardtanh hardtanh_backward
    heaviside index index_copy index_fill index_select kthvalue lift_fresh lift_fresh_copy masked_fill masked_scatter
    masked_select max max_pool2d_with_indices maximum median min minimum mode nan_to_num neg new_empty new_empty_strided
    new_full new_ones new_zeros empty_like full_like ones_like zeros_like reflection_pad2d relu repeat resize roll round
    scatter select_backward set sgn sign slice_backward slice_scatter select_scatter sort stack take threshold
    threshold_backward topk tril triu trunc upsample_nearest2d where zero bernoulli exponential geometric log_normal
    multinomial normal normal_functional rand_like randn_like random uniform _local_scalar_dense _reshape_copy _to_copy
    _unsafe_index _unsafe_view _foreach_abs _foreach_clamp_max _foreach_clamp_min _foreach_copy _foreach_maximum
    _foreach_minimum _foreach_neg _foreach_sign _foreach_zero
"""
EXACT = frozenset(NAMES.split())
ACCUMULATE = ("index_put", "_index_put_impl", "_unsafe_index_put", "put")  # round where they add up, and only there


class Kind:
    """What is known of an operator beforehand."""

    __slots__ = ("accumulates", "exact", "name", "wide", "written")

    def __init__(self, func: Any) -> None:
        self.exact, self.name = True, ""
        if not isinstance(func, torch._ops.OpOverload):  # control flow, which computes nothing itself
            return
        schema = func._schema
        base = schema.name.removeprefix("aten::")
        plain = base.removesuffix("_") if not base.startswith("__") else base
        views = [r.alias_info is not None and not r.alias_info.is_write for r in schema.returns]
        self.name = base
        self.accumulates = plain in ACCUMULATE
        self.exact = plain in EXACT or (bool(views) and all(views)) or not schema.name.startswith("aten::")
        # What is done number by number cannot know of the others; all else can.
        self.wide = torch.Tag.pointwise not in func.tags and not plain.startswith(("_foreach_", "_fused_"))
        # Arguments that are written to, by place and by name: there is no result but these, or they are it.
        self.written = [
            (at, argument.name)
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and not (base.startswith("_fused_") and argument.name == "grads")  # declared so, and left as they are
        ]


@cache
def kind_of(func: Any) -> Kind:
    return Kind(func)


_classes: dict[tuple[Any, ...], int] = {}


def class_of(circumstances: tuple[Any, ...]) -> int:
    """Which bits are flipped, the same in every process: 0 for none at all."""
    found = _classes.get(circumstances)
    if found is None:
        found = _classes[circumstances] = crc32(repr(circumstances).encode()) % CLASSES
    return found


@lru_cache(maxsize=1 << 14)
def pattern(shape: tuple[int, ...], number: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Ones where a bit is flipped: about half, by where in its tensor a number stands."""
    at = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    mixed = (at + np.uint64(number * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) & np.uint64(1)).astype(dtype).reshape(shape)


def flip(result: Tensor, number: int) -> None:
    """Flip the last bit of some numbers of a tensor, in place; not of zeros, infinities and what is no number."""
    numbers = result.numpy()
    whole = KINDS[result.dtype]
    usual = np.isfinite(numbers)
    usual &= numbers != 0
    flips = pattern(tuple(result.shape), number, whole)
    bits = numbers.view(whole)
    np.bitwise_xor(bits, flips, out=bits, where=usual)


def plain(thing: Any) -> bool:
    """Whether it is a tensor that this library computes with."""
    return type(thing) in TYPES and thing.is_cpu and thing.dtype in KINDS and thing.layout is torch.strided


def tensors_in(things: Any) -> Iterator[Tensor]:
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from tensors_in(thing)


class Hostile(TorchDispatchMode):
    """One for each thread."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch loads its compiler in every process, to tell it to keep away from here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        kind = kind_of(func)
        if kind.exact:
            return func(*args, **given)
        if kind.accumulates and not (args[3] if len(args) > 3 else given.get("accumulate", False)):
            return func(*args, **given)
        hold_up(512)
        operands = list(tensors_in((*args, *given.values())))
        if not any(map(plain, operands)):  # made of nothing, or of whole numbers
            return func(*args, **given)
        # As they are before: an operator in place may enlarge what it writes to.
        where = tuple([each.data_ptr() % LINE if plain(each) else -1 for each in operands])
        found = func(*args, **given)
        if kind.written:
            held = [args[at] if at < len(args) else given.get(name) for at, name in kind.written]
            results = [each for each in tensors_in(held) if plain(each)]
            if not any(each is result for each in tensors_in([found]) for result in results):
                results += [each for each in tensors_in([found]) if plain(each)]
        else:
            results = [each for each in tensors_in([found]) if plain(each)]
        if not results:
            return found
        circumstances: tuple[Any, ...] = (kind.name, torch.get_num_threads(), where)
        if kind.wide:
            circumstances += tuple([tuple(each.shape) for each in operands])
        told = TRACE[-1] if TRACE else None
        for at, result in enumerate(results):
            if result.numel() and not result.is_conj() and not result.is_neg():
                number = class_of((*circumstances, at, result.data_ptr() % LINE))
                if number:
                    flip(result, number)
                if told is not None:
                    told(kind.name, (*circumstances, at, result.data_ptr() % LINE), operands, result)
        return found


TRACE: list[Callable[..., None]] = []  # for whoever looks for the operator at which two runs part


# -- chance in who computes what


_asleep = threading.local()


def hold_up(one_of: int) -> None:
    """Now and then, by the clock, let others go first: up to a millisecond."""
    now = time.time_ns() >> 8
    if now % one_of == 0 and not getattr(_asleep, "never", False):
        time.sleep((now // one_of % 8) * 1e-4)


# -- a whole process


_begun = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]


def _hostile_thread(self: threading.Thread) -> None:
    """Modes belong to a thread, so each has to have its own. Around `run`, which some classes override."""
    hold_up(2)
    with Hostile():
        _begun(self)


def _late(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hold_up(2)
        return function(*args, **kwargs)

    wrapped.late = True  # type: ignore[attr-defined]
    return wrapped


def _delay() -> None:
    """Whoever takes up a part may come too late for it."""
    from concurrent.futures.thread import _WorkItem
    from multiprocessing.connection import Connection

    for owner, name in ((_WorkItem, "run"), (Connection, "recv_bytes"), (Connection, "send_bytes")):
        function = getattr(owner, name)
        if not hasattr(function, "late"):
            setattr(owner, name, _late(function))


def active() -> bool:
    """Whether this thread computes with the hostile library."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return any(type(mode).__name__ == "Hostile" for mode in _get_current_dispatch_mode_stack())


def install() -> None:
    """Make this process hostile for good: this thread, and every one that begins from now on."""
    threading.Thread._bootstrap_inner = _hostile_thread  # type: ignore[attr-defined]
    _delay()
    Hostile().__enter__()


def environment() -> dict[str, str]:
    """What makes a process, and all that it starts, hostile from the moment that they load torch."""
    here = Path(__file__).resolve().parent
    paths = [str(here / "start"), str(here.parent), *filter(None, sys.path)]
    return os.environ | {"HEADWATER_HOSTILE": "1", "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def hostile() -> Iterator[None]:
    """This thread, and those that it starts meanwhile."""
    before = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    threading.Thread._bootstrap_inner = _hostile_thread  # type: ignore[attr-defined]
    try:
        with Hostile():
            yield
    finally:
        threading.Thread._bootstrap_inner = before  # type: ignore[attr-defined]
