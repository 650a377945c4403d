"""Local training of many clients as one batched computation (a stack): their models are the rows of one matrix.

A step of a small model takes more time in calls than in arithmetic, and a stack needs each call once. Two kernels
compute the gradients of all members at once: `Chain`, written out for sequential linear layers and activations, and
`Mapped`, torch's `vmap` of the module itself, which also serves convolutions and batch norm.

The members of a stack follow from the configuration and the participants alone, and one thread computes a stack, with
the configured number of threads inside an operation. So all engines give the same bits. Whether a member also gets the
same bits with other members is tested where it matters (see `policy`). A single member is computed twice, since
products of one may be computed by another kernel; with convolutions it is trained as any client alone.

The batch of a smaller client is filled up with rows that have no share in the loss. A client leaves the stack when its
steps are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import ModelRows, Params
from headwater.data.base import Examples
from headwater.tasks.batched.batches import Ints, batches_of_all
from headwater.tasks.batched.buffers import Buffers, whole_lines
from headwater.tasks.batched.kernels import Chain
from headwater.tasks.batched.members import Inputs, Member, kernel, paired
from headwater.tasks.batched.steps import StackSteps, starts_of
from headwater.tasks.devices import CPU
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import learning_rate, samples_read, total_steps
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
    formed = [
        (members, width) for (*_, width), members in stacks.items() if len(members) > 1 or paired(members[0].inputs.net)
    ]
    drawn = [(members, _batches(members, width)) for members, width in formed]
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


class Drawn(NamedTuple):
    """Batches of a stack: labels, rows and shares are by (step, member, place)."""

    table: Tensor  # all inputs
    labels: Tensor
    chosen: Tensor  # rows of the table
    share: Tensor
    counts: list[int]  # members that take part in a step
    rates: list[float]
    rows: list[list[int]]  # in the batch of each member, by step


def _batches(members: list[Member], width: int) -> Drawn:
    first, steps = members[0].inputs, [member.steps for member in members]
    contexts, (table, own) = [member.ctx for member in members], _table(members)
    drawn = batches_of_all(contexts, own, first.spec, width, steps[0], first.start.vector.dtype)
    rows = [] if first.at_once else (drawn[1] > 0).sum(2).tolist()
    index, share = (contexts[0].put(each) for each in drawn)
    labels = table.y.index_select(0, index.view(-1)).view(index.shape)
    counts = (np.arange(steps[0])[:, None] < np.array(steps)).sum(1).tolist()
    rates = [learning_rate(first.spec, step, steps[0]) for step in range(steps[0])]
    return Drawn(table.x, labels, index, share, counts, rates, rows)


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
def _train(members: list[Member], drawn: Drawn) -> ModelRows:
    first, x = members[0].inputs, drawn.table
    if first.net not in _MEMORY.buffers:
        _MEMORY.buffers[first.net] = Buffers(None if first.net.vector.device == CPU else first.net.vector.device)
    buffers = _MEMORY.buffers[first.net]
    room = buffers.scratch("x", (len(members) * drawn.chosen.shape[2], *x.shape[1:]), x.dtype)
    return (_at_once if first.at_once else _by_optimizer)(members, buffers, drawn, room)


def _at_once(members: list[Member], buffers: Buffers, drawn: Drawn, room: Tensor) -> ModelRows:
    """Plain gradient descent of a chain, without storing gradients."""
    chain, starts = kernel(members[0].inputs.net), starts_of(members)
    assert isinstance(chain, Chain)
    layers, (table, *batches, _) = chain.apart(starts, buffers), drawn
    losses = chain.descend(layers, table, *batches, room.flatten(1))
    size = starts.shape[1]
    models = buffers.lasting((len(starts), whole_lines(size, starts.dtype)), starts.dtype)
    chain.join(layers, models)
    models[:, size:] = 0
    return _models(members, models[:, :size], losses)


def _by_optimizer(members: list[Member], buffers: Buffers, drawn: Drawn, room: Tensor) -> ModelRows:
    """Any optimiser, with additions to the gradients, statistics and dropout."""
    table, labels, index, share, counts, rates, rows_of = drawn
    losses, seen = share.new_zeros(len(members)), (share > 0).sum(2)
    steps = StackSteps(members, buffers, table.index_select(0, index.view(-1)[:2]))
    for step, (now, lr) in enumerate(zip(counts, rates, strict=True)):
        rows = index[step, :now]
        flat = rows.reshape(-1)
        x = torch.index_select(table, 0, flat, out=room[: len(flat)])
        batch = steps.changed(x, rows_of[step][:now]).reshape(*rows.shape, *table.shape[1:])
        loss = steps.step((batch, labels[step, :now], share[step, :now]), rows_of[step][:now], lr)
        losses[:now].addcmul_(loss, seen[step, :now])
    matrix, counters = steps.models()
    return _models(members, matrix, losses, counters)


def _models(
    members: list[Member], matrix: Tensor, losses: Tensor, counters: Sequence[Tensor] | None = None
) -> ModelRows:
    """The trained models, from the rows of a matrix; counters are those of the start by default. Notes mean losses."""
    count, spec = len(members), members[0].inputs.spec
    seen = {rows: samples_read(rows, spec) for rows in {len(member.rows) for member in members}}
    models = []
    counted = counters or [member.inputs.start.counters for member in members]
    for member, vector, counter, loss in zip(members, matrix.unbind(), counted, losses.tolist(), strict=True):
        inputs, rows = member.inputs, len(member.rows)
        if member.steps:
            member.ctx.note(loss=loss / seen[rows], together=count)
        else:
            member.ctx.note(together=count)
        weight = float(rows) if inputs.by_samples else 1.0
        models.append(Params(vector, counter, inputs.start.layout, weight))
    return ModelRows(models, matrix)
