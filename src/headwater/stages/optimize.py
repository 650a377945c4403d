"""The inner loop that local training and distillation share: batches, optimiser, schedule, clip, one step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from headwater.specs import DistillSpec, LocalSpec
from headwater.stages.bench import Bench
from headwater.stages.lowbit import Bits

Spec = LocalSpec | DistillSpec


def steps_per_epoch(n: int, spec: Spec) -> int:
    dropped = isinstance(spec, LocalSpec) and spec.drop_last
    return n // spec.batch if dropped else math.ceil(n / spec.batch)


def total_steps(n: int, spec: Spec) -> int:
    each = steps_per_epoch(n, spec)
    return (spec.steps if spec.steps is not None else (spec.epochs or 0) * each) if each else 0


def batches(n: int, spec: Spec, rng: np.random.Generator) -> Iterator[Tensor]:
    """Index batches, shuffled anew in every epoch; the last batch of an epoch may be smaller."""
    left, each = total_steps(n, spec), steps_per_epoch(n, spec)
    while left > 0:
        yield from torch.split(torch.from_numpy(rng.permutation(n)), spec.batch)[: min(left, each)]
        left -= each


class Stepper:
    """A fresh optimiser on a bench's flat vector; `step` descends on one loss."""

    def __init__(self, bench: Bench, spec: Spec, total: int, correction: Tensor | None = None) -> None:
        self.bench, self.spec, self.total, self.taken, self.correction = bench, spec, total, 0, correction
        self.optimizer = self._optimizer()
        way = spec.low_bit if isinstance(spec, LocalSpec) else "none"
        self.bits = None if way == "none" else Bits(bench, way)  # rounds before the first step

    def _optimizer(self) -> torch.optim.Optimizer:
        spec, flat = self.spec, [self.bench.flat]
        if spec.optimizer == "sgd":
            return torch.optim.SGD(flat, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)
        kind = torch.optim.Adam if spec.optimizer == "adam" else torch.optim.AdamW
        return kind(flat, lr=spec.lr, weight_decay=spec.weight_decay, fused=True)

    def lr(self) -> float:
        """The learning rate of the next step."""
        spec = self.spec
        if isinstance(spec, LocalSpec):
            return spec.lr / (1 + spec.lr_time_decay * self.taken)
        if spec.schedule == "cosine":  # over the full length, so stopping early cuts the cosine short
            return 0.5 * spec.lr * (1 + math.cos(math.pi * self.taken / self.total))
        return spec.lr

    def step(self, loss: Tensor) -> None:
        grad = self.bench.grad
        grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.bits is not None:
            self.bits.before_step()
        if self.correction is not None:
            grad.add_(self.correction)
        if self.spec.clip is not None:  # after the correction, as MTGC's and FedDF's codes clip
            grad.mul_(torch.clamp(self.spec.clip / (grad.norm() + 1e-6), max=1.0))
        self.optimizer.param_groups[0]["lr"] = self.lr()
        self.optimizer.step()
        if self.bits is not None:
            self.bits.round()
        self.taken += 1
