"""Gradients of many models at once by torch's `vmap`, which makes one grouped convolution of those of all members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.core.params import Layout, Params, Shapes, cut
from headwater.tasks.batched.layers import Drop, MemberDropout, Now, copied, leaves, of_images


@dataclass
class Rest:
    """What members of a stack have beside their weights; one row or one item a member.

    Args:
        floats: statistics.
        counters: counters of batches.
        generators: torch's random streams.
        drops: calls of dropout in one pass.
    """

    floats: Tensor
    counters: Tensor
    generators: Sequence[torch.Generator]
    drops: Sequence[Drop]

    def masks(self, rows: Sequence[int], places: int) -> list[Tensor]:
        """What dropout multiplies with in the next step: a tensor per call of dropout, for (member, place).

        Args:
            rows: number of rows in each member's batch.
            places: rows that a batch has room for.
        """
        dtype = self.floats.dtype
        drawn = [
            [drop.mask(count, places, dtype, generator) for drop in self.drops]  # by member, then call after call
            for count, generator in zip(rows, self.generators, strict=False)
        ]
        return [torch.stack(call) for call in zip(*drawn, strict=True)]


@dataclass(frozen=True, eq=False)
class Mapped:
    """A module by torch's `vmap`.

    Some of torch's functions round by the position of a number in a tensor, so the last digits may depend on the other
    members of the stack.
    """

    module: nn.Module
    layout: Layout

    @cached_property
    def paired(self) -> bool:
        return not of_images(self.module)

    @cached_property
    def _parts(self) -> tuple[nn.Module, Now]:
        return copied(self.module, self.layout)

    def takes(self, shape: Sequence[int]) -> bool:
        return True

    def rest(self, starts: Sequence[Params], seeds: Sequence[int], rows: Tensor) -> Rest:
        """What members begin with beside their weights.

        Args:
            starts: their models.
            seeds: of their random streams.
            rows: some inputs as the module gets them, to see where dropout is called.
        """
        (module, now), size = self._parts, self.layout.size
        drops: list[Drop] = []
        if any(isinstance(part, MemberDropout) for part in module.modules()):
            now.valid, now.masks, now.calls = rows.new_ones(len(rows)), None, drops
            torch.func.functional_call(module, starts[0].named(), (rows,))
        generators = [torch.Generator().manual_seed(seed) for seed in seeds] if drops else []
        floats, counters = [s.vector[size:] for s in starts], [s.counters for s in starts]
        return Rest(torch.stack(floats), torch.stack(counters), generators, drops)

    def activations(self, start: Params, rows: Tensor) -> int:
        """Count the numbers that the layers return for these rows."""
        (module, now), count = self._parts, 0

        def add(_: nn.Module, __: Any, output: Any) -> None:
            nonlocal count
            count += output.numel() if isinstance(output, Tensor) else 0

        now.valid, now.masks, now.calls = rows.new_ones(len(rows)), None, []
        hooks = [leaf.register_forward_hook(add) for _, leaf in leaves(module)]
        try:
            with torch.no_grad():
                torch.func.functional_call(module, start.named(), (rows,))
        finally:
            for hook in hooks:
                hook.remove()
        return count

    def gradient(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        out: Tensor,
        rest: Rest | None = None,
        masks: Sequence[Tensor] = (),
    ) -> Tensor:
        (module, now), layout, members = self._parts, self.layout, len(weights)

        def loss(vector: Tensor, kept: list[Tensor], masks: list[Tensor], *batch: Tensor) -> tuple[Tensor, Any]:
            x, y, share = batch
            state = cut(vector, layout.trainable)
            if kept:
                state |= cut(kept[0], layout.floats) | cut(kept[1], layout.counters)
                now.valid = (share > 0).to(x.dtype)
            now.masks = iter(masks)
            output = torch.func.functional_call(module, state, (x,))  # which puts changed buffers into `state`
            found = (F.cross_entropy(output, y, reduction="none") * share).sum()
            return found, (found, [_joined(state, layout.floats), _joined(state, layout.counters)] if kept else [])

        kept = [] if rest is None or not layout.floats else [rest.floats[:members], rest.counters[:members]]
        models = weights[:, : layout.size]
        step = torch.func.vmap(torch.func.grad(loss, has_aux=True))
        grads, (losses, changed) = step(models, kept, list(masks), x, y, share)
        now.valid = now.masks = None
        out[:, : layout.size] = grads
        for before, after in zip(kept, changed, strict=True):
            before.copy_(after)
        done: Tensor = losses.detach()
        return done


def _joined(tensors: dict[str, Tensor], shapes: Shapes) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name, _ in shapes])
