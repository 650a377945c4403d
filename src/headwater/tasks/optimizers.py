"""What local training and distillation share: batches, optimiser, learning-rate schedule, clipping, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from headwater.specs import DistillSpec, LocalSpec, Restore
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.low_bit import Bits

Spec = LocalSpec | DistillSpec


def steps_per_epoch(n: int, spec: Spec) -> int:
    """Gradient steps in one epoch over n rows."""
    dropped = isinstance(spec, LocalSpec) and spec.drop_last
    return n // spec.batch if dropped else math.ceil(n / spec.batch)


def total_steps(n: int, spec: Spec) -> int:
    """Gradient steps that a stage takes on n rows; 0 where an epoch has none."""
    each = steps_per_epoch(n, spec)
    return (spec.steps if spec.steps is not None else (spec.epochs or 0) * each) if each else 0


def samples_read(rows: int, spec: Spec) -> int:
    """Number of samples that all steps read, with repetitions."""
    total, per_epoch = total_steps(rows, spec), steps_per_epoch(rows, spec)
    if not per_epoch:
        return 0
    epochs, rest = divmod(total, per_epoch)
    return epochs * min(rows, per_epoch * spec.batch) + min(rest * spec.batch, rows)


def batches(n: int, spec: Spec, rng: np.random.Generator, device: torch.device | None = None) -> Iterator[Tensor]:
    """Index batches, shuffled anew in every epoch; the last batch of an epoch may be smaller.

    Args:
        n: number of rows.
        spec: the stage.
        rng: draws the order.
        device: where the rows are (`ctx.device`).
    """
    left, each = total_steps(n, spec), steps_per_epoch(n, spec)
    while left > 0:
        order = torch.from_numpy(rng.permutation(n)).to(device)  # an epoch at a time
        yield from torch.split(order, spec.batch)[: min(left, each)]
        left -= each


def learning_rate(spec: Spec, taken: int, total: int) -> float:
    """Learning rate of the next step, after `taken` of `total` steps."""
    lr = spec.lr / (1 + spec.lr_time_decay * taken)
    if isinstance(spec, DistillSpec) and spec.schedule == "cosine":
        # Over the full length, so stopping early cuts the cosine short.
        return 0.5 * lr * (1 + math.cos(math.pi * taken / total))
    return lr


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Return x[at], faster for labels and flat rows. Images keep their memory layout, which kernels depend on."""
    return x.index_select(0, at) if x.dim() < 3 else x[at]


