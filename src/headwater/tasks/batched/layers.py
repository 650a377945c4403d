"""Which layers torch's `vmap` stacks, and what takes the place of batch norm and dropout in a stack.

`MemberNorm` keeps statistics by member and leaves out the rows that only fill up a batch. `MemberDropout` takes what
was drawn from each member's own random stream.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from headwater.core.params import Layout
from headwater.models.resnet import PaddedSubsample

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid)
PLAIN = (nn.Flatten, nn.Identity)
GENERIC = (*ACTIVATIONS, *PLAIN, nn.Linear, nn.Bilinear, nn.LayerNorm, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
IMAGES = (*NORMS, *DROPOUTS, *POOLS, nn.Conv1d, nn.Conv2d, nn.GroupNorm, PaddedSubsample)
SMALL = 100_000  # numbers of a model without convolutions up to which `vmap` pays


def leaves(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that hold parameters of their own or no modules, by name."""
    for name, each in module.named_modules():
        if not list(each.children()) or list(each.parameters(recurse=False)):
            yield name or "the model itself", each


def of_images(module: nn.Module) -> bool:
    """Whether a module has a layer for images, batch norm or dropout."""
    return any(type(leaf) in IMAGES for _, leaf in leaves(module))


def hooked(module: nn.Module) -> bool:
    """Whether something of the user's own is called beside the layers."""
    return any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules())


def obstacle(module: nn.Module, layout: Layout) -> str:
    """Why `vmap` cannot stack a module; empty if it can, as far as one can tell by its layers."""
    if layout.frozen:
        return "has frozen parts"
    if hasattr(module, "loss"):
        return "has a loss of its own"
    if hooked(module):
        return "has hooks"
    for name, leaf in leaves(module):
        if type(leaf) not in (*GENERIC, *IMAGES):
            return f"has a layer that is not stacked: {name} is {type(leaf).__name__}"
        if isinstance(leaf, NORMS) and leaf.running_mean is None:
            return f"has batch norm without running statistics: {name}"
        if isinstance(leaf, DROPOUTS) and leaf.p == 1:
            return f"has a layer that drops everything: {name}"
    kept = {
        f"{name}.{leaf}" for name, part in module.named_modules() if isinstance(part, NORMS) for leaf in _STATISTICS
    }
    if other := [name for name, _ in (*layout.floats, *layout.counters) if name not in kept]:
        return f"has a buffer that is not stacked: {other[0]}"
    if layout.size > SMALL and not of_images(module):
        return f"has more than {SMALL} numbers and no convolutions, so that stacks do not pay"
    return ""


# -- parts in place of batch norm and dropout


@dataclass
class Now:
    """What the parts need to know of the batch that is computed.

    Args:
        valid: 1 for each row that counts, 0 for one that fills up the batch.
        masks: what dropout multiplies with, in the order of its calls.
        calls: inputs of dropout, where they are only looked at.
    """

    valid: Tensor | None = None
    masks: Iterator[Tensor] | None = None
    calls: list[Drop] = field(default_factory=list)


