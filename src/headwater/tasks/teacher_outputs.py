"""Outputs of models on given rows, computed by the task that needs them or beforehand in jobs of their own.

A task that declares `asks={"answers": Ask("teachers", answer, "inputs")}` may get in its input `answers` the outputs of
the models in its input `teachers`, as {group: {name: outputs}}. It computes those that are missing itself.
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
from headwater.tasks.cost import Cost, passes_through, shaped
from headwater.tasks.flat_module import FlatModule, share
from headwater.tasks.task import TaskContext, task

Output = dict[str, Tensor]  # logits of one model, by kind of rows: inputs, val
Outputs = Mapping[str, Mapping[str, Any]]  # by group and name


def scores_of(net: FlatModule, rows: Examples) -> dict[str, float]:
    """Accuracy and loss of the model that the net holds."""
    output = net.outputs(rows.x)
    with torch.no_grad():
        loss = float(net.loss(output, rows.y))
    return {"accuracy": share(output.argmax(1) == rows.y), "loss": loss}


def _answer_cost(
    ctx: TaskContext, members: Mapping[str, Params], val: Any = None, hold: float = 0.0, **more: Any
) -> Cost:
    rows = input_count(ctx) + validation_count(ctx, val, hold)
    return Cost(passes=passes_through(_part_of(members, **more).values(), rows))


def _answer_outline(
    ctx: TaskContext, members: Mapping[str, Params], val: Any = None, hold: float = 0.0, **more: Any
) -> dict[str, Output]:
    kinds = {"inputs": input_count(ctx), "val": validation_count(ctx, val, hold)}
    return {
        name: {
            kind: shaped(rows, ctx.classes, dtype=member.vector.dtype)
            for kind, rows in kinds.items()
            if rows or kind == "inputs"
        }
        for name, member in _part_of(members, **more).items()
    }


@task("distill", cost=_answer_cost, returns=_answer_outline)
def answer(
    ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1), val: Any = None, hold: float = 0.0
) -> dict[str, Output]:
    """Outputs of models on the home's inputs and on the rows that a student is validated with, as `distill` needs them.

    Args:
        ctx: where it runs.
        members: name → model.
        part: (number, of how many): which part of the members.
        val: as in `distill`.
        hold: as in `distill`.
    """
    rows = validation_rows(ctx, val, hold)
    return {name: outputs_of(ctx, member, True, rows) for name, member in _part_of(members, part).items()}


@task(
    "distill",
    cost=lambda ctx, members, **part: Cost(
        passes=passes_through(_part_of(members, **part).values(), len(ctx.validation))
    ),
    returns=lambda ctx, members, **part: dict.fromkeys(_part_of(members, **part), 0.0),
)
def score(ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """Accuracy of models on the server's validation set; `part` as in `answer`."""
    rows = ctx.validation
    if not len(rows):
        raise LookupError("dropping the worst members needs a validation set; set data.validation above 0")
    return {
        name: scores_of(ctx.flat_module(member), rows)["accuracy"] for name, member in _part_of(members, part).items()
    }


@task(
    "evaluate",
    cost=lambda ctx, members, **part: Cost(passes=passes_through(_part_of(members, **part).values(), len(ctx.test))),
    returns=lambda ctx, members, **part: {
        name: shaped(len(ctx.test), ctx.classes, dtype=member.vector.dtype)
        for name, member in _part_of(members, **part).items()
    },
)
def on_test(ctx: TaskContext, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
    """Outputs of models on the test set; `part` as in `answer`."""
    return {name: ctx.flat_module(member).outputs(ctx.test.x) for name, member in _part_of(members, part).items()}


def _part_of(members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, Params]:
    """The members of one part of so many, in order."""
    number, parts = part
    names = list(members)
    return {name: members[name] for name in names[number * len(names) // parts : (number + 1) * len(names) // parts]}


def outputs_of(ctx: TaskContext, member: Params, inputs: bool, val: Examples | None) -> Output:
    """Outputs of a model on the home's inputs, if `inputs`, and on validation rows, if there are any."""
    net = ctx.flat_module(member)
    outputs = {"inputs": net.outputs(ctx.inputs)} if inputs else {}
    return outputs if val is None else outputs | {"val": net.outputs(val.x)}


def validation_rows(ctx: TaskContext, val: Examples | None, hold: float) -> Examples | None:
    """Rows that came with the task, or the server's validation set; None if a share of the home's rows is held out."""
    if hold and ctx.data is not None:
        return None
    if val is None and ctx.home == ROOT:
        val = ctx.validation
    return val if val is not None and len(val) else None


def validation_count(ctx: TaskContext, val: Examples | None, hold: float) -> int:
    """How many rows `validation_rows` gives, without taking the home's rows out of the table."""
    if hold and ctx.samples:
        return 0
    return len(ctx.validation) if val is None and ctx.home == ROOT else 0 if val is None else len(val)


def input_count(ctx: TaskContext) -> int:
    """How many rows `ctx.inputs` has, without taking them out of the table."""
    return len(ctx.inputs) if ctx.home == ROOT else ctx.samples


def by_name(outputs: Outputs | None) -> dict[str, Any]:
    """Outputs without their groups."""
    return {name: output for group in (outputs or {}).values() for name, output in group.items()}


@dataclass(frozen=True)
class Panel:
    """Teachers and the rows that they are asked about.

    If a share of the home's rows is held out for validation, teachers compute outputs for all rows of the home, so that
    their outputs do not depend on the draw.

    Args:
        ctx: where it runs.
        teachers: name → model.
        outputs: outputs that were computed beforehand.
        x: inputs to distil on.
        val: rows with labels to validate with.
        kept: which of the home's rows are distilled on, where a share is held out.
        held: which of them are held out.
    """

    ctx: TaskContext
    teachers: Mapping[str, Params]
    outputs: Mapping[str, Output]
    x: Tensor
    val: Examples | None
    kept: Tensor | None = None
    held: Tensor | None = None

    @staticmethod
    def of(
        ctx: TaskContext, teachers: Mapping[str, Params], answers: Outputs | None, val: Examples | None, hold: float
    ) -> Panel:
        """The panel of a `distill` task, from its inputs."""
        x, val, outputs = ctx.inputs, validation_rows(ctx, val, hold), by_name(answers)
        if not hold or ctx.data is None:
            return Panel(ctx, teachers, outputs, x, val)
        rows = len(x)
        order: Tensor = ctx.put(torch.from_numpy(ctx.rng.permutation(rows)))
        count = held_out(rows, hold)
        kept, held = order[count:] if rows > 1 else order, order[:count]
        own = Examples(ctx.data.x[held], ctx.data.y[held])
        return Panel(ctx, teachers, outputs, x[kept], own, kept, held)

    def each(self, inputs: bool, val: bool) -> Iterator[tuple[str, float, Output]]:
        """Name, weight and outputs of one teacher after the other; outputs are not kept."""
        wanted = (inputs or (val and self.held is not None), self.val if val and self.held is None else None)
        for name, member in self.teachers.items():
            yield name, member.weight, self._outputs(name, member, *wanted)

    def _outputs(self, name: str, member: Params, inputs: bool, val: Examples | None) -> Output:
        output = self.outputs[name] if name in self.outputs else outputs_of(self.ctx, member, inputs, val)
        if self.held is None or "inputs" not in output:
            return output
        return {"inputs": output["inputs"][self.kept], "val": output["inputs"][self.held]}


def held_out(rows: int, share: float) -> int:
    """How many rows are held out for validation: at least one, and one is left to learn from where there are two."""
    return min(max(1, round(share * rows)), max(1, rows - 1)) if share else 0
