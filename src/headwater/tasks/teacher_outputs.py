"""What models say of the rows that they are asked about: worked out once, and here or in jobs of their own.

A task that declares `asks={"answers": Ask("teachers", answer, "inputs")}` may find in its input `answers` what those in
its input `teachers` say: {group: {name: answer}}. Whoever is not in it is asked by the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.core.tree import ROOT
from headwater.data.base import Examples
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.task import TaskContext, task

Answer = dict[str, Tensor]  # outputs by what was asked about: inputs, val
Answers = Mapping[str, Mapping[str, Any]]  # by group and name


def judge(net: FlatModule, rows: Examples) -> dict[str, float]:
    """Accuracy and loss of what the net holds."""
    output = net.outputs(rows.x)
    with torch.no_grad():
        loss = float(net.loss(output, rows.y))
    return {"accuracy": float((output.argmax(1) == rows.y).double().mean()), "loss": loss}


@task("distill")
def answer(
    ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1), val: Any = None, hold: float = 0.0
) -> dict[str, Answer]:
    """What models say of the home's inputs and of the rows that a student is judged by, as `distill` needs it."""
    rows = judged_by(ctx, val, hold)
    return {name: said_by(ctx, member, True, rows) for name, member in _some(members, part).items()}


@task("distill")
def score(ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """The accuracy of models on the server's validation set."""
    rows = ctx.validation
    if not len(rows):
        raise LookupError("dropping the worst members needs a validation set; set data.validation above 0")
    return {name: judge(ctx.flat_module(member), rows)["accuracy"] for name, member in _some(members, part).items()}


@task("evaluate")
def on_test(ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
    """What models say of the test set."""
    return {name: ctx.flat_module(member).outputs(ctx.test.x) for name, member in _some(members, part).items()}


def _some(members: Mapping[str, Params], part: tuple[int, int]) -> dict[str, Params]:
    """The members of one part of so many, in order."""
    number, parts = part
    names = list(members)
    return {name: members[name] for name in names[number * len(names) // parts : (number + 1) * len(names) // parts]}


def said_by(ctx: TaskContext, member: Params, inputs: bool, val: Examples | None) -> Answer:
    net = ctx.flat_module(member)
    said = {"inputs": net.outputs(ctx.inputs)} if inputs else {}
    return said if val is None else said | {"val": net.outputs(val.x)}


def judged_by(ctx: TaskContext, val: Examples | None, hold: float) -> Examples | None:
    """The rows with labels that came with the task, or the server's own; none if a share of the home's is held out."""
    if hold and ctx.data is not None:
        return None
    if val is None and ctx.home == ROOT:
        val = ctx.validation
    return val if val is not None and len(val) else None


def known(answers: Answers | None) -> dict[str, Any]:
    """Answers by name."""
    return {name: said for group in (answers or {}).values() for name, said in group.items()}


@dataclass(frozen=True)
class Panel:
    """Teachers, and the rows that they are asked about: inputs to distil on, and rows with labels to judge by.

    If a share of the home's rows is held out to judge by, teachers are asked about all of them, and `kept` and `held`
    tell them apart. So an answer does not depend on chance.
    """

    ctx: TaskContext
    teachers: Mapping[str, Params]
    answers: Mapping[str, Answer]
    x: Tensor
    val: Examples | None
    kept: Tensor | None = None
    held: Tensor | None = None

    @staticmethod
    def of(
        ctx: TaskContext, teachers: Mapping[str, Params], answers: Answers | None, val: Examples | None, hold: float
    ) -> Panel:
        x, val, told = ctx.inputs, judged_by(ctx, val, hold), known(answers)
        if not hold or ctx.data is None:
            return Panel(ctx, teachers, told, x, val)
        rows = len(x)
        order = torch.from_numpy(ctx.rng.permutation(rows))
        count = min(max(1, round(hold * rows)), max(1, rows - 1))  # at least one, and one left to learn from
        kept, held = order[count:] if rows > 1 else order, order[:count]
        return Panel(ctx, teachers, told, x[kept], ctx.data.take(held), kept, held)

    def hear(self, inputs: bool, val: bool) -> Iterator[tuple[str, float, Answer]]:
        """One after the other: name, samples, and what it says of these two; who was not asked yet is asked now."""
        wanted = (inputs or (val and self.held is not None), self.val if val and self.held is None else None)
        for name, member in self.teachers.items():
            yield name, member.weight, self._answer(name, member, *wanted)  # which is not kept here

    def _answer(self, name: str, member: Params, inputs: bool, val: Examples | None) -> Answer:
        told = self.answers[name] if name in self.answers else said_by(self.ctx, member, inputs, val)
        if self.held is None or "inputs" not in told:
            return told
        return {"inputs": told["inputs"][self.kept], "val": told["inputs"][self.held]}
