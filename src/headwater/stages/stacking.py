"""Whether clients are trained together, and how many at a time: a function of the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from headwater.models.base import ModelSpec
from headwater.params import Layout
from headwater.specs import LocalSpec
from headwater.stages.kernels import Chain, Kernel, kernel_of

WIDEST = 32  # wider ones save few calls, and leave little for other threads to do
NUMBERS = 1 << 22  # in one stack: beyond that it no longer fits the processor's cache


@dataclass(frozen=True)
class Stacking:
    way: Literal["hand", "vmap", "loop"]  # gradients written out, torch's own batching, or one client after the other
    width: int  # clients in one stack, at most
    why: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def stacking(method: Any, models: Mapping[str, ModelSpec], asked: str, threads: int = 1) -> Stacking:
    """How the clients of a method are trained.

    `engine.stack` = "off" trains each alone. "auto" stacks models that are a mere row of layers, if this machine gives
    a client the same bits alone as in a stack. "on" stacks them in any case, and lets `vmap` stack others.
    """
    if asked == "off":
        return alone("engine.stack is off")
    specs = [value for value in vars(method).values() if isinstance(value, LocalSpec)]
    if not specs:
        return alone("the method trains no clients")
    if any(spec.low_bit != "none" for spec in specs):
        return alone("weights of one bit are trained alone")
    if "features" in getattr(method, "NEEDS", ()) or getattr(method, "local", None) == "moon":  # a slot of the frame
        return alone("the method's loss looks at features")
    found = [_of_model(spec, asked) for spec in models.values()]
    chosen = min(found, key=lambda each: each.width)  # they go together, so each must be fit for it
    if asked == "auto" and chosen.width > 1:
        from headwater.stages.probe import same_alone

        for model in models.values():
            if not all(same_alone(model, spec, chosen.width, threads) for spec in specs):
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
    """Whether a module of one's own lets itself be batched: it may do anything."""
    weights = torch.zeros(2, layout.size)
    try:
        kernel.gradient(weights, torch.zeros(2, 2, *shape), torch.zeros(2, 2).long(), torch.ones(2, 2), weights)
    except Exception:  # whatever the module does that vmap does not
        return False
    return True


def alone(why: str) -> Stacking:
    return Stacking("loop", 1, why)
