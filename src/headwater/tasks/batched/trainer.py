"""Local training of many clients as one batched computation (a stack): their models are the rows of one matrix.

A step of a small model takes more time in calls than in arithmetic, and a stack needs each call once. Two kernels
compute the gradients of all members at once: `Chain`, written out for sequential linear layers and activations, and
`Mapped`, torch's `vmap` of the module itself.

The members of a stack follow from the configuration and the participants alone, and one thread computes a stack, with
the configured number of threads inside an operation. So all engines give the same bits. Whether a member also gets the
same bits with other members is tested where it matters (see `policy`). A single member is computed twice, since
products of one may be computed by another kernel.

The batch of a smaller client is filled up with rows that have no share in the loss. A client leaves the stack when its
steps are done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import Layout, Params
from headwater.specs import LocalSpec
from headwater.tasks.batched.batches import batches_of_all
from headwater.tasks.batched.buffers import Buffers, whole_lines
from headwater.tasks.batched.descent import twice
from headwater.tasks.batched.kernels import Chain, Kernel, kernel_of
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import FusedOptimizer, learning_rate, samples_read, total_steps
from headwater.tasks.task import ALONE, TaskContext

_KERNELS: WeakKeyDictionary[FlatModule, Kernel | None] = WeakKeyDictionary()


class _ThreadMemory(threading.local):
    """Buffers of one thread."""

    def __init__(self) -> None:
        self.buffers: WeakKeyDictionary[FlatModule, Buffers] = WeakKeyDictionary()


_MEMORY = _ThreadMemory()


@dataclass(slots=True)
class Member:
    """One client of a stack: its inputs and its result."""

    ctx: TaskContext
    inputs: Mapping[str, Any]
    net: FlatModule
    rows: np.ndarray[Any, np.dtype[np.int64]]
    steps: int
    width: int  # places in a batch: the member's own, since products of another shape may round differently
    plain: bool  # whether nothing is added to its gradients
    result: Params | None = None

    @property
    def at_once(self) -> bool:
        """Whether its steps are plain descent, so that no gradient need be written down."""
        spec = self.spec
        simple = spec.optimizer == "sgd" and not (spec.momentum or spec.weight_decay or spec.clip)
        return simple and self.plain and isinstance(kernel(self.net), Chain)

    @property
    def start(self) -> Params:
        start: Params = self.inputs["start"]
        return start

    @property
    def spec(self) -> LocalSpec:
        spec: LocalSpec = self.inputs["spec"]
        return spec


def _member(ctx: TaskContext, inputs: Mapping[str, Any], nets: dict[int, FlatModule | None]) -> Member | None:
    """A client as a member of a stack, or None if it cannot be one; `nets` caches the net of each layout."""
    spec: LocalSpec = inputs["spec"]
    if inputs.get("data") is not None or spec.low_bit != "none":
        return None
    terms, corrections = inputs.get("terms", ()), inputs.get("corrections", ())
    if not all("quadratic" in vars(type(term)) and not hasattr(term, "begin") for term in terms):
        return None
    layout = inputs["start"].layout
    if id(layout) not in nets:
        nets[id(layout)] = _fit(ctx, layout)
    net, rows = nets[id(layout)], ctx.rows
    if net is None or rows is None:
        return None
    width = min(spec.batch, -(-len(rows) // 8) * 8)
    plain = not terms and all(correction is None for correction in corrections)
    return Member(ctx, inputs, net, rows, total_steps(len(rows), spec), width, plain)


def _fit(ctx: TaskContext, layout: Layout) -> FlatModule | None:
    """The net for models of a layout if they can be stacked."""
    net = ctx.blank(layout.arch)
    gradients = kernel(net)
    if not isinstance(gradients, Chain) and ctx.stack != "vmap":
        return None
    fits = gradients is not None and layout.trainable == net.layout.trainable and gradients.takes(ctx.table.x.shape[1:])
    return net if fits else None


def kernel(net: FlatModule) -> Kernel | None:
    """The kernel for a net's module, made once."""
    if net not in _KERNELS:
        _KERNELS[net] = kernel_of(net.module, net.layout)
    return _KERNELS[net]


def train_together(contexts: Sequence[TaskContext], inputs: Sequence[Mapping[str, Any]]) -> list[Params | None]:
    """`local_train` at several homes; None for those that cannot be stacked.

    Args:
        contexts: the homes.
        inputs: the inputs of `local_train` at each.
    """
    if not contexts or contexts[0].stack == ALONE:  # one job for several small clients, each computed by itself
        return [None] * len(contexts)
    nets: dict[int, FlatModule | None] = {}
    members = [_member(ctx, each, nets) for ctx, each in zip(contexts, inputs, strict=True)]
    stacks: dict[tuple[Any, ...], list[Member]] = {}
    specs: dict[int, LocalSpec] = {}
    for member in filter(None, members):  # alike in model, spec, batch and what is added to gradients
        spec = specs.get(id(member.spec))
        if spec is None:  # comparing two is slow, and most often all members have the same object
            spec = next((each for each in specs.values() if each == member.spec), member.spec)
            specs[id(member.spec)] = spec
        stacks.setdefault((id(member.net), id(spec), member.width, member.plain), []).append(member)
    for alike in stacks.values():
        alike.sort(key=lambda member: -member.steps)
        _train(alike)
    return [None if member is None else member.result for member in members]


