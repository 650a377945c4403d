"""Members of a stack: the clients that are trained as one, and which clients can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from headwater.core.params import Layout, Params
from headwater.specs import LocalSpec
from headwater.tasks.batched.kernels import Chain, Kernel, kernel_of
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.task import TaskContext

_KERNELS: WeakKeyDictionary[FlatModule, Kernel | None] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a client that can be a member of a stack. Clients that got the same inputs share one object."""

    given: Mapping[str, Any]
    net: FlatModule
    spec: LocalSpec
    start: Params
    plain: bool  # whether nothing is added to gradients
    by_samples: bool  # whether a trained model weighs as much as it has seen samples

    @staticmethod
    def of(ctx: TaskContext, given: Mapping[str, Any], known: Iterable[Inputs | None]) -> Inputs | None:
        """Inputs of a client, or None if it cannot be stacked. `known` are those of other clients."""
        spec, start = given["spec"], given["start"]
        if given.get("data") is not None or spec.low_bit != "none":
            return None
        terms, corrections = given.get("terms", ()), given.get("corrections", ())
        if not all("quadratic" in vars(type(term)) and not hasattr(term, "begin") for term in terms):
            return None
        others = [each for each in known if each is not None]
        same = next((each for each in others if each.start.layout is start.layout), None)
        net = _fit(ctx, start.layout) if same is None else same.net
        if net is None or (spec.augment != "none" and paired(net)):  # augmented rows are for kernels of images
            return None
        # Comparing two specs is slow, and most often all clients have the same object.
        alike = next((each.spec for each in others if each.spec is spec or each.spec == spec), spec)
        plain = not terms and all(correction is None for correction in corrections)
        return Inputs(given, net, alike, start, plain, given.get("by", "samples") == "samples")

    @property
    def at_once(self) -> bool:
        """Whether steps are plain descent, so that no gradient need be written down."""
        spec = self.spec
        simple = spec.optimizer == "sgd" and not (spec.momentum or spec.weight_decay or spec.clip)
        return simple and self.plain and isinstance(kernel(self.net), Chain)


@dataclass(slots=True)
class Member:
    """One client of a stack."""

    ctx: TaskContext
    inputs: Inputs
    rows: np.ndarray[Any, np.dtype[np.int64]]
    at: int  # its place among all clients that are trained together
    steps: int


def _fit(ctx: TaskContext, layout: Layout) -> FlatModule | None:
    """The net for models of a layout if they can be stacked."""
    net = ctx.blank(layout.arch)
    gradients = kernel(net)
    if not isinstance(gradients, Chain) and ctx.stack != "vmap":
        return None
    fits = gradients is not None and layout.trainable == net.layout.trainable and gradients.takes(ctx.table.x.shape[1:])
    return net if fits else None


def kernel(net: FlatModule) -> Kernel | None:
    """The kernel for a net's module, made once."""
    if net not in _KERNELS:
        _KERNELS[net] = kernel_of(net.module, net.layout)
    return _KERNELS[net]


def paired(net: FlatModule) -> bool:
    """Whether a net's kernel computes a single member twice, for the bits that it has among others."""
    gradients = kernel(net)
    return gradients is not None and gradients.paired
