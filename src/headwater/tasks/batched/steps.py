"""Gradient steps of a stack with any optimiser, with additions to the gradients, statistics and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.tasks.augment import augmented_together
from headwater.tasks.batched.buffers import Buffers, whole_lines
from headwater.tasks.batched.descent import twice
from headwater.tasks.batched.mapped import Mapped, Rest
from headwater.tasks.batched.members import Member, kernel
from headwater.tasks.optimizers import FusedOptimizer

Step = tuple[Tensor, Tensor, Tensor]  # inputs, labels and shares of one batch of each member


class StackSteps:
    """Steps of a stack.

    Args:
        members: its members, those with the most steps first.
        buffers: memory for it.
        rows: some inputs.
    """

    def __init__(self, members: list[Member], buffers: Buffers, rows: Tensor) -> None:
        first, starts = members[0].inputs, starts_of(members)
        gradients = kernel(first.net)
        assert gradients is not None
        first.net.train(2)  # it may be in evaluation mode
        # Each model fills whole cache lines: vector instructions then round every one alike.
        size = starts.shape[1]
        shape = (len(starts), whole_lines(size, starts.dtype))
        weights, grad = buffers.lasting(shape, starts.dtype), buffers.scratch("gradient", shape, starts.dtype)
        weights[:, :size], weights[:, size:] = starts, 0
        self._kernel, self._spec, self._size, self._members = gradients, first.spec, size, members
        self._weights, self._grad, self._optimizer = weights, grad.zero_(), FusedOptimizer(first.spec, weights)
        self._extra, self._pull = (None, None) if first.plain else _additions(members, weights)
        self._rest: Rest | None = None
        if isinstance(gradients, Mapped) and not gradients.paired:
            models, seeds = [member.inputs.start for member in members], [member.ctx.torch_seed for member in members]
            self._rest = gradients.rest(models, seeds, first.net.laid_out(rows))

    def changed(self, x: Tensor, rows: Sequence[int]) -> Tensor:
        """A step's inputs of all members, changed at random as the stage says, each by the member's own draws.

        Args:
            x: inputs by (member and place, …).
            rows: number of rows in each member's batch.
        """
        if self._spec.augment == "none":
            return x
        rngs = [member.ctx.augment_rng for member in self._members[: len(rows)]]
        return augmented_together(x, self._spec.augment, list(zip(rows, rngs, strict=True))).contiguous()

    def step(self, batch: Step, rows: Sequence[int], lr: float) -> Tensor:
        """One step of the first members, as many as the batch has. Returns their losses."""
        now = len(rows)
        weights, grad = self._weights[:now], self._grad[:now]
        if self._rest is not None and isinstance(self._kernel, Mapped):
            masks = self._members[0].ctx.put(self._rest.masks(rows, batch[0].shape[1]))
            loss = self._kernel.gradient(weights, *batch, grad, self._rest, masks)
        elif now > 1:
            loss = self._kernel.gradient(weights, *batch, grad)
        else:
            both, (x, y, share) = twice(grad), batch
            loss = self._kernel.gradient(twice(weights), twice(x), twice(y), twice(share), both)[:1]
            grad.copy_(both[:1])
        _correct(grad, weights, self._extra, self._pull, self._spec.clip)
        self._optimizer.step(self._grad, lr, now)
        return loss

    def models(self) -> tuple[Tensor, Sequence[Tensor] | None]:
        """The models as rows of a matrix, and their counters if there are statistics."""
        if self._rest is None or not self._rest.floats.shape[1]:
            return self._weights[:, : self._size], None
        floats = self._rest.floats
        size = self._size + floats.shape[1]
        whole = floats.new_zeros(len(floats), whole_lines(size, floats.dtype))
        whole[:, : self._size], whole[:, self._size : size] = self._weights[:, : self._size], floats
        return whole[:, :size], [row.clone() for row in self._rest.counters]


def starts_of(members: list[Member]) -> Tensor:
    """The starting models, one row each."""
    first = members[0].inputs.start
    if all(member.inputs.start.vector is first.vector for member in members):  # as after a broadcast
        return first.trainable.expand(len(members), -1)
    return torch.stack([member.inputs.start.trainable for member in members])


def _additions(members: list[Member], weights: Tensor) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """What is added to every gradient: one row per member, and a pull (strength, towards which model)."""
    rows, strengths = [], []
    for member in members:
        directions = [c.trainable if isinstance(c, Params) else c for c in member.inputs.given.get("corrections", ())]
        strength = 0.0
        for term in member.inputs.given.get("terms", ()):
            mu, direction = term.quadratic
            strength += mu
            directions.append(direction)
        added = [d for d in directions if d is not None]
        rows.append(sum(added[1:], added[0]) if added else None)
        strengths.append(strength)
    extra = None
    if any(row is not None for row in rows):
        extra = torch.zeros_like(weights)
        for at, row in enumerate(rows):
            if row is not None:
                extra[at, : len(row)] = row
    column = torch.tensor(strengths, dtype=weights.dtype, device=weights.device).unsqueeze(1)
    return extra, (column, weights.clone()) if any(strengths) else None


def _correct(
    grad: Tensor, weights: Tensor, extra: Tensor | None, pull: tuple[Tensor, Tensor] | None, clip: float | None
) -> None:
    now = len(grad)
    if pull is not None:
        strength, start = pull
        grad.add_((weights - start[:now]).mul_(strength[:now]))
    if extra is not None:
        grad.add_(extra[:now])
    if clip is not None:
        grad.mul_(torch.clamp(clip / (grad.norm(dim=1, keepdim=True) + 1e-6), max=1.0))
