"""Models of one-bit weights as they travel: a bit per weight, and two numbers per filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import Layout, Params, cut


@dataclass(frozen=True)
class OneBit:
    """A model some of whose tensors have two values per filter (per tensor, where there are no filters).

    Args:
        bits: which of its filter's two values each weight has, eight weights in a byte.
        levels: the smaller and the larger value of each filter, as two rows.
        rest: all other numbers of the model's vector.
        counters: integer buffers.
        layout: positions of the named tensors.
        names: of the tensors that have one bit per weight.
        weight: what this model counts in averages.
    """

    bits: Tensor
    levels: Tensor
    rest: Tensor
    counters: Tensor
    layout: Layout
    names: tuple[str, ...]
    weight: float = 1.0

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes + self.levels.nbytes + self.rest.nbytes + self.counters.nbytes

    @staticmethod
    def of(model: Params, names: tuple[str, ...]) -> OneBit:
        """Pack a model. Exact if each filter of these tensors has at most two values."""
        parts, flags, levels = cut(model.vector, model.layout.trainable + model.layout.floats), [], []
        for name in names:
            rows = parts[name].reshape(_filters(tuple(parts[name].shape)), -1)
            low, high = rows.amin(1), rows.amax(1)
            levels.append(torch.stack([low, high]))
            flags.append((rows == high.unsqueeze(1)).reshape(-1))
        none = model.vector.new_empty(0)
        bits = np.packbits(torch.cat([none.bool(), *flags]).numpy())
        rest = torch.cat([none, *(part.reshape(-1) for name, part in parts.items() if name not in names)])
        both = torch.cat([none.new_empty(2, 0), *levels], 1)
        return OneBit(torch.from_numpy(bits), both, rest, model.counters, model.layout, names, model.weight)

    @staticmethod
    def outline(model: Params, names: tuple[str, ...]) -> OneBit:
        """The form of a packed model, without numbers."""
        shapes = dict(model.layout.trainable + model.layout.floats)
        weights = sum(prod(shapes[name]) for name in names)
        filters = sum(_filters(shapes[name]) for name in names)
        none = model.vector.new_empty(0, device="meta")
        bits = torch.empty(-(-weights // 8), dtype=torch.uint8, device="meta")
        rest = none.new_empty(model.vector.numel() - weights)
        return OneBit(bits, none.new_empty(2, filters), rest, model.counters, model.layout, names, model.weight)

    def unpacked(self) -> Params:
        """The model.

        Raises:
            ValueError: the parts do not fit the layout.
        """
        shapes = self.layout.trainable + self.layout.floats
        weights = sum(prod(shape) for name, shape in shapes if name in self.names)
        whole = sum(prod(shape) for _, shape in shapes)
        filters = sum(_filters(shape) for name, shape in shapes if name in self.names)
        sizes = (self.bits.shape, self.levels.shape, self.rest.shape)
        if sizes != ((-(-weights // 8),), (2, filters), (whole - weights,)) or self.bits.dtype != torch.uint8:
            raise ValueError(f"a packed model has parts of shapes {sizes}, which its layout does not have")
        flags = torch.from_numpy(np.unpackbits(self.bits.numpy(), count=weights)).bool()
        vector = torch.cat(list(self._parts(shapes, flags)) or [self.rest])
        return Params(vector, self.counters, self.layout, self.weight)

    def _parts(self, shapes: tuple[tuple[str, tuple[int, ...]], ...], flags: Tensor) -> Iterator[Tensor]:
        packed: dict[str, Tensor] = {}
        known, at, filters = dict(shapes), 0, 0
        for name in self.names:
            count, rows = prod(known[name]), _filters(known[name])
            low, high = self.levels[:, filters : filters + rows].unsqueeze(2)
            packed[name] = torch.where(flags[at : at + count].view(rows, -1), high, low).reshape(-1)
            at, filters = at + count, filters + rows
        done = 0
        for name, shape in shapes:
            if name in packed:
                yield packed[name]
            else:
                yield self.rest[done : done + prod(shape)]
                done += prod(shape)


def _filters(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) > 2 else 1