@dataclass(frozen=True)
class Drop:
    """One call of dropout: its probability, the shape of one row, and whether the loop has the channel last there."""

    p: float
    shape: tuple[int, ...]
    channels_last: bool

    def mask(self, rows: int, places: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """What torch draws for so many rows of a client alone; ones for the places after them."""
        kind = torch.channels_last if self.channels_last else torch.contiguous_format
        drawn = torch.empty((rows, *self.shape), dtype=dtype, memory_format=kind)
        drawn.bernoulli_(1 - self.p, generator=generator).div_(1 - self.p)
        return torch.cat([drawn, drawn.new_ones(places - rows, *self.shape)]).contiguous()


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class MemberNorm(nn.Module):
    """Batch norm of one member. A batch of one row, which has no variance, is normalised by running statistics."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, now: Now, held: dict[int, Any]) -> None:
        super().__init__()
        self.eps, self.momentum, self.now = norm.eps, norm.momentum, now
        for name in ("weight", "bias"):
            self.register_parameter(name, held.get(id(getattr(norm, name))))
        for name in _STATISTICS:
            self.register_buffer(name, held[id(getattr(norm, name))])

    def forward(self, x: Tensor) -> Tensor:
        valid = self.now.valid
        assert valid is not None
        over, wide = [0, *range(2, x.dim())], (1, -1, *(1,) * (x.dim() - 2))
        count, pixels = valid.sum(), prod(x.shape[2:])
        share = (valid / (count * pixels)).view(-1, *(1,) * (x.dim() - 1))
        mean = (x * share).sum(over)
        var = ((x - mean.view(wide)).square() * share).sum(over)
        alone = count < 2
        before = self.running_mean, self.running_var
        self._remember(mean.detach(), var.detach() * (count * pixels / (count * pixels - 1).clamp(min=1)), alone)
        mean, var = torch.where(alone, before[0], mean), torch.where(alone, before[1], var)
        scale = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        found = (x - mean.view(wide)) * scale.view(wide)
        return found if self.bias is None else found + self.bias.view(wide)

    def _remember(self, mean: Tensor, var: Tensor, alone: Tensor) -> None:
        self.num_batches_tracked = self.num_batches_tracked + (~alone).to(torch.int64)
        rate = 1 / self.num_batches_tracked.clamp(min=1).to(mean.dtype) if self.momentum is None else self.momentum
        rate = torch.where(alone, torch.zeros_like(mean[0]), rate)
        self.running_mean = (1 - rate) * self.running_mean + rate * mean
        self.running_var = (1 - rate) * self.running_var + rate * var


class MemberGroupNorm(nn.Module):
    """Group norm of one member, in plain operations: not every device has a batched one."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, norm: nn.GroupNorm, held: dict[int, Any]) -> None:
        super().__init__()
        self.groups, self.eps = norm.num_groups, norm.eps
        for name in ("weight", "bias"):
            self.register_parameter(name, held.get(id(getattr(norm, name))))

    def forward(self, x: Tensor) -> Tensor:
        wide = (1, -1, *(1,) * (x.dim() - 2))
        grouped = x.reshape(len(x), self.groups, -1)
        away = grouped - grouped.mean(2, keepdim=True)
        found = (away * torch.rsqrt(away.square().mean(2, keepdim=True) + self.eps)).reshape(x.shape)
        found = found if self.weight is None else found * self.weight.view(wide)
        return found if self.bias is None else found + self.bias.view(wide)


class Mean(nn.Module):
    """Mean over all pixels. Torch's own pooling changes strides where the channel is last, which `vmap` cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


class MemberDropout(nn.Module):
    """Dropout of one member, by masks that were drawn before."""

    def __init__(self, dropout: Any, now: Now) -> None:
        super().__init__()
        self.p, self.features, self.now = dropout.p, not isinstance(dropout, nn.Dropout), now

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0:
            return x
        if self.now.masks is None:
            shape = (*x.shape[1:2], *(1,) * (x.dim() - 2)) if self.features else tuple(x.shape[1:])
            last = x.dim() == 4 and not self.features and x.is_contiguous(memory_format=torch.channels_last)
            self.now.calls.append(Drop(self.p, shape, last and not x.is_contiguous()))
            return x
        return x * next(self.now.masks)


def copied(module: nn.Module, layout: Layout) -> tuple[nn.Module, Now]:
    """A copy without numbers, which are given at each call, and with parts of its own for batch norm and dropout."""
    held: dict[int, Any] = {}
    named = {name for name, _ in (*layout.trainable, *layout.floats, *layout.counters)}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in named:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            held[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
        else:
            held[id(tensor)] = tensor
    now = Now()
    for part in module.modules():
        if isinstance(part, NORMS):
            held[id(part)] = MemberNorm(part, now, held)
        elif isinstance(part, nn.GroupNorm):
            held[id(part)] = MemberGroupNorm(part, held)
        elif isinstance(part, nn.AdaptiveAvgPool2d) and part.output_size in (1, (1, 1)):
            held[id(part)] = Mean()
        elif isinstance(part, DROPOUTS):
            held[id(part)] = MemberDropout(part, now)
    return copy.deepcopy(module, held).train(), now
