"""Gradients of many models of one architecture at once; a model is a row of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.models.base import Net
from headwater.params import Layout, cut
from headwater.stages.buffers import Buffers

SMALL = 100_000  # numbers of a model up to which `vmap` pays
ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid)
PLAIN = (nn.Flatten, nn.Identity)
GENERIC = (*ACTIVATIONS, *PLAIN, nn.Linear, nn.Bilinear, nn.LayerNorm, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU)


class Kernel(Protocol):
    def takes(self, shape: Sequence[int]) -> bool:
        """Whether it does what the module does for inputs of this shape."""

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        """Put each member's gradient into its row of `out`; gives each member's loss.

        `x` is (member, place, …), `y` and `share` (member, place): a place counts in the loss by its share.
        """


def kernel_of(module: nn.Module, layout: Layout) -> Kernel | None:
    """The kernel for a module; None for one that is trained alone."""
    if layout.floats or layout.counters or hasattr(module, "loss"):  # statistics, frozen parts, a loss of its own
        return None
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules()):
        return None
    if (found := _chain(module)) is not None:
        return Chain.of(module, *found, layout)
    if layout.size <= SMALL and all(type(leaf) in GENERIC for leaf in _leaves(module)):
        return Mapped(module, layout)
    return None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that hold parameters of their own or no modules."""
    for each in module.modules():
        if not list(each.children()) or list(each.parameters(recurse=False)):
            yield each


def _chain(module: nn.Module) -> tuple[list[nn.Module], bool] | None:
    """Linear layers and activations in a row, and whether all else is flattened before; None where it is anything
    else."""
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


Apart = list[tuple[Tensor, Tensor | None] | None]  # by layer: weights (member, out, in) and bias; None for others


@dataclass(frozen=True)
class Layer:
    """A linear layer, by where its numbers are in the vector, or an activation."""

    kind: type[nn.Module]
    weight: slice | None = None
    bias: slice | None = None
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Chain:
    """Linear layers and activations in a row, with the gradient written out."""

    layers: tuple[Layer, ...]
    flattens: bool  # else it is for inputs that are flat already

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

    def takes(self, shape: Sequence[int]) -> bool:
        return self.flattens or len(shape) == 1

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        layers = self._views(weights)
        passed, loss, last = self._forward(layers, x, y, share)
        for at, before, slope in self._backward(layers, passed, last):
            torch.bmm(slope.transpose(1, 2), before, out=_matrix(out, self.layers[at]))
            if (place := self.layers[at].bias) is not None:
                out[:, place] = slope.sum(1)
        return loss

    def _views(self, weights: Tensor) -> Apart:
        return [
            (_matrix(weights, layer), None if layer.bias is None else weights[:, layer.bias])
            if layer.kind is nn.Linear
            else None
            for layer in self.layers
        ]

    def apart(self, weights: Tensor, buffers: Buffers) -> Apart:
        """The layers of all members, each a tensor of its own: products can then go straight into them."""

        def own(part: Tensor, name: str) -> Tensor:
            return buffers.scratch(name, tuple(part.shape), part.dtype).copy_(part)

        found: Apart = []
        for at, layer in enumerate(self.layers):
            bias = None if layer.bias is None else own(weights[:, layer.bias], f"bias {at}")
            found.append((own(_matrix(weights, layer), f"weight {at}"), bias) if layer.kind is nn.Linear else None)
        return found

    def join(self, layers: Apart, weights: Tensor) -> None:
        """Layers that were apart back into the members' rows."""
        for layer, held in zip(self.layers, layers, strict=True):
            if held is not None:
                _matrix(weights, layer).copy_(held[0])
            if held is not None and layer.bias is not None and held[1] is not None:
                weights[:, layer.bias] = held[1]

    def descend(self, layers: Apart, x: Tensor, y: Tensor, share: Tensor, lr: float) -> Tensor:
        """A step of plain gradient descent, without the gradient ever being written down."""
        passed, loss, last = self._forward(layers, x, y, share)
        for at, before, slope in self._backward(layers, passed, last):
            weight, bias = _of(layers, at)
            weight.baddbmm_(slope.transpose(1, 2), before, alpha=-lr)
            if bias is not None:
                bias.sub_(slope.sum(1), alpha=lr)
        return loss

    def _forward(self, layers: Apart, x: Tensor, y: Tensor, share: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """What goes into each layer and comes out of the last, the losses, and their slope by the outputs."""
        passed = [x.flatten(2)]
        for at, layer in enumerate(self.layers):
            now = passed[-1]
            if layer.kind is nn.Linear:
                weight, bias = _of(layers, at)
                across = weight.transpose(1, 2)
                now = torch.bmm(now, across) if bias is None else torch.baddbmm(bias.unsqueeze(1), now, across)
            elif layer.kind is nn.ReLU:
                now = now.relu()
            else:
                now = now.tanh() if layer.kind is nn.Tanh else _sigmoid(now)
            passed.append(now)
        logs = torch.log_softmax(passed[-1], 2)
        true = y.unsqueeze(2)
        loss = -(logs.gather(2, true).squeeze(2) * share).sum(1)
        slope = logs.exp_().scatter_add_(2, true, share.new_full(true.shape, -1.0)).mul_(share.unsqueeze(2))
        return passed, loss, slope

    def _backward(self, layers: Apart, passed: list[Tensor], slope: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each linear layer from the last to the first, what went into it, and the slope by what came out."""
        first = next(at for at, layer in enumerate(self.layers) if layer.kind is nn.Linear)
        for at in range(len(self.layers) - 1, first - 1, -1):
            layer, after = self.layers[at], passed[at + 1]
            if layer.kind is nn.Linear:
                below = torch.bmm(slope, _of(layers, at)[0]) if at > first else slope  # before weights may change
                yield at, passed[at], slope
                slope = below
            elif layer.kind is nn.ReLU:
                slope = slope.mul_(after > 0)
            else:
                slope = slope.mul_(1 - after.square() if layer.kind is nn.Tanh else after * (1 - after))


def _of(layers: Apart, at: int) -> tuple[Tensor, Tensor | None]:
    held = layers[at]
    assert held is not None
    return held


def _sigmoid(x: Tensor) -> Tensor:
    """By the hyperbolic tangent: torch's own rounds differently by where in a tensor a number stands."""
    return (x * 0.5).tanh_().add_(1).mul_(0.5)


def _matrix(rows: Tensor, layer: Layer) -> Tensor:
    """(member, out, in): a layer's weights as a view of all members' rows."""
    assert layer.weight is not None
    return rows[:, layer.weight].view(len(rows), *layer.shape)


@dataclass(frozen=True, eq=False)
class Mapped:
    """Any small module without statistics or chance, by torch's own batching.

    Some of torch's functions round by where in a tensor a number stands, so the last digits may depend on who else is
    in the stack.
    """

    module: nn.Module
    layout: Layout

    def takes(self, shape: Sequence[int]) -> bool:
        return True

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        def loss(vector: Tensor, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
            output = torch.func.functional_call(self.module, cut(vector, self.layout.trainable), (x,))
            found = (F.cross_entropy(output, y, reduction="none") * share).sum()
            return found, found

        models = weights[:, : self.layout.size]
        grads, losses = torch.func.vmap(torch.func.grad(loss, has_aux=True))(models, x, y, share)
        out[:, : self.layout.size] = grads
        done: Tensor = losses.detach()
        return done
