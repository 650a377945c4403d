"""From an average to the student that it was taught into: the whole way, a part of it, or as far as validation says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from headwater.core.params import Params
from headwater.tasks.cost import Cost, passes_through
from headwater.tasks.task import TaskContext, task
from headwater.tasks.teacher_outputs import scores_of

Step = float | Literal["validated"]
STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # what validation chooses among; in a tie the shortest


def _cost(ctx: TaskContext, average: Params, step: Step = 1.0, **_: Any) -> Cost:
    asked = len(ctx.validation) * len(STEPS) if step == "validated" else 0
    return Cost(passes=passes_through([average], asked))


@task("distill", cost=_cost, returns="average")
def between(
    ctx: TaskContext,
    average: Params,
    student: Params,
    step: Step,
    metric: Literal["loss", "accuracy"] = "loss",
) -> Params:
    """average + step · (student − average), statistics of batch norm included.

    With "validated" the step is the best of 0, ¼, ½, ¾ and 1 on the server's validation set. 0 is the average itself,
    so by validation the result is never worse than the average.

    Args:
        ctx: where it runs: the server.
        average: the model before it was taught.
        student: the same model after it was taught.
        step: how far to go, or "validated".
        metric: what validation compares.

    Returns:
        The model, with the weight of the student.
    """
    if step != "validated":
        return _on_the_way(average, student, step)
    sign = -1.0 if metric == "loss" else 1.0
    scores = {s: scores_of(ctx.flat_module(_on_the_way(average, student, s)), ctx.validation) for s in STEPS}
    best = max(STEPS, key=lambda s: (sign * scores[s][metric], -s))
    ctx.note(step=best, average_score=scores[0.0][metric], chosen_score=scores[best][metric])
    return _on_the_way(average, student, best)


def _on_the_way(average: Params, student: Params, step: float) -> Params:
    if step in (0.0, 1.0):  # exactly: no rounding where nothing is mixed
        return replace(student if step else average, weight=student.weight)
    return replace(student, vector=average.vector.lerp(student.vector, step))
