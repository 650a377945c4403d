"""Decides whether clients are trained as one and how many at a time, from the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch

from headwater.core.params import Layout, Params
from headwater.data.base import Examples
from headwater.data.split import Split
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec
from headwater.tasks.batched.kernels import Chain, Kernel, kernel_of
from headwater.tasks.batched.trainer import train_together
from headwater.tasks.devices import CPU
from headwater.tasks.task import RunContext, TaskContext

WIDEST = 32  # clients in a stack: more save few calls and leave little work for other threads
NUMBERS = 1 << 22  # parameters in a stack: more do not fit the processor's cache


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
) -> Stacking:
    """Decide how the clients of a method are trained.

    Args:
        method: the method.
        models: all architectures of the run.
        asked: `engine.stack`. "off" trains each client alone. "auto" stacks sequences of linear layers and activations,
            if this machine gives a client the same bits alone as in a stack. "on" always stacks these, and other models
            by `vmap`.
        threads: of every task.
        device: where clients are trained.
        precision: of forward passes.
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
    if any(spec.augment != "none" for spec in specs):
        return alone("augmented images are trained alone")
    if any(spec.lr_schedule == "shared-counter" for spec in specs):
        return alone("with a shared counter each client has a learning rate of its own")
    if method.uses_features():
        return alone("the method's loss looks at features")
    found = [_of_model(spec, asked) for spec in models.values()]
    chosen = min(found, key=lambda each: each.width)  # one decision for all architectures
    if asked == "auto" and chosen.width > 1:
        for model in models.values():
            if not all(same_alone(model, spec, chosen.width, threads, device) for spec in specs):
                return alone(
                    f"this machine's libraries give a client of {model.name} other bits in a stack than alone; "
                    "engine.stack = 'on' stacks all the same"
                )
    return chosen


def _of_model(spec: ModelSpec, asked: str) -> Stacking:
    module = spec.outline()
    layout = Layout.of(module, spec.name)
    kernel = kernel_of(module, layout)
    width = min(WIDEST, NUMBERS // max(1, layout.size))
    if kernel is None or not kernel.takes(spec.shape):
        return alone(f"{spec.name} is not linear layers and activations in a row on flat inputs")
    if width < 2:
        return alone(f"{spec.name} is so large that a client alone keeps a core busy")
    if isinstance(kernel, Chain):
        return Stacking("hand", width, f"{spec.name} is linear layers and activations in a row")
    if asked != "on":
        return alone(f"{spec.name} could be stacked by torch's vmap; engine.stack = 'on' does it")
    if not _works(kernel, layout, spec.shape):
        return alone(f"torch's vmap cannot stack {spec.name}")
    return Stacking("vmap", width, f"{spec.name} is small and has neither statistics nor chance in it")


def _works(kernel: Kernel, layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether vmap can batch a module of the user's own, by a trial."""
    weights = torch.zeros(2, layout.size)
    try:
        kernel.gradient(weights, torch.zeros(2, 2, *shape), torch.zeros(2, 2).long(), torch.ones(2, 2), weights)
    except Exception:  # the module may do anything
        return False
    return True


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
