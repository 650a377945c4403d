"""Local training of many clients as one batched computation: their models are the rows of one matrix.

A small model's step costs more in calls than in arithmetic, and a stack pays for its calls once. Two kernels give the
gradients of all members at once: `Chain`, written out by hand for linear layers and activations in a row, and `Mapped`,
torch's `vmap` over the module itself. What a member gets from a chain is the same whoever else is in the stack, from
two members on (matrix products of one alone may take another path); one that is alone is therefore computed twice.

Clients of unequal size make unequal batches: a smaller one is filled up with rows that have no share in the loss. A
client whose steps are done leaves the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headwater.params import Params
from headwater.specs import LocalSpec
from headwater.stages.bench import Bench
from headwater.stages.kernels import Chain, Kernel, kernel_of
from headwater.stages.optimize import Rule, learning_rate, steps_per_epoch, total_steps
from headwater.stages.site import Site

LEAST = 1 << 18  # numbers of members' models that are worth a thread of their own
_KERNELS: WeakKeyDictionary[Bench, Kernel | None] = WeakKeyDictionary()


@dataclass
class Member:
    """One client of a stack: what it was given and what becomes of it."""

    site: Site
    given: Mapping[str, Any]
    bench: Bench
    rows: np.ndarray[Any, np.dtype[np.int64]]
    steps: int
    result: Params | None = None

    @property
    def width(self) -> int:
        """Places in a batch. It is the member's own, since products of another shape may round differently."""
        return min(self.spec.batch, -(-len(self.rows) // 8) * 8)

    @property
    def plain(self) -> bool:
        """Whether nothing is added to its gradients."""
        return not self.given.get("terms") and all(c is None for c in self.given.get("corrections", ()))

    @property
    def start(self) -> Params:
        start: Params = self.given["start"]
        return start

    @property
    def spec(self) -> LocalSpec:
        spec: LocalSpec = self.given["spec"]
        return spec


def _member(site: Site, given: Mapping[str, Any]) -> Member | None:
    spec: LocalSpec = given["spec"]
    if given.get("data") is not None or spec.low_bit != "none":
        return None
    if not all(hasattr(term, "quadratic") for term in given.get("terms", ())):
        return None
    bench = site.blank(given["start"].layout.arch)
    if kernel(bench, site.stack) is None:
        return None
    rows = site.rows
    return None if rows is None else Member(site, given, bench, rows, total_steps(len(rows), spec))


def kernel(bench: Bench, setting: str) -> Kernel | None:
    """The kernel for a bench's module, made once."""
    if bench not in _KERNELS:
        _KERNELS[bench] = kernel_of(bench.module, bench.layout)
    found = _KERNELS[bench]
    return found if isinstance(found, Chain) or setting == "on" else None


def train_together(sites: Sequence[Site], inputs: Sequence[Mapping[str, Any]], hands: int) -> list[Params | None]:
    """`local_train` at several homes; None for who cannot be stacked. `hands` threads share the work, which changes no
    bit."""
    found = [_member(site, given) for site, given in zip(sites, inputs, strict=True)]
    stacks: dict[tuple[Any, ...], list[Member]] = {}
    for member in filter(None, found):  # alike in model, spec, batch and what is added to gradients
        key = (id(member.bench), member.spec, member.width, member.plain)
        stacks.setdefault(key, []).append(member)
    for alike in stacks.values():
        alike.sort(key=lambda member: -member.steps)
        size = alike[0].bench.layout.size
        parts = max(1, min(hands, len(alike) // 2, len(alike) * size // LEAST)) if _chained(alike[0]) else 1
        shares = [alike[part::parts] for part in range(parts)]  # each still in falling order
        if parts == 1:
            _train(alike)
        else:
            list(_threads(hands).map(_train, shares))
    return [None if member is None else member.result for member in found]


def _chained(member: Member) -> bool:
    return isinstance(kernel(member.bench, member.site.stack), Chain)


@lru_cache(maxsize=2)
def _threads(hands: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(hands, thread_name_prefix="stack")


@torch.no_grad()
def _train(members: list[Member]) -> None:
    bench, spec, table = members[0].bench, members[0].spec, members[0].site.table
    found = kernel(bench, "on")
    assert found is not None
    weights = _matrix(members)
    extra, pull = (None, None) if members[0].plain else _additions(members, weights)
    simple = spec.optimizer == "sgd" and not (spec.momentum or spec.weight_decay or spec.clip)
    at_once = simple and members[0].plain and isinstance(found, Chain)
    grad = weights[:0] if at_once else torch.zeros_like(weights)
    rule = None if at_once else Rule(spec, weights)
    index, share = _batches(members, weights.dtype)
    steps = [member.steps for member in members]
    losses = torch.zeros(len(members), dtype=weights.dtype)
    x, y = table.x, table.y
    now = len(members)
    for step in range(steps[0] if steps else 0):
        while steps[now - 1] <= step:
            now -= 1
        rows = index[step, :now]
        flat = rows.reshape(-1)
        batch_x, batch_y = x.index_select(0, flat).view(*rows.shape, *x.shape[1:]), y.index_select(0, flat)
        batch = (batch_x, batch_y.view(rows.shape), share[step, :now])
        lr = learning_rate(spec, step, steps[0])
        if at_once:
            assert isinstance(found, Chain)
            loss = _doubled(found.descend, weights[:now], batch, lr)
        else:
            assert rule is not None
            loss = _doubled(found.gradient, weights[:now], batch, grad[:now])
            _correct(grad[:now], weights[:now], extra, pull, spec.clip)
            rule.step(grad, lr, now)
        losses[:now] += loss * (batch[2] > 0).sum(1)
    _hand_out(members, weights, losses)


def _matrix(members: list[Member]) -> Tensor:
    """The starting models, each filled up to whole cache lines: vector instructions then round every one alike."""
    size, dtype = members[0].bench.layout.size, members[0].start.vector.dtype
    line = 64 // dtype.itemsize
    weights = torch.empty(len(members), -(-size // line) * line, dtype=dtype)
    weights[:, size:] = 0
    first = members[0].start.vector
    if all(member.start.vector is first for member in members):  # as after a broadcast
        weights[:, :size] = members[0].start.trainable
    else:
        torch.stack([member.start.trainable for member in members], out=weights[:, :size])
    return weights


def _doubled(act: Any, weights: Tensor, batch: tuple[Tensor, Tensor, Tensor], last: Any) -> Tensor:
    """A member that is alone is computed twice, so that its products take the path of all others."""
    if len(weights) > 1:
        loss: Tensor = act(weights, *batch, last)
        return loss
    both = weights.expand(2, -1).clone()
    grad = torch.zeros_like(both) if isinstance(last, Tensor) else None
    loss = act(both, *(part.expand(2, *part.shape[1:]).contiguous() for part in batch), last if grad is None else grad)
    if grad is None:
        weights.copy_(both[:1])
    else:
        last.copy_(grad[:1])
    return loss[:1]


def _additions(members: list[Member], weights: Tensor) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """What is added to every gradient: a row a member, and a pull (strength, towards which model)."""
    rows, strengths = [], []
    for member in members:
        directions = [c.trainable if isinstance(c, Params) else c for c in member.given.get("corrections", ())]
        strength = 0.0
        for term in member.given.get("terms", ()):
            mu, direction = term.quadratic
            strength += mu
            directions.append(direction)
        held = [d for d in directions if d is not None]
        rows.append(sum(held[1:], held[0]) if held else None)
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


def _batches(members: list[Member], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of the table by (step, member, place in the batch), and each place's share in the batch's mean loss.

    The same draws as `optimize.batches` makes for each member alone.
    """
    spec, width, steps = members[0].spec, members[0].width, members[0].steps
    index = np.zeros((steps, len(members), width), dtype=np.int64)
    share = np.full((steps, len(members), width), 1 / spec.batch)
    for at, member in enumerate(members):
        rows, each = member.rows, steps_per_epoch(len(member.rows), spec)
        for first in range(0, member.steps, max(1, each)):
            order = rows[member.site.rng.permutation(len(rows))]
            count = min(each, member.steps - first)
            used = order[: count * spec.batch]
            whole, left = divmod(len(used), spec.batch)
            if whole:
                index[first : first + whole, at] = used[: whole * spec.batch].reshape(whole, -1)
            if left:
                index[first + whole, at, :left], index[first + whole, at, left:] = used[-left:], used[-1]
                share[first + whole, at, :left], share[first + whole, at, left:] = 1 / left, 0
    return torch.from_numpy(index), torch.from_numpy(share).to(dtype)


def _hand_out(members: list[Member], weights: Tensor, losses: Tensor) -> None:
    for at, (member, loss) in enumerate(zip(members, losses.tolist(), strict=True)):
        rows, spec = len(member.rows), member.spec
        if member.steps:
            seen = _seen(rows, spec, member.steps)
            member.site.note(loss=loss / seen)
        member.site.note(together=len(members))
        weight = float(rows) if member.given.get("by", "samples") == "samples" else 1.0
        vector = weights[at, : member.bench.layout.size]
        member.result = Params(vector, member.start.counters, member.start.layout, weight)


def _seen(rows: int, spec: LocalSpec, steps: int) -> int:
    """Samples that so many steps look at."""
    each = steps_per_epoch(rows, spec)
    whole = min(rows, each * spec.batch)
    epochs, rest = divmod(steps, each)
    return epochs * whole + min(rest * spec.batch, whole)
