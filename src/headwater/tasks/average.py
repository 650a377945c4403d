"""Averages and starting models as tasks. They run wherever the models are: at a sector or at the server."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.params import By, Params, average_of
from headwater.tasks.cost import first_of
from headwater.tasks.task import TaskContext, task


@task("average", streaming=("models",), returns=first_of("models"))
def average(ctx: TaskContext, models: Mapping[str, Params], by: By = "samples") -> Params:
    """The weighted mean of models, folded as they arrive.

    Args:
        ctx: where it runs.
        models: sender → model; all of one architecture.
        by: "samples" weighs a model by the samples that it was trained on, "uniform" weighs all alike.

    Returns:
        The mean. Its weight is the sum of the models' weights.
    """
    return average_of(models, by)


@task("average", returns=lambda ctx, arch, **_: ctx.outline(arch))
def initial(ctx: TaskContext, arch: str, number: int = 0) -> Params:
    """A freshly drawn model.

    Args:
        ctx: where it runs.
        arch: the architecture.
        number: 0 is the start of the run; each other number gives another draw.
    """
    return ctx.initial(arch, number)
