"""Local training of many clients as one batched computation: their models are the rows of one matrix.

A small model's step costs more in calls than in arithmetic, and a stack pays for its calls once. Two kernels give the
gradients of all members at once: `Chain`, written out by hand for linear layers and activations in a row, and `Mapped`,
torch's `vmap` over the module itself. What a member gets from a chain is the same whoever else is in the stack, from
two members on (matrix products of one alone may take another path); one that is alone is therefore computed twice.

Clients of unequal size make unequal batches: a smaller one is filled up with rows that have no share in the loss. A
client whose steps are done leaves the stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headwater.params import Params
from headwater.specs import LocalSpec
from headwater.stages.bench import Bench
from headwater.stages.kernels import Apart, Chain, Kernel, kernel_of
from headwater.stages.optimize import Rule, learning_rate, steps_per_epoch, total_steps
from headwater.stages.pace import Pace
from headwater.stages.site import Site

_KERNELS: WeakKeyDictionary[Bench, Kernel | None] = WeakKeyDictionary()
_PACES: WeakKeyDictionary[Bench, Pace] = WeakKeyDictionary()


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
    def at_once(self) -> bool:
        """Whether its steps are plain descent, so that no gradient need be written down."""
        spec = self.spec
        simple = spec.optimizer == "sgd" and not (spec.momentum or spec.weight_decay or spec.clip)
        return simple and self.plain and isinstance(kernel(self.bench, "on"), Chain)

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
    if not all("quadratic" in vars(type(term)) and not hasattr(term, "begin") for term in given.get("terms", ())):
        return None
    bench, layout = site.blank(given["start"].layout.arch), given["start"].layout
    found = kernel(bench, site.stack)
    if found is None or layout.trainable != bench.layout.trainable or not found.takes(site.table.x.shape[1:]):
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
    bit: they divide the products of members among them, never one product."""
    found = [_member(site, given) for site, given in zip(sites, inputs, strict=True)]
    stacks: dict[tuple[Any, ...], list[Member]] = {}
    for member in filter(None, found):  # alike in model, spec, batch and what is added to gradients
        key = (id(member.bench), member.spec, member.width, member.plain)
        stacks.setdefault(key, []).append(member)
    usual = torch.get_num_threads()
    for alike in stacks.values():
        alike.sort(key=lambda member: -member.steps)
        pace = _PACES.setdefault(alike[0].bench, Pace())
        pace.threads = (usual, max(usual, hands) if _chained(alike[0]) else usual)
        try:
            _train(alike, pace)
        finally:
            torch.set_num_threads(usual)
    return [None if member is None else member.result for member in found]


def _chained(member: Member) -> bool:
    return isinstance(kernel(member.bench, member.site.stack), Chain)


@torch.no_grad()
def _train(members: list[Member], pace: Pace) -> None:
    spec, table = members[0].spec, members[0].site.table
    index, share = _batches(members, members[0].start.vector.dtype)
    steps = [member.steps for member in members]
    losses, seen = share.new_zeros(len(members)), (share > 0).sum(2)
    x, y = table.x, table.y
    descent: _AtOnce | _ByRule = _AtOnce(members) if members[0].at_once else _ByRule(members)
    now = len(members)
    for step in range(steps[0]):
        while steps[now - 1] <= step:
            now -= 1
        which, begun = pace.choose(), time.perf_counter()
        torch.set_num_threads(min(pace.threads[which], max(2, now)))  # more than members would divide single products
        rows = index[step, :now]
        flat = rows.reshape(-1)
        batch_x, batch_y = x.index_select(0, flat).view(*rows.shape, *x.shape[1:]), y.index_select(0, flat)
        batch = (batch_x, batch_y.view(rows.shape), share[step, :now])
        loss = descent.step(now, batch, learning_rate(spec, step, steps[0]))
        losses[:now].addcmul_(loss, seen[step, :now])
        pace.took(which, (time.perf_counter() - begun) / now)
    _hand_out(members, descent.models(), losses)


Step = tuple[Tensor, Tensor, Tensor]  # inputs, labels and shares of one batch of each member


