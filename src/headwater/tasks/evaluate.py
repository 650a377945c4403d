"""Judging models: at the server on the common test set, at clients on theirs. Only numbers travel from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.specs import Mix, Weights
from headwater.tasks.ensemble import ensemble
from headwater.tasks.task import Ask, TaskContext, task
from headwater.tasks.teacher_outputs import Answers, judge, known, on_test


@task("evaluate")
def evaluate(ctx: TaskContext, model: Params) -> dict[str, Any]:
    """Accuracy, loss, which test samples were right, and the confusion matrix (true class by row)."""
    return examine(ctx, model, ctx.test)


@task("evaluate", asks={"answers": Ask("members", on_test, "test")})
def evaluate_team(
    ctx: TaskContext,
    members: Mapping[str, Params],
    mix: Mix,
    weights: Weights = "uniform",
    answers: Answers | None = None,
) -> dict[str, Any]:
    """The same of models of any architecture that predict together."""
    rows = ctx.test
    probs = ensemble(ctx, members, rows.x, known(answers), mix=mix, weights=weights).probs
    loss = float(F.nll_loss(probs.clamp_min(torch.finfo(probs.dtype).tiny).log(), rows.y))
    return _marks(ctx, probs.argmax(1), rows.y, loss)


def examine(ctx: TaskContext, model: Params, rows: Examples) -> dict[str, Any]:
    net = ctx.flat_module(model)
    output = net.outputs(rows.x, helpers=ctx.helpers)
    with torch.no_grad():
        loss = float(net.loss(output, rows.y))
    return _marks(ctx, output.argmax(1), rows.y, loss)


def _marks(ctx: TaskContext, guess: Tensor, y: Tensor, loss: float) -> dict[str, Any]:
    cells = torch.bincount(y * ctx.classes + guess, minlength=ctx.classes**2)
    correct = guess == y
    return {
        "accuracy": float(correct.double().mean()),
        "loss": loss,
        "correct": correct,
        "confusion": cells.view(ctx.classes, ctx.classes),
    }


@task("evaluate")
def class_accuracy(ctx: TaskContext, outcome: dict[str, Any]) -> Tensor:
    """How often each class is recognised."""
    return recognised(outcome["confusion"])


def recognised(confusion: Tensor) -> Tensor:
    cells = confusion.double()
    return cells.diagonal() / cells.sum(1).clamp_min(1)


def _expected_of_all(contexts: Sequence[TaskContext], inputs: Sequence[Mapping[str, Any]]) -> list[float]:
    """`expected_accuracy` at several homes, in one product."""
    if not contexts:
        return []
    homes = tuple(ctx.home for ctx in contexts)
    shares = contexts[0].once(("label shares", homes), lambda: np.stack([label_share(ctx).numpy() for ctx in contexts]))
    told = {id(given["by_class"]): given["by_class"].numpy() for given in inputs}  # a broadcast is one for all
    by_class = next(iter(told.values())) if len(told) == 1 else np.stack([told[id(g["by_class"])] for g in inputs])
    # Added up class by class, so that a home's number does not depend on who else is asked.
    found: list[float] = np.cumsum(shares * by_class, axis=1)[:, -1].tolist()
    return found


@task("evaluate", together=_expected_of_all)
def expected_accuracy(ctx: TaskContext, by_class: Tensor) -> float:
    """What a model with these accuracies by class gets right on this home's mix of labels."""
    return _expected_of_all([ctx], [{"by_class": by_class}])[0]


def label_share(ctx: TaskContext) -> Tensor:
    rows = ctx.rows
    assert rows is not None
    labels = ctx.table.y[torch.as_tensor(rows)]  # the inputs are not needed
    return torch.bincount(labels, minlength=ctx.classes).double() / len(labels)


@task("evaluate")
def own_accuracy(ctx: TaskContext, model: Params) -> float | None:
    """Accuracy on the part of its data that this home keeps for its own test."""
    rows = ctx.own_test
    return None if rows is None else judge(ctx.flat_module(model), rows)["accuracy"]


@task("evaluate")
def common_test(ctx: TaskContext) -> Examples:
    """The common test set, as a value that can be moved to where personal models live."""
    return ctx.test


@task("evaluate")
def score_on(ctx: TaskContext, model: Params, rows: Examples) -> dict[str, float]:
    """A personal model on given rows, and what that means for this home's own mix of labels."""
    found = examine(ctx, model, rows)
    own_mix = float((label_share(ctx) * recognised(found["confusion"])).sum())
    return {"accuracy": found["accuracy"], "loss": found["loss"], "own_mix": own_mix}
