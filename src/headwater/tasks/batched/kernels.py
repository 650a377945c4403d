"""Gradients of many models of one architecture at once; a model is a row of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

from torch import Tensor, nn

from headwater.core.params import Layout
from headwater.models.base import Net
from headwater.tasks.batched import descent
from headwater.tasks.batched.buffers import Buffers
from headwater.tasks.batched.layers import ACTIVATIONS, hooked, obstacle
from headwater.tasks.batched.mapped import Mapped


class Kernel(Protocol):
    """Computes the gradients of many models of one architecture."""

    @property
    def paired(self) -> bool:
        """Whether a single member is computed twice, for the bits that it has among others, or else trained alone."""

    def takes(self, shape: Sequence[int]) -> bool:
        """True if it computes what the module computes for inputs of this shape."""

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        """Write each member's gradient into its row of `out`, and return each member's loss.

        Args:
            weights: one row per member.
            x: inputs (member, place, …).
            y: labels (member, place).
            share: weight of each place in its member's loss.
            out: one row per member.
        """


def kernel_of(module: nn.Module, layout: Layout) -> Chain | Mapped | None:
    """The kernel for a module; None for one that is trained alone (`obstacle` says why)."""
    simple = not (layout.floats or layout.counters or layout.frozen or hasattr(module, "loss"))
    if simple and not hooked(module) and (found := _chain(module)) is not None:
        return Chain.of(module, *found, layout)
    return None if obstacle(module, layout) else Mapped(module, layout)


def _chain(module: nn.Module) -> tuple[list[nn.Module], bool] | None:
    """The linear layers and activations of a sequential module, and whether it flattens its input first; None for any
    other module."""
    found: list[nn.Module] = []
    flattens = False

    def walk(part: nn.Module) -> bool:
        nonlocal flattens
        if type(part) is Net:
            return walk(part.features) and walk(part.classifier)
        if type(part) is nn.Sequential:
            return all(map(walk, part))
        if type(part) is nn.Flatten:
            flattens = flattens or not found
            return (part.start_dim, part.end_dim) == (1, -1)
        if type(part) is nn.Identity:
            return True
        found.append(part)
        return type(part) in (nn.Linear, *ACTIVATIONS)

    linear = [part for part in found if type(part) is nn.Linear] if walk(module) else []
    held = [id(parameter) for part in linear for parameter in part.parameters()]
    return (found, flattens) if held and len(set(held)) == len(held) else None  # no layer and no weight twice


Apart = tuple[list[Tensor], list[Tensor | None]]  # by linear layer: weights (member, out, in), biases (member, out)


@dataclass(frozen=True)
class Layer:
    """A linear layer, by the places of its numbers in the vector, or an activation."""

    kind: type[nn.Module]
    weight: slice | None = None
    bias: slice | None = None
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Chain:
    """Sequential linear layers and activations, with the gradient written out."""

    layers: tuple[Layer, ...]
    flattens: bool  # otherwise it takes flat inputs only
    paired: bool = True

    @staticmethod
    def of(module: nn.Module, layers: list[nn.Module], flattens: bool, layout: Layout) -> Chain:
        places, at = {}, 0
        for name, shape in layout.trainable:
            places[name] = slice(at, at + prod(shape))
            at += prod(shape)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        made = []
        for layer in layers:
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else places[names[id(layer.bias)]]
                shape = (layer.out_features, layer.in_features)
                made.append(Layer(nn.Linear, places[names[id(layer.weight)]], bias, shape))
            else:
                made.append(Layer(type(layer)))
        return Chain(tuple(made), flattens)

    @cached_property
    def kinds(self) -> list[str]:
        return [layer.kind.__name__.lower() for layer in self.layers]

    @cached_property
    def linear(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.kind is nn.Linear]

    def takes(self, shape: Sequence[int]) -> bool:
        return self.flattens or len(shape) == 1

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        return descent.gradient(self.kinds, *self._views(weights), x.flatten(2), y, share, *self._views(out))

    def descend(self, layers: Apart, table: Tensor, *batches: Any) -> Tensor:
        """All steps of plain gradient descent, see `descent`; layers are changed in place."""
        return descent.descend(self.kinds, *layers, table.flatten(1), *batches)

    def _views(self, weights: Tensor) -> Apart:
        biases = [None if layer.bias is None else weights[:, layer.bias] for layer in self.linear]
        return [_matrix(weights, layer) for layer in self.linear], biases

    def apart(self, weights: Tensor, buffers: Buffers) -> Apart:
        """The layers of all members as separate tensors, so that products can be written straight into them."""

        def own(part: Tensor, name: str) -> Tensor:
            return buffers.scratch(name, tuple(part.shape), part.dtype).copy_(part)

        matrices, biases = self._views(weights)
        return (
            [own(part, f"weight {at}") for at, part in enumerate(matrices)],
            [None if part is None else own(part, f"bias {at}") for at, part in enumerate(biases)],
        )

    def join(self, layers: Apart, weights: Tensor) -> None:
        """Copy separate layers back into the members' rows."""
        matrices, biases = self._views(weights)
        for part, layer in zip((*matrices, *biases), (*layers[0], *layers[1]), strict=True):
            if part is not None and layer is not None:
                part.copy_(layer)


def _matrix(rows: Tensor, layer: Layer) -> Tensor:
    """(member, out, in): a layer's weights as a view of all members' rows."""
    assert layer.weight is not None
    return rows[:, layer.weight].view(len(rows), *layer.shape)
