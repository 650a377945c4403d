"""Decides whether clients are trained as one and how many at a time, from the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
import torch

from headwater.core.params import Layout, Params
from headwater.data.base import Examples
from headwater.data.split import Split
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec
from headwater.tasks.batched.kernels import Chain, kernel_of
from headwater.tasks.batched.layers import obstacle
from headwater.tasks.batched.mapped import Mapped
from headwater.tasks.batched.trainer import train_together
from headwater.tasks.devices import CPU
from headwater.tasks.task import RunContext, TaskContext

WIDEST = 32  # clients in a stack: more save few calls and leave little work for other threads
NUMBERS = 1 << 22  # parameters in a stack: more do not fit the processor's cache
MEMORY = 1024.0  # megabytes of a stack of networks for images; the default of `engine.stack_memory`
COPIES = 6  # of a model while it is trained: weights, result, two of the gradient, a correction, a centre
KEPT = 2  # numbers that a step keeps for its backward pass, for each number that a layer returns


@dataclass(frozen=True)
class Stacking:
    """How clients are trained.

    Args:
        way: "hand": as one, with gradients written out; "vmap": as one, by torch's batching; "loop": one by one.
        width: clients trained as one, at most.
        why: the reason, for the user.
    """

    way: Literal["hand", "vmap", "loop"]
    width: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trained(Protocol):
    """What the decision needs to know of a method."""

    def uses_features(self) -> bool: ...


def stacking(
    method: Trained,
    models: Mapping[str, ModelSpec],
    asked: str,
    threads: int = 1,
    device: torch.device = CPU,
    precision: str = "float32",
    memory: float = MEMORY,
    here: torch.device | None = None,
) -> Stacking:
    """Decide how the clients of a method are trained.

    Args:
        method: the method.
        models: all architectures of the run.
        asked: `engine.stack`. "off" trains each client alone. "auto" stacks sequences of linear layers and activations,
            if this machine gives a client the same bits alone as in a stack, and on a device other than the CPU also
            models that need `vmap`. "on" always stacks both.
        threads: of every task.
        device: where clients are trained.
        precision: of forward passes.
        memory: megabytes of a stack of networks for images.
        here: where bits are compared; None for `device`.
    """
    if asked == "off":
        return alone("engine.stack is off")
    if precision != "float32":
        return alone(f"engine.precision is {precision}")
    specs = [value for value in vars(method).values() if isinstance(value, LocalSpec)]
    if not specs:
        return alone("the method trains no clients")
    if any(spec.low_bit != "none" for spec in specs):
        return alone("weights of one bit are trained alone")
    if any(spec.lr_schedule == "shared-counter" for spec in specs):
        return alone("with a shared counter each client has a learning rate of its own")
    if method.uses_features():
        return alone("the method's loss looks at features")
    found = [_of_model(spec, asked == "on" or device != CPU, specs, memory) for spec in models.values()]
    chosen = min(found, key=lambda each: (each.width, each.way != "vmap"))  # one decision for all architectures
    if chosen.way != "loop" and any(each.way == "vmap" for each in found):
        chosen = replace(chosen, way="vmap")  # which stacks the others by hand all the same
    if asked == "auto" and chosen.way == "hand":
        for model in models.values():
            if not all(same_alone(model, spec, chosen.width, threads, here or device) for spec in specs):
                return alone(
                    f"this machine's libraries give a client of {model.name} other bits in a stack than alone; "
                    "engine.stack = 'on' stacks all the same"
                )
    return chosen


def _of_model(spec: ModelSpec, by_vmap: bool, specs: Sequence[LocalSpec], memory: float) -> Stacking:
    module = spec.outline()
    layout = Layout.of(module, spec.name)
    kernel = kernel_of(module, layout)
    if kernel is None:
        return alone(f"{spec.name} {obstacle(module, layout)}")
    if not kernel.takes(spec.shape):
        return alone(f"{spec.name} is linear layers in a row, but its inputs are not flat")
    augments = any(local.augment != "none" for local in specs)
    if kernel.paired and augments:
        return alone("augmented images are stacked for convolutions alone")
    if isinstance(kernel, Mapped) and not by_vmap:
        return alone(f"{spec.name} could be stacked by torch's vmap; engine.stack = 'on' does it")
    if kernel.paired:
        width = min(WIDEST, NUMBERS // max(1, layout.size))
        if width < 2:
            return alone(f"{spec.name} is so large that a client alone keeps a core busy")
    if isinstance(kernel, Chain):
        return Stacking("hand", width, f"{spec.name} is linear layers and activations in a row")
    activations = _tried(kernel, spec)
    if activations is None:
        return alone(f"torch's vmap cannot stack {spec.name}")
    if kernel.paired:
        return Stacking("vmap", width, f"{spec.name} is small and has neither statistics nor chance in it")
    each = max(_member_bytes(spec, layout, local, activations) for local in specs)
    width = min(WIDEST, int(memory * 2**20) // each)
    if width < 2:
        return alone(
            f"two clients of {spec.name} take about {2 * each / 2**20:.0f} MB, more than the {memory:g} of "
            "engine.stack_memory"
        )
    return Stacking(
        "vmap", width, f"{spec.name} has layers for images, and such a stack takes {_megabytes(width * each)}"
    )


def _megabytes(size: int) -> str:
    return f"about {max(1, round(size / 2**20))} MB"


def _member_bytes(spec: ModelSpec, layout: Layout, local: LocalSpec, activations: int) -> int:
    """Bytes of one client in a stack: its model, optimiser and batch."""
    numbers = sum(prod(shape) for _, shape in layout.trainable + layout.floats)
    state = {"sgd": bool(local.momentum)}.get(local.optimizer, 2)
    return 4 * (numbers * (COPIES + state) + local.batch * (prod(spec.shape) + KEPT * activations))


def _tried(kernel: Mapped, spec: ModelSpec) -> int | None:
    """Numbers that the layers return for one row, by a trial; None if vmap cannot batch the module."""
    # The module of a listed model is an outline, on a device where nothing is computed.
    layout, place = kernel.layout, next(kernel.module.parameters()).device
    rows, numbers = spec.probe().to(place), sum(prod(shape) for _, shape in layout.trainable + layout.floats)
    counted = torch.zeros(sum(prod(shape) for _, shape in layout.counters), dtype=torch.int64, device=place)
    start = Params(torch.zeros(numbers, device=place), counted, layout)
    weights, labels = start.trainable.repeat(2, 1), torch.zeros(2, len(rows), dtype=torch.int64, device=place)
    try:
        rest = kernel.rest([start, start], [0, 0], rows)
        given = torch.stack([rows, rows]), labels, torch.full(labels.shape, 0.5, device=place)
        masks = [mask.to(place) for mask in rest.masks([2, 2], 2)]
        kernel.gradient(weights, *given, torch.zeros_like(weights), rest, masks)
        return kernel.activations(start, rows) // len(rows)
    except Exception:  # the module may do anything
        return None


def alone(why: str) -> Stacking:
    return Stacking("loop", 1, why)


STEPS = 2
_KNOWN: dict[tuple[object, ...], bool] = {}


def same_alone(spec: ModelSpec, local: LocalSpec, width: int, threads: int, device: torch.device = CPU) -> bool:
    """Whether a client that is trained in a stack of up to `width` ends with the bits that it has alone.

    Args:
        spec: the clients' model.
        local: how they are trained.
        width: clients in one stack, at most.
        threads: of every task.
        device: where they are trained.

    Returns:
        The result of a trial of a few steps, which is cached for each kind of model and training.
    """
    layout = Layout.of(spec.outline(), spec.name)
    key = (layout.trainable, spec.shape, local, width, threads, device)
    if key not in _KNOWN:
        usual = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            _KNOWN[key] = _try(spec, local, width, device)
        finally:
            torch.set_num_threads(usual)
    return _KNOWN[key]


def _try(spec: ModelSpec, local: LocalSpec, width: int, device: torch.device) -> bool:
    each = max(1, local.batch)
    count = width * each
    chance = np.random.default_rng(0)
    x = torch.from_numpy(chance.standard_normal((count, *spec.shape), dtype=np.float32))
    rows = Examples(x, torch.from_numpy(chance.integers(0, spec.classes, count)))
    empty = Examples(x[:0], rows.y[:0])
    split = Split(rows, empty, x[:0], empty, spec.classes, spec.shape, "probe")
    clients = {f"c{at}": np.arange(at * each, (at + 1) * each) for at in range(width)}
    context = RunContext(split, clients, {}, {spec.name: spec}, 0, stack="hand", device=device)
    start = context.initial(spec.name, 0)
    given = context.put({"start": start, "spec": replace(local, epochs=None, steps=STEPS)})

    def trained(names: list[str]) -> dict[str, Params | None]:
        contexts = [TaskContext(context, name, ("probe", name)) for name in names]
        return dict(zip(names, train_together(contexts, [given] * len(names)), strict=True))

    names = list(clients)
    found = [trained(names[:some]) for some in sorted({1, 2, 3, width // 2, width - 1, width} - {0}) if some <= width]
    found.append(trained(names[-1:]))
    known: dict[str, Params | None] = {}
    for results in found:
        for name, result in results.items():
            before = known.setdefault(name, result)
            if before is None or result is None or not torch.equal(before.vector, result.vector):
                return False
    return True