def _twice(part: Tensor) -> Tensor:
    """A member that is alone is computed twice, so that its products take the path of all others."""
    return part[:1].expand(2, *part.shape[1:]).contiguous()


class _AtOnce:
    """Plain descent of a chain: products go straight into the weights."""

    def __init__(self, members: list[Member]) -> None:
        found, self._starts = kernel(members[0].bench, "on"), _starts(members)
        assert isinstance(found, Chain)
        self._chain, self._layers = found, found.apart(self._starts)

    def step(self, now: int, batch: Step, lr: float) -> Tensor:
        if now > 1:
            return self._chain.descend(self._some(lambda part: part[:now]), *batch, lr)
        both, (x, y, share) = self._some(_twice), batch
        loss = self._chain.descend(both, _twice(x), _twice(y), _twice(share), lr)
        for held, found in zip(self._layers, both, strict=True):
            for mine, part in zip(held or (), found or (), strict=True):
                if mine is not None and part is not None:
                    mine[:1] = part[:1]
        return loss[:1]

    def _some(self, of: Callable[[Tensor], Tensor]) -> Apart:
        return [
            None if held is None else (of(held[0]), None if held[1] is None else of(held[1])) for held in self._layers
        ]

    def models(self) -> Tensor:
        found = torch.empty(self._starts.shape, dtype=self._starts.dtype)
        self._chain.join(self._layers, found)
        return found


class _ByRule:
    """Any optimiser, with what is added to gradients."""

    def __init__(self, members: list[Member]) -> None:
        found, starts = kernel(members[0].bench, "on"), _starts(members)
        assert found is not None
        members[0].bench.train(2)  # it may have judged a model last
        # Each model fills whole cache lines: vector instructions then round every one alike.
        line = 64 // starts.dtype.itemsize
        weights = starts.new_zeros(len(starts), -(-starts.shape[1] // line) * line)
        weights[:, : starts.shape[1]] = starts
        self._kernel, self._clip, self._size = found, members[0].spec.clip, starts.shape[1]
        self._weights, self._grad, self._rule = weights, torch.zeros_like(weights), Rule(members[0].spec, weights)
        self._extra, self._pull = (None, None) if members[0].plain else _additions(members, weights)

    def step(self, now: int, batch: Step, lr: float) -> Tensor:
        weights, grad = self._weights[:now], self._grad[:now]
        if now > 1:
            loss = self._kernel.gradient(weights, *batch, grad)
        else:
            both, (x, y, share) = _twice(grad), batch
            loss = self._kernel.gradient(_twice(weights), _twice(x), _twice(y), _twice(share), both)[:1]
            grad.copy_(both[:1])
        _correct(grad, weights, self._extra, self._pull, self._clip)
        self._rule.step(self._grad, lr, now)
        return loss

    def models(self) -> Tensor:
        return self._weights[:, : self._size]


def _starts(members: list[Member]) -> Tensor:
    """The starting models, a row each."""
    first = members[0].start.trainable
    if all(member.start.vector is members[0].start.vector for member in members):  # as after a broadcast
        return first.expand(len(members), -1)
    return torch.stack([member.start.trainable for member in members])


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


def _hand_out(members: list[Member], models: Tensor, losses: Tensor) -> None:
    for at, (member, loss) in enumerate(zip(members, losses.tolist(), strict=True)):
        rows, spec = len(member.rows), member.spec
        if member.steps:
            seen = _seen(rows, spec, member.steps)
            member.site.note(loss=loss / seen)
        member.site.note(together=len(members))
        weight = float(rows) if member.given.get("by", "samples") == "samples" else 1.0
        member.result = Params(models[at], member.start.counters, member.start.layout, weight)


def _seen(rows: int, spec: LocalSpec, steps: int) -> int:
    """Samples that so many steps look at."""
    each = steps_per_epoch(rows, spec)
    whole = min(rows, each * spec.batch)
    epochs, rest = divmod(steps, each)
    return epochs * whole + min(rest * spec.batch, whole)
