"""A net for evaluation only, in which batch norm is part of the convolution before it.

In evaluation mode batch norm is the same multiplication and addition for every input, channel by channel. So it can be
applied to the convolution's weights once instead of to its output for every image.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from headwater.models.base import Net
from headwater.models.resnet import Block
from headwater.models.shufflenet import ShuffleUnit
from headwater.models.wrn import PreBlock

KNOWN = (Net, Block, PreBlock, ShuffleUnit, nn.Sequential)  # their forward calls each part once and nothing else


class Folded(nn.Module):
    """A convolution and the batch norm after it as one convolution; `fold` updates its weights."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self._parts = (conv, norm)  # in a tuple they are not parts of this module: they belong to the net itself
        self._weight = torch.empty_like(conv.weight, requires_grad=False)
        self._bias = torch.empty_like(conv.weight[:, 0, 0, 0], requires_grad=False)

    def fold(self) -> None:
        """Take over the current weights and statistics."""
        conv, norm = self._parts
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        torch.mul(conv.weight, scale.view(-1, 1, 1, 1), out=self._weight)
        shift = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
        torch.mul(shift, scale, out=self._bias)
        if norm.bias is not None:
            self._bias.add_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self._parts[0]._conv_forward(x, self._weight, self._bias)
        return output


class Twin:
    """A copy of a net for evaluation, which shares all parts that are not folded; `ready` updates the folded ones."""

    def __init__(self, module: nn.Module, copied: nn.Module) -> None:
        self._module, self._copied = module, copied
        self._folded = [part for part in copied.modules() if isinstance(part, Folded)]

    @torch.no_grad()
    def ready(self) -> nn.Module:
        """The copy, with the current weights."""
        self._module.eval()
        for part in self._folded:
            part.fold()
        return self._copied


def twin_of(module: nn.Module) -> Twin | None:
    """The folded copy of a net; None if nothing can be folded.

    Nothing is folded if a part is used twice or has hooks.
    """
    parts = list(_parts(module))
    if len({id(part) for part in parts}) < len(parts) or any(map(_hooked, parts)):
        return None
    return Twin(module, _copy(module)) if any(map(_pairs, parts)) else None


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    if type(module) in KNOWN:
        for part in module._modules.values():  # also a part that occurs twice
            if part is not None:
                yield from _parts(part)


def _hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)


def _pairs(module: nn.Module) -> bool:
    return type(module) is nn.Sequential and any(_joins(*both) for both in pairwise(module))


def _joins(conv: nn.Module, norm: nn.Module) -> bool:
    return type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.running_mean is not None


def _copy(module: nn.Module) -> nn.Module:
    if type(module) is nn.Sequential:
        return nn.Sequential(*_chain(list(module)))
    if type(module) not in KNOWN:
        return module
    copied = copy.copy(module)
    copied._modules = {name: part if part is None else _copy(part) for name, part in module._modules.items()}
    return copied


def _chain(parts: Sequence[nn.Module]) -> Iterator[nn.Module]:
    at = 0
    while at < len(parts):
        both = parts[at : at + 2]
        if len(both) == 2 and _joins(*both):
            yield Folded(*both)  # type: ignore[arg-type]
            at += 2
            if at < len(parts) and type(parts[at]) is nn.ReLU:  # its input has no other use and may be overwritten
                yield nn.ReLU(inplace=True)
                at += 1
        else:
            yield _copy(parts[at])
            at += 1
