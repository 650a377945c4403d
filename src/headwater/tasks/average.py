"""Averages as tasks: they run at the sector or at the server, wherever the models live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.core.params import By, Params, average_of
from headwater.tasks.task import TaskContext, task


@task("average", streaming=("models",))
def average(ctx: TaskContext, models: Mapping[str, Params], by: By = "samples") -> Params:
    """The mean by the samples that contributed, or with equal weight. Folds models as they come."""
    return average_of(models, by)


@task("average")
def average_by(
    ctx: TaskContext, models: Mapping[str, Params], group: Mapping[str, Any], by: By = "samples"
) -> dict[Any, Params]:
    """One mean for each group of senders."""
    members: dict[Any, dict[str, Params]] = {}
    for sender, model in models.items():
        members.setdefault(group[sender], {})[sender] = model
    return {name: average_of(members[name], by) for name in members}


@task("average")
def initial(ctx: TaskContext, arch: str, number: int = 0) -> Params:
    """A freshly drawn model of this architecture; each number gives another one, 0 the run's own start."""
    return ctx.initial(arch, number)


@task("average")
def merge(
    ctx: TaskContext, parts: Mapping[Any, Mapping[Any, Params]], otherwise: Mapping[Any, Params], by: By = "samples"
) -> dict[Any, Params]:
    """Means by group of {sender: {group: model}}; a group that nobody sent keeps the model it had."""
    found = {name: {sender: part[name] for sender, part in parts.items() if name in part} for name in otherwise}
    return {name: average_of(found[name], by) if found[name] else old for name, old in otherwise.items()}