@torch.no_grad()
def _train(members: list[Member]) -> None:
    spec, table = members[0].spec, members[0].ctx.table
    steps = [member.steps for member in members]
    contexts, own = [member.ctx for member in members], [member.rows for member in members]
    index, share = batches_of_all(contexts, own, spec, members[0].width, steps[0], members[0].start.vector.dtype)
    labels = table.y.index_select(0, index.view(-1)).view(index.shape)
    buffers = _MEMORY.buffers.setdefault(members[0].net, Buffers())
    counts = (np.arange(steps[0])[:, None] < np.array(steps)).sum(1).tolist()
    rates = [learning_rate(spec, step, steps[0]) for step in range(steps[0])]
    room = buffers.scratch("x", (len(members) * members[0].width, *table.x.shape[1:]), table.x.dtype)
    trained = _at_once if members[0].at_once else _by_optimizer
    _hand_out(members, *trained(members, buffers, (table.x, labels, index, share, counts, rates, room)))


# All inputs; labels, rows and shares by (step, member, place); members of each step; learning rates; memory for a batch
Plan = tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[float], Tensor]


def _at_once(members: list[Member], buffers: Buffers, plan: Plan) -> tuple[Tensor, Tensor]:
    """Plain gradient descent of a chain, without storing gradients: models, and losses summed over all samples."""
    chain, starts = kernel(members[0].net), _starts(members)
    assert isinstance(chain, Chain)
    table, labels, index, share, counts, rates, room = plan
    layers = chain.apart(starts, buffers)
    losses = chain.descend(layers, table, labels, index, share, counts, rates, room.flatten(1))
    size = starts.shape[1]
    models = buffers.lasting((len(starts), whole_lines(size, starts.dtype)), starts.dtype)
    chain.join(layers, models)
    models[:, size:] = 0
    return models[:, :size], losses


def _by_optimizer(members: list[Member], buffers: Buffers, plan: Plan) -> tuple[Tensor, Tensor]:
    """Any optimiser, with additions to the gradients: models, and losses summed over all samples."""
    table, labels, index, share, counts, rates, room = plan
    losses, seen = share.new_zeros(len(members)), (share > 0).sum(2)
    descent = _Descent(members, buffers)
    for step, (now, lr) in enumerate(zip(counts, rates, strict=True)):
        rows = index[step, :now]
        flat = rows.reshape(-1)
        x = torch.index_select(table, 0, flat, out=room[: len(flat)]).view(*rows.shape, *table.shape[1:])
        loss = descent.step(now, (x, labels[step, :now], share[step, :now]), lr)
        losses[:now].addcmul_(loss, seen[step, :now])
    return descent.models(), losses


Step = tuple[Tensor, Tensor, Tensor]  # inputs, labels and shares of one batch of each member


class _Descent:
    """Steps of a stack with any optimiser, and with additions to the gradients."""

    def __init__(self, members: list[Member], buffers: Buffers) -> None:
        gradients, starts = kernel(members[0].net), _starts(members)
        assert gradients is not None
        members[0].net.train(2)  # it may be in evaluation mode
        # Each model fills whole cache lines: vector instructions then round every one alike.
        size = starts.shape[1]
        shape = (len(starts), whole_lines(size, starts.dtype))
        weights, grad = buffers.lasting(shape, starts.dtype), buffers.scratch("gradient", shape, starts.dtype)
        weights[:, :size], weights[:, size:] = starts, 0
        self._kernel, self._clip, self._size = gradients, members[0].spec.clip, size
        self._weights, self._grad, self._optimizer = weights, grad.zero_(), FusedOptimizer(members[0].spec, weights)
        self._extra, self._pull = (None, None) if members[0].plain else _additions(members, weights)

    def step(self, now: int, batch: Step, lr: float) -> Tensor:
        weights, grad = self._weights[:now], self._grad[:now]
        if now > 1:
            loss = self._kernel.gradient(weights, *batch, grad)
        else:
            both, (x, y, share) = twice(grad), batch
            loss = self._kernel.gradient(twice(weights), twice(x), twice(y), twice(share), both)[:1]
            grad.copy_(both[:1])
        _correct(grad, weights, self._extra, self._pull, self._clip)
        self._optimizer.step(self._grad, lr, now)
        return loss

    def models(self) -> Tensor:
        return self._weights[:, : self._size]


def _starts(members: list[Member]) -> Tensor:
    """The starting models, one row each."""
    first = members[0].start.trainable
    if all(member.start.vector is members[0].start.vector for member in members):  # as after a broadcast
        return first.expand(len(members), -1)
    return torch.stack([member.start.trainable for member in members])


def _additions(members: list[Member], weights: Tensor) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """What is added to every gradient: one row per member, and a pull (strength, towards which model)."""
    rows, strengths = [], []
    for member in members:
        directions = [c.trainable if isinstance(c, Params) else c for c in member.inputs.get("corrections", ())]
        strength = 0.0
        for term in member.inputs.get("terms", ()):
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
    column = torch.tensor(strengths, dtype=weights.dtype).unsqueeze(1)
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


def _hand_out(members: list[Member], models: Tensor, losses: Tensor) -> None:
    sizes = {len(member.rows): member.steps for member in members}
    seen = {rows: samples_read(rows, members[0].spec) for rows, steps in sizes.items() if steps}
    for member, model, loss in zip(members, models.unbind(), losses.tolist(), strict=True):
        start, rows = member.start, len(member.rows)
        if rows in seen:
            member.ctx.note(loss=loss / seen[rows], together=len(members))
        else:
            member.ctx.note(together=len(members))
        weight = float(rows) if member.inputs.get("by", "samples") == "samples" else 1.0
        member.result = Params(model, start.counters, start.layout, weight)