class FusedOptimizer:
    """SGD, Adam or AdamW with a fresh state, in place on one tensor: the kernels of `torch.optim`, called directly.

    Creating the first `torch.optim` optimiser of a process imports torch's compiler. Each of its steps runs hooks,
    parameter groups and a profiler. None of this is needed for one tensor.

    Args:
        spec: the stage: optimiser, momentum and weight decay.
        weights: one model as a vector, or a stack of models along the first dimension. The result of a member does
            not depend on the other members of the stack.
    """

    def __init__(self, spec: Spec, weights: Tensor) -> None:
        self._kind, self._decay, self._momentum = spec.optimizer, spec.weight_decay, spec.momentum
        self._weights, adam = weights.detach(), spec.optimizer != "sgd"
        self._first = torch.zeros_like(self._weights) if adam or spec.momentum else None
        self._second = torch.zeros_like(self._weights) if adam else None
        # The kernels of Adam take the count of steps as a tensor.
        self._taken = torch.zeros((), dtype=torch.float32, device=weights.device)
        self._fresh = True
        self._for: tuple[Tensor, int | None] | None = None
        self._parts: list[list[Tensor]] = []

    def step(self, grad: Tensor, lr: float, members: int | None = None) -> None:
        """Take one step. `grad` has the shape of the weights; `members` limits it to the first models of a stack."""
        if self._for is None or self._for[0] is not grad or self._for[1] != members:
            if (grad.shape, grad.dtype) != (self._weights.shape, self._weights.dtype):  # not checked by the kernels
                raise ValueError(f"a gradient of shape {tuple(grad.shape)} for {tuple(self._weights.shape)} weights")
            self._for = grad, members
            self._parts = [_parts(t, members) for t in (self._weights, grad, self._first, self._second)]
        weights, grads, first, second = self._parts
        if self._kind == "sgd":
            torch._fused_sgd_(
                weights,
                grads,
                first,
                weight_decay=self._decay,
                momentum=self._momentum,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=self._fresh and bool(first),
            )
        else:
            self._taken += 1
            kernel = torch._fused_adam_ if self._kind == "adam" else torch._fused_adamw_
            kernel(
                weights,
                grads,
                first,
                second,
                [],
                [self._taken] * len(weights),
                lr=lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=self._decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
        self._fresh = False


def _parts(tensor: Tensor | None, members: int | None) -> list[Tensor]:
    """Split a stack into its members, or return it whole if every member fills whole cache lines.

    The kernels compute the last few numbers of a tensor with other instructions, which round differently. Without the
    split, the result of a member would depend on where it ends in the stack.
    """
    if tensor is None:
        return []
    tensor = tensor.detach()
    if not tensor.is_contiguous():  # the kernels would read out of bounds
        raise ValueError("an optimiser step needs tensors whose numbers lie side by side")
    if tensor.dim() < 2:
        return [tensor]
    tensor = tensor[:members]
    return [tensor] if tensor[0].nbytes % 64 == 0 else list(tensor.unbind())


class Stepper:
    """Gradient steps on one model with a fresh optimiser.

    Args:
        net: the model.
        spec: the stage: optimiser, learning rate, clipping.
        total: steps that will be taken at most, by which the learning rate is scheduled.
        correction: a vector that is added to every gradient.

    Attributes:
        taken: steps taken so far.
    """

    def __init__(self, net: FlatModule, spec: Spec, total: int, correction: Tensor | None = None) -> None:
        self.net, self.spec, self.total, self.taken, self.correction = net, spec, total, 0, correction
        self.optimizer = FusedOptimizer(spec, net.flat)
        way = spec.low_bit if isinstance(spec, LocalSpec) else "none"
        self.bits = None if way == "none" else Bits(net, way)  # rounds before the first step

    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self.spec, self.taken, self.total)

    def step(self, loss: Tensor) -> None:
        """One gradient step on this loss."""
        self.net.grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self.take()

    def take(self) -> None:
        """One step along the gradient that the model has."""
        grad = self.net.grad
        if self.bits is not None:
            self.bits.before_step()
        if self.correction is not None:
            grad.add_(self.correction)
        if self.spec.clip is not None:  # after the correction, as MTGC's and FedDF's codes clip
            grad.mul_(torch.clamp(self.spec.clip / (grad.norm() + 1e-6), max=1.0))
        self.optimizer.step(grad, self.lr())
        if self.bits is not None:
            self.bits.round()
        self.taken += 1


Snapshot = TypeVar("Snapshot")


class EarlyStop(Generic[Snapshot]):
    """Early stopping: stop as soon as (current index − index of the best) ≥ patience. A tie is no improvement.

    Args:
        metric: what is judged; a loss is better when it is smaller.
        patience: in the unit of the indices, epochs or steps; None never stops.
        min_delta: a smaller gain is no improvement.
        restore: what `chosen` returns: the "last" snapshot, the "best" of those evaluated, or "best_or_init", where
            the untouched start competes too.
    """

    def __init__(
        self,
        metric: Literal["loss", "accuracy"] = "loss",
        patience: int | None = None,
        min_delta: float = 0.0,
        restore: Restore = "last",
    ) -> None:
        self.sign = -1.0 if metric == "loss" else 1.0
        self.metric, self.patience, self.min_delta, self.restore = metric, patience, min_delta, restore
        self.best_index: int | None = None
        self._best_score = -math.inf
        self._best: Snapshot | None = None

    def begin(self, value: float, snapshot: Callable[[], Snapshot]) -> None:
        """Record the start, before any step; it competes only under `best_or_init`."""
        if self.restore == "best_or_init":
            self.update(0, value, snapshot)

    def update(self, index: int, value: float, snapshot: Callable[[], Snapshot]) -> bool:
        """Record one evaluation. Returns True if training should stop."""
        score = self.sign * value
        first = self.best_index is None and not math.isnan(score)
        if first or score > self._best_score + self.min_delta:
            self.best_index, self._best_score = index, score
            if self.restore != "last":
                self._best = snapshot()
        return self.patience is not None and index - (self.best_index or 0) >= self.patience

    def chosen(self, last: Callable[[], Snapshot]) -> Snapshot:
        """The snapshot to keep; `last` returns the snapshot of the last step."""
        return last() if self.restore == "last" or self._best is None else self._best
