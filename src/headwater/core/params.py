"""A model as one contiguous vector, and the arithmetic on it.

The vector holds the trainable part first and the float buffers (batch-norm statistics) after it; integer buffers (batch
counters) travel beside it. One vector makes arithmetic, averaging, hashing, the wire form and the checkpoint one
operation each, and lets a module's parameters be views of it. What is frozen is not in it: parameters that are not
trained, and the buffers of parts that stay in evaluation mode. Every process builds these from the model's spec.

Buffers follow the one policy that the layout declares: "average" treats float buffers as parameters are treated,
"first" keeps those of the first model. Integer buffers are never averaged: the largest is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

HELD = "_headwater_held"  # attribute of a part that stays in evaluation mode while the model is trained


def hold(parts: Iterable[nn.Module]) -> None:
    """Freeze the own parameters of some parts, and keep the parts in evaluation mode while others are trained."""
    for part in parts:
        for parameter in part.parameters(recurse=False):
            parameter.requires_grad_(False)
        setattr(part, HELD, True)
        part.training = False


def held_parts(module: nn.Module) -> list[nn.Module]:
    """The parts that `hold` was called for."""
    return [part for part in module.modules() if getattr(part, HELD, False)]


def set_training(module: nn.Module, held: Iterable[nn.Module]) -> None:
    """Training mode for all parts but those that are held."""
    module.train()
    for part in held:
        part.training = False


def frozen_views(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module that never change, by their state names; not copied.

    These are the parameters without a gradient. In a module that has such parameters, they are also the buffers of
    parts that stay in evaluation mode when the module is trained. Any other buffer may change, as statistics of batch
    norm do.
    """
    frozen = {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return {}
    stored, still = set(module.state_dict()), _always_evaluated(module)
    for name, buffer in module.named_buffers():
        changes = buffer.is_floating_point() or buffer.dtype == torch.int64  # other kinds are constants of the module
        if name in stored and changes and name.rpartition(".")[0] in still:
            frozen[name] = buffer  # type: ignore[assignment]
    return dict(frozen)


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of `frozen_views`, without gradients."""
    return {name: tensor.detach().clone() for name, tensor in frozen_views(module).items()}


def frozen_bytes(module: nn.Module) -> int:
    """The size of what is frozen; `module` may be an outline."""
    return sum(tensor.nbytes for tensor in frozen_views(module).values())


def _always_evaluated(module: nn.Module) -> set[str]:
    """Names of the parts that stay in evaluation mode when the module is set to training."""
    modes = [(part, part.training) for part in module.modules()]
    set_training(module, held_parts(module))
    names = {name for name, part in module.named_modules() if not part.training}
    for part, mode in modes:
        part.training = mode
    return names


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
By = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Layout:
    """Positions of the named tensors in the vector. `arch` names the architecture, `buffers` the buffer policy.

    `frozen` are the tensors that never change, in a module's order. They are not in the vector.
    """

    arch: str
    trainable: Shapes
    floats: Shapes
    counters: Shapes
    buffers: str = "average"
    frozen: Shapes = ()

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return sum(prod(shape) for _, shape in self.trainable)

    @staticmethod
    def of(module: nn.Module, arch: str, buffers: str = "average") -> Layout:
        stored = set(module.state_dict())  # without buffers that the module declares as non-persistent
        still = frozen_views(module)
        moving = [(n, b) for n, b in module.named_buffers() if n in stored and n not in still]
        # Masks and other small integers are constants of the module: they neither change nor travel.
        floats = tuple((n, tuple(b.shape)) for n, b in moving if b.is_floating_point())
        counters = tuple((n, tuple(b.shape)) for n, b in moving if b.dtype == torch.int64)
        trainable = tuple((n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad)
        frozen = tuple((n, tuple(t.shape)) for n, t in still.items())
        return Layout(arch, trainable, floats, counters, buffers, frozen)


@dataclass(frozen=True, eq=False)
class Params:
    """One model as a flat vector.

    Args:
        vector: trained parameters, then floating-point buffers.
        counters: integer buffers.
        layout: positions of the named tensors.
        weight: what this model counts in averages: the samples that contributed to it, or 1 per client with
            `by="uniform"`. It travels with the model.
    """

    vector: Tensor
    counters: Tensor
    layout: Layout
    weight: float = 1.0

    @property
    def trainable(self) -> Tensor:
        return self.vector[: self.layout.size]

    @property
    def nbytes(self) -> int:
        return self.vector.nbytes + self.counters.nbytes

    def __add__(self, other: Params) -> Params:
        return replace(self, vector=self.vector + other.vector)

    def __sub__(self, other: Params) -> Params:
        return replace(self, vector=self.vector - other.vector)

    def __mul__(self, factor: float) -> Params:
        return replace(self, vector=self.vector * factor)

    __rmul__ = __mul__

    def named(self, frozen: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The tensors under their state names, as views; with the frozen ones, if they are given."""
        shapes = self.layout.trainable + self.layout.floats
        return cut(self.vector, shapes) | cut(self.counters, self.layout.counters) | dict(frozen or {})

    def load_into(self, module: nn.Module, frozen: Mapping[str, Tensor] | None = None) -> nn.Module:
        state = self.named(frozen)
        module.load_state_dict(state, strict=False)  # tied parameters have one name here and two in the module
        return module

    @staticmethod
    def of(module: nn.Module, arch: str = "model", buffers: str = "average", weight: float = 1.0) -> Params:
        layout = Layout.of(module, arch, buffers)
        state = module.state_dict()
        dtype = dtype_of(module)
        floats = [state[n].reshape(-1).to(dtype) for n, _ in layout.trainable + layout.floats]
        ints = [state[n].reshape(-1).to(torch.int64) for n, _ in layout.counters]
        empty = torch.zeros(0, dtype=dtype)
        return Params(
            torch.cat([empty, *floats]), torch.cat([torch.zeros(0, dtype=torch.int64), *ints]), layout, weight
        )


def dtype_of(module: nn.Module) -> torch.dtype:
    """Number type of the vector: that of the trained parameters."""
    kinds = [p.dtype for p in module.parameters() if p.requires_grad] or [p.dtype for p in module.parameters()]
    return kinds[0] if kinds else torch.float32


class ModelRows(list[Params]):
    """Models of one layout, whose vectors are the rows of a matrix in any order.

    Args:
        models: the models.
        matrix: their vectors, and no others.
    """

    def __init__(self, models: Iterable[Params], matrix: Tensor) -> None:
        super().__init__(models)
        self.matrix = matrix


def cut(vector: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views of consecutive pieces of a vector."""
    views, at = {}, 0
    for name, shape in shapes:
        views[name] = vector[at : at + prod(shape)].view(shape)
        at += prod(shape)
    return views


def mean(models: Iterable[Params], weight_of: Callable[[Params], float] = lambda model: model.weight) -> Params:
    """Weighted mean, computed one model at a time: two models are in memory at any time.

    A running mean (m ← m + (x − m)·w/W) needs no total beforehand and leaves equal models exactly as they are.
    """
    result: Tensor | None = None
    total = contributed = 0.0
    for model in models:
        weight = weight_of(model)
        if weight < 0:
            raise ValueError(f"a model's weight must not be negative, got {weight}")
        if result is None:
            layout, result, counters = model.layout, model.vector.clone(), model.counters.clone()
            kept, counting = result[layout.size :].clone() if layout.buffers == "first" else None, counters.numel()
        if model.layout.trainable != layout.trainable:
            raise ValueError(f"cannot average {model.layout.arch!r} with {layout.arch!r}: they differ in shape")
        total, contributed = total + weight, contributed + model.weight
        if weight:
            result.lerp_(model.vector, weight / total)
            if counting:
                torch.maximum(counters, model.counters, out=counters)
        del model  # the next one may need its memory
    if result is None:
        raise ValueError("there is no model to average")
    if kept is not None:
        result[layout.size :] = kept
    return Params(result, counters, layout, contributed)


def average_of(models: Mapping[str, Params], by: By = "samples") -> Params:
    """The mean of models by their weights, or with all alike."""
    return mean(models.values(), (lambda _: 1.0) if by == "uniform" else (lambda model: model.weight))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, type, shape and bytes in sorted order."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
