"""Local training in which the gradient of every single row is bounded, and the sum of a batch has noise (DP-SGD).

Abadi et al.: Deep Learning with Differential Privacy, CCS 2016. A step's batch is a Poisson sample: each row is in it
with probability batch / rows, independently of all others, as the accounting assumes. So batches differ in size, and
the sum is divided by the size that is expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import LocalSpec
from headwater.tasks.augment import augmented
from headwater.tasks.batched.kernels import Chain, kernel_of
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import Stepper, picked, total_steps
from headwater.tasks.privacy import SHRINK
from headwater.tasks.task import TaskContext

NUMBERS = 1 << 24  # of gradients that are held at a time


def train_by_rows(
    ctx: TaskContext,
    start: Params,
    rows: Examples,
    spec: LocalSpec,
    corrections: tuple[Tensor | Params | None, ...],
    terms: tuple[Any, ...],
    by: By,
) -> Params:
    """`local_train` with bounded gradients of rows, and noise on their sums. Arguments as there.

    Raises:
        ConfigError: a term of the loss is not one that rows have no part in.
    """
    for term in terms:
        if not hasattr(term, "quadratic"):
            raise ConfigError(
                f"privacy.row_clip bounds the gradient of each row, and {type(term).__name__} of this method's loss "
                "looks at whole batches; use a method without it, such as fedavg, fedprox, scaffold or feddyn"
            )
    net, privacy = ctx.flat_module(start), ctx.privacy
    net.train(batch=2)  # of any size but one, which batch norm would treat otherwise
    vectors = (c.trainable if isinstance(c, Params) else c for c in corrections if c is not None)
    added = sum(vectors, start=torch.zeros_like(net.grad))
    total, n = total_steps(len(rows), spec), len(rows)
    stepper = Stepper(net, spec, total)
    expected = min(float(spec.batch), float(n))
    for _ in range(total):
        batch = torch.from_numpy((ctx.noise.random(n) < expected / n).nonzero()[0]).to(ctx.device)
        x = picked(rows.x, batch)
        x = augmented(x, spec.augment, ctx.augment_rng) if len(x) else x
        noise = torch.from_numpy(ctx.noise.normal(size=len(net.grad))).to(net.grad)
        summed = bounded_sum(net, x, picked(rows.y, batch), privacy.row_clip)
        gradient = (summed + privacy.row_noise * privacy.row_clip * noise) / expected
        for term in terms:
            strength, direction = term.quadratic
            gradient += strength * (net.flat.detach() - start.trainable)
            gradient += 0 if direction is None else direction
        net.grad.copy_(gradient + added)
        stepper.take()
    return net.params(weight=float(n) if by == "samples" else 1.0)


def bounded_sum(net: FlatModule, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """The sum over rows of their gradients, each shortened to the bound. A gradient that is not finite counts as 0.

    Args:
        net: the model, in training mode.
        x: inputs.
        y: labels.
        bound: largest norm of a row's gradient.
    """
    result = torch.zeros_like(net.grad)
    for part in row_gradients(net, x, y):
        lengths = part.double().norm(dim=1)
        factor = torch.where(lengths > bound, bound / lengths * SHRINK, torch.ones_like(lengths))
        sound = torch.isfinite(lengths)
        result += (torch.where(sound, factor, 0).to(part) @ torch.where(sound.unsqueeze(1), part, 0)).view(-1)
    return result


def row_gradients(net: FlatModule, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """The gradients of rows, one per line, for some rows at a time.

    A row counts as a client of a stack that has this row only, where gradients of the model are written out. Otherwise
    all rows of a part are computed at once by torch's `vmap`; one by one, where it cannot batch the module.
    """
    kernel = kernel_of(net.module, net.layout)
    if isinstance(kernel, Chain) and not kernel.takes(x.shape[1:]):
        kernel = None
    at_once = max(1, NUMBERS // max(1, len(net.grad)))
    for own_x, own_y in zip(torch.split(x, at_once), torch.split(y, at_once), strict=True):
        if not len(own_x):
            continue
        if isinstance(kernel, Chain):
            yield _stacked(net, kernel, own_x, own_y)
            continue
        try:
            yield _batched(net, own_x, own_y)
        except (RuntimeError, NotImplementedError):
            yield torch.stack([_one(net, own_x[at : at + 1], own_y[at : at + 1]) for at in range(len(own_x))])


def _stacked(net: FlatModule, kernel: Chain, x: Tensor, y: Tensor) -> Tensor:
    found = torch.empty(len(x), len(net.grad), dtype=net.grad.dtype, device=net.grad.device)
    share = torch.ones(len(x), 1, dtype=found.dtype, device=found.device)
    kernel.gradient(net.flat.detach().expand(len(x), -1), x.unsqueeze(1), y.unsqueeze(1), share, found)
    return found


def _batched(net: FlatModule, x: Tensor, y: Tensor) -> Tensor:
    names = [name for name, _ in net.layout.trainable]
    own = dict(net.module.named_parameters())
    weights = {name: own[name].detach() for name in names}

    def loss(weights: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return net.loss(functional_call(net.module, weights, (row.unsqueeze(0),)), label.unsqueeze(0))

    found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, x, y)
    return torch.cat([found[name].reshape(len(x), -1) for name in names], dim=1)


def _one(net: FlatModule, x: Tensor, y: Tensor) -> Tensor:
    net.grad.zero_()
    net.loss(net(x), y).backward()  # type: ignore[no-untyped-call]
    return net.grad.clone()
