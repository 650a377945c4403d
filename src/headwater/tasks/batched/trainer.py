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
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import ModelRows, Params
from headwater.data.base import Examples
from headwater.tasks.batched.batches import Ints, batches_of_all
from headwater.tasks.batched.buffers import Buffers, whole_lines
from headwater.tasks.batched.descent import twice
from headwater.tasks.batched.kernels import Chain
from headwater.tasks.batched.members import Inputs, Member, kernel
from headwater.tasks.devices import CPU
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import FusedOptimizer, learning_rate, samples_read, total_steps
from headwater.tasks.task import ALONE, TaskContext


class _ThreadMemory(threading.local):
    """Buffers of one thread."""

    def __init__(self) -> None:
        self.buffers: WeakKeyDictionary[FlatModule, Buffers] = WeakKeyDictionary()


_MEMORY = _ThreadMemory()


def train_together(contexts: Sequence[TaskContext], inputs: Sequence[Mapping[str, Any]]) -> Sequence[Params | None]:
    """`local_train` at several homes; None for those that cannot be stacked.

    Args:
        contexts: the homes.
        inputs: the inputs of `local_train` at each.
    """
    return prepare_together(contexts, inputs)()


def prepare_together(
    contexts: Sequence[TaskContext], inputs: Sequence[Mapping[str, Any]]
) -> Callable[[], Sequence[Params | None]]:
    """Form stacks and draw their batches. Returns a function for the rest of `train_together`, for any thread."""
    if not contexts or contexts[0].stack == ALONE:  # one job for several small clients, each computed by itself
        return lambda: [None] * len(contexts)
    known: dict[int, Inputs | None] = {}  # by inputs as they were given: a broadcast is one object for all clients
    stacks: dict[tuple[Any, ...], list[Member]] = {}
    places: dict[tuple[int, int], tuple[list[Member], int]] = {}  # stack and steps, by inputs and number of rows
    for at, (ctx, given) in enumerate(zip(contexts, inputs, strict=True)):
        if id(given) not in known:
            known[id(given)] = Inputs.of(ctx, given, known.values())
        own = known[id(given)]
        if own is None or (rows := ctx.rows) is None:
            continue
        if (id(given), len(rows)) not in places:
            # Alike in model, spec, what is added to gradients, and places in a batch: products of another shape may
            # round differently.
            width = min(own.spec.batch, -(-len(rows) // 8) * 8)
            stack = stacks.setdefault((id(own.net), id(own.spec), own.plain, width), [])
            places[id(given), len(rows)] = stack, total_steps(len(rows), own.spec)
        stack, steps = places[id(given), len(rows)]
        stack.append(Member(ctx, own, rows, at, steps))
    for members in stacks.values():
        members.sort(key=lambda member: -member.steps)
    drawn = [(members, _batches(members, width)) for (*_, width), members in stacks.items()]
    return lambda: _results(drawn, len(contexts))


def _results(drawn: Sequence[tuple[list[Member], Drawn]], count: int) -> Sequence[Params | None]:
    """Train stacks; returns the models of all `count` clients, None for those in no stack."""
    results: dict[int, Params] = {}
    for members, batches in drawn:
        models = _train(members, batches)
        results |= {member.at: model for member, model in zip(members, models, strict=True)}
    if len(drawn) == 1 and len(results) == count and all(m.inputs is members[0].inputs for m in members):
        return ModelRows([results[at] for at in range(count)], models.matrix)
    return [results.get(at) for at in range(count)]


# All inputs; labels, rows and shares by (step, member, place); members of each step; learning rates
Drawn = tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[float]]


def _batches(members: list[Member], width: int) -> Drawn:
    first, steps = members[0].inputs, [member.steps for member in members]
    contexts, (table, own) = [member.ctx for member in members], _table(members)
    drawn = batches_of_all(contexts, own, first.spec, width, steps[0], first.start.vector.dtype)
    index, share = (contexts[0].put(each) for each in drawn)
    labels = table.y.index_select(0, index.view(-1)).view(index.shape)
    counts = (np.arange(steps[0])[:, None] < np.array(steps)).sum(1).tolist()
    rates = [learning_rate(first.spec, step, steps[0]) for step in range(steps[0])]
    return table.x, labels, index, share, counts, rates


def _table(members: list[Member]) -> tuple[Examples, list[Ints]]:
    """A table with the rows of all members, and where those of each are in it."""
    first = members[0].ctx
    if first.device == CPU:  # the table of the whole run, of which nothing is copied
        return first.table, [member.rows for member in members]
    parts = [part for member in members if (part := member.ctx.data) is not None]
    whole = Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    ends = np.cumsum([0, *(len(member.rows) for member in members)])
    return whole, [np.arange(*ends[at : at + 2]) for at in range(len(members))]


@torch.no_grad()
def _train(members: list[Member], batches: Drawn) -> ModelRows:
    first, (x, _, index, *_) = members[0].inputs, batches
    if first.net not in _MEMORY.buffers:
        _MEMORY.buffers[first.net] = Buffers(None if first.net.vector.device == CPU else first.net.vector.device)
    buffers = _MEMORY.buffers[first.net]
    room = buffers.scratch("x", (len(members) * index.shape[2], *x.shape[1:]), x.dtype)
    trained = _at_once if first.at_once else _by_optimizer
    return _models(members, *trained(members, buffers, (*batches, room)))


# All inputs; what was drawn; memory for a batch
Plan = tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[float], Tensor]


def _at_once(members: list[Member], buffers: Buffers, plan: Plan) -> tuple[Tensor, Tensor]:
    """Plain gradient descent of a chain, without storing gradients: models, and losses summed over all samples."""
    chain, starts = kernel(members[0].inputs.net), _starts(members)
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
        first, starts = members[0].inputs, _starts(members)
        gradients = kernel(first.net)
        assert gradients is not None
        first.net.train(2)  # it may be in evaluation mode
        # Each model fills whole cache lines: vector instructions then round every one alike.
        size = starts.shape[1]
        shape = (len(starts), whole_lines(size, starts.dtype))
        weights, grad = buffers.lasting(shape, starts.dtype), buffers.scratch("gradient", shape, starts.dtype)
        weights[:, :size], weights[:, size:] = starts, 0
        self._kernel, self._clip, self._size = gradients, first.spec.clip, size
        self._weights, self._grad, self._optimizer = weights, grad.zero_(), FusedOptimizer(first.spec, weights)
        self._extra, self._pull = (None, None) if first.plain else _additions(members, weights)

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


def _models(members: list[Member], matrix: Tensor, losses: Tensor) -> ModelRows:
    """The trained models, from the rows of a matrix. Notes each member's mean loss."""
    count, spec = len(members), members[0].inputs.spec
    seen = {rows: samples_read(rows, spec) for rows in {len(member.rows) for member in members}}
    models = []
    for member, vector, loss in zip(members, matrix.unbind(), losses.tolist(), strict=True):
        inputs, rows = member.inputs, len(member.rows)
        if member.steps:
            member.ctx.note(loss=loss / seen[rows], together=count)
        else:
            member.ctx.note(together=count)
        weight = float(rows) if inputs.by_samples else 1.0
        models.append(Params(vector, inputs.start.counters, inputs.start.layout, weight))
    return ModelRows(models, matrix)
