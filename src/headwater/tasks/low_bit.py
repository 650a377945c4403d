"""Weights of one bit: each weight of a filter is the filter's mean plus or minus one number.

Of the values v of a filter (of a whole tensor, where there are no filters) with mean m and root mean square r of v − m,
the sign of v − m is kept: q = m ± r. Normalisation layers stay as they are; so do batch-norm statistics. Biases are
quantised like other tensors, each as a whole. There are two ways of training:

* error feedback: what rounding took away is added again before the next rounding (memory = v − q), and the optimiser
  works on q;
* straight through: the optimiser works on weights of full precision with the gradient at q, which the sign passes on
  as it is and the clamp of (v − m)/r to ±1 before it stops where it cuts.

With plain SGD and no weight decay they differ by the clamp alone, since memory + q is then the full-precision weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwater.core.params import cut
from headwater.specs import LowBit
from headwater.tasks.flat_module import FlatModule

_EDGE = 1 + 1e-5  # a value that lies at ±r up to rounding is not cut
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Bits:
    """Keeps the trainable weights of a net at one bit.

    Args:
        net: the net.
        way: "feedback" or "straight-through".

    Attributes:
        memory: full-precision weights less the quantised ones.
    """

    def __init__(self, net: FlatModule, way: LowBit) -> None:
        self.net, self.way = net, way
        quantised = one_bit_names(net)
        self.memory = torch.zeros_like(net.flat.data)
        self.free = torch.ones_like(net.flat.data)  # 0 where the clamp cuts
        shapes = net.layout.trainable
        views = zip(*(cut(t, shapes).items() for t in (net.flat.data, self.memory, self.free)), strict=True)
        self._parts = [tuple(view for _, view in part) for part in views if part[0][0] in quantised]
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """v = w + memory, w = quantised v, memory = v − w."""
        for weights, memory, free in self._parts:
            values = weights + memory
            middle, spread = levels(values)
            away = values - middle
            free.copy_((away.abs() <= spread * _EDGE).to(free.dtype))
            weights.copy_(torch.where(away >= 0, middle + spread, middle - spread))
            memory.copy_(values - weights)

    @torch.no_grad()
    def before_step(self) -> None:
        """Straight through: the step is taken from full precision, along the gradient that passes the clamp."""
        if self.way == "straight-through":
            self.net.flat.data.add_(self.memory)
            self.memory.zero_()
            self.net.grad.mul_(self.free)


def one_bit_names(net: FlatModule) -> tuple[str, ...]:
    """The tensors that are quantised: all that are trained but those of normalisation layers."""
    normal = {
        f"{name}.{leaf}" if name else leaf
        for name, module in net.module.named_modules()
        if isinstance(module, _NORMS)
        for leaf, _ in module.named_parameters(recurse=False)
    }
    return tuple(name for name, _ in net.layout.trainable if name not in normal)


def levels(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and root mean square about it, of each filter of a convolution or of the whole tensor."""
    inside = tuple(range(1 if values.dim() > 2 else 0, values.dim()))
    middle = values.mean(inside, keepdim=True) if inside else values
    return middle, (values - middle).square().mean(inside, keepdim=True).sqrt() if inside else torch.zeros_like(values)
