"""Evaluation: at the server on the common test set, at clients on their own. Only numbers leave a client from here."""

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
from headwater.tasks.attack import TARGET, patched
from headwater.tasks.cost import ITSELF, Ask, Cost, passes_through, shaped
from headwater.tasks.ensemble import ensemble
from headwater.tasks.flat_module import precise, share
from headwater.tasks.task import TaskContext, task
from headwater.tasks.teacher_outputs import Outputs, by_name, on_test, scores_of

SUCCESS = "attack_success"


def _score_outline(ctx: TaskContext, **_: Any) -> dict[str, Any]:
    correct = shaped(len(ctx.test), dtype=torch.bool)
    confusion = shaped(ctx.classes, ctx.classes, dtype=torch.int64)
    scores = {"accuracy": 0.0, "loss": 0.0, "correct": correct, "confusion": confusion}
    return scores | ({SUCCESS: 0.0} if ctx.backdoored else {})


@task(
    "evaluate",
    cost=lambda ctx, model: Cost(passes=passes_through([model], len(ctx.test))),
    returns=_score_outline,
)
def evaluate(ctx: TaskContext, model: Params) -> dict[str, Any]:
    """Test a model on the common test set.

    Returns:
        `accuracy`, `loss`, `correct` (one bool per test sample) and `confusion` (counts; one row per true class). In a
        run with a simulated backdoor also `attack_success`: the share of test samples of other classes that the patch
        turns into the attackers' class.
    """
    scores = examine(ctx, model, ctx.test)
    if ctx.backdoored:
        rows = ctx.test
        guess = ctx.flat_module(model).outputs(patched(rows.x, float(rows.x.max()))).argmax(1)
        scores[SUCCESS] = float((guess[rows.y != TARGET] == TARGET).double().mean())
    return scores


@task(
    "evaluate",
    cost=lambda ctx, model: Cost(passes=passes_through([model], len(ctx.validation))),
    returns=lambda ctx, **_: {"accuracy": 0.0, "loss": 0.0},
)
def validate(ctx: TaskContext, model: Params) -> dict[str, float]:
    """Accuracy and loss of a model on the server's validation set."""
    found = examine(ctx, model, ctx.validation)
    return {key: found[key] for key in ("accuracy", "loss")}


@task(
    "evaluate",
    cost=lambda ctx, members, **_: Cost(passes=passes_through(members.values(), len(ctx.validation))),
    returns=lambda ctx, **_: {"accuracy": 0.0, "loss": 0.0},
)
def validate_team(
    ctx: TaskContext, members: Mapping[str, Params], mix: Mix, weights: Weights = "uniform"
) -> dict[str, float]:
    """Accuracy and loss of an ensemble on the server's validation set; arguments as for `evaluate_team`."""
    rows = ctx.validation
    probs = ensemble(ctx, members, rows.x, mix=mix, weights=weights).probs
    loss = float(F.nll_loss(probs.clamp_min(torch.finfo(probs.dtype).tiny).log(), rows.y))
    return {"accuracy": float((probs.argmax(1) == rows.y).double().mean()), "loss": loss}


def _team_cost(ctx: TaskContext, members: Mapping[str, Params], answers: Any = None, **_: Any) -> Cost:
    return Cost() if answers is not None else Cost(passes=passes_through(members.values(), len(ctx.test)))


@task("evaluate", asks={"answers": Ask("members", on_test, "test")}, cost=_team_cost, returns=_score_outline)
def evaluate_team(
    ctx: TaskContext,
    members: Mapping[str, Params],
    mix: Mix,
    weights: Weights = "uniform",
    answers: Outputs | None = None,
) -> dict[str, Any]:
    """Test an ensemble on the common test set; the result is as that of `evaluate`.

    Args:
        ctx: where it runs.
        members: the models, of any architectures.
        mix: what is averaged over members; see `Fold`.
        weights: how much each member counts; see `Fold`.
        answers: outputs of members that were computed beforehand.
    """
    rows = ctx.test
    probs = ensemble(ctx, members, rows.x, by_name(answers), mix=mix, weights=weights).probs
    loss = float(F.nll_loss(probs.clamp_min(torch.finfo(probs.dtype).tiny).log(), rows.y))
    return _scores(ctx, probs.argmax(1), rows.y, loss)


def examine(ctx: TaskContext, model: Params, rows: Examples) -> dict[str, Any]:
    """What `evaluate` returns, for these rows."""
    net = ctx.flat_module(model)
    output = net.outputs(rows.x, helpers=ctx.helpers)
    with torch.no_grad():
        loss = float(net.loss(output, rows.y))
    return _scores(ctx, output.argmax(1), rows.y, loss)


def _scores(ctx: TaskContext, guess: Tensor, y: Tensor, loss: float) -> dict[str, Any]:
    cells = torch.bincount(y * ctx.classes + guess, minlength=ctx.classes**2)
    correct = guess == y
    return {
        "accuracy": share(correct),
        "loss": loss,
        "correct": correct,
        "confusion": cells.view(ctx.classes, ctx.classes),
    }


@task("evaluate", returns=lambda ctx, **_: shaped(ctx.classes, dtype=torch.float64))
def class_accuracy(ctx: TaskContext, outcome: dict[str, Any]) -> Tensor:
    """Accuracy of each class, from what `evaluate` returned."""
    return recognised(outcome["confusion"])


def recognised(confusion: Tensor) -> Tensor:
    """Accuracy of each class; 0 for a class without samples."""
    cells = precise(confusion)
    return cells.diagonal() / cells.sum(1).clamp_min(1)


def _expected_of_all(contexts: Sequence[TaskContext], inputs: Sequence[Mapping[str, Any]]) -> list[float]:
    """`expected_accuracy` at several homes, in one product."""
    if not contexts:
        return []
    homes = tuple(ctx.home for ctx in contexts)
    shares = contexts[0].once(("label shares", homes), lambda: np.stack([label_share(ctx).numpy() for ctx in contexts]))
    given = [each["by_class"] for each in inputs]
    broadcast = all(each is given[0] for each in given)
    by_class = given[0].cpu().numpy() if broadcast else np.stack([each.cpu().numpy() for each in given])
    # Added up class by class, so that the number of a home does not depend on which other homes are computed with it.
    accuracies: list[float] = np.cumsum(shares * by_class, axis=1)[:, -1].tolist()
    return accuracies


@task("evaluate", together=_expected_of_all, returns=lambda ctx, **_: 0.0)
def expected_accuracy(ctx: TaskContext, by_class: Tensor) -> float:
    """Accuracy that a model with these accuracies by class has on this home's label distribution."""
    return _expected_of_all([ctx], [{"by_class": by_class}])[0]


def label_share(ctx: TaskContext) -> Tensor:
    """Share of each class among this home's training rows."""
    rows = ctx.rows
    assert rows is not None
    labels = ctx.table.y[torch.as_tensor(rows)]  # the inputs are not needed
    return torch.bincount(labels, minlength=ctx.classes).double() / len(labels)


@task(
    "evaluate",
    cost=lambda ctx, model: Cost(passes=passes_through([model], ctx.test_samples)),
    returns=lambda ctx, **_: 0.0 if ctx.test_samples else None,
)
def own_accuracy(ctx: TaskContext, model: Params) -> float | None:
    """Accuracy on the rows that this home keeps for its own test; None if it has none."""
    rows = ctx.own_test
    return None if rows is None else scores_of(ctx.flat_module(model), rows)["accuracy"]


@task("evaluate", returns=ITSELF)
def common_test(ctx: TaskContext) -> Examples:
    """The common test set, as a value that can be moved to where personal models are."""
    return ctx.test


@task(
    "evaluate",
    cost=lambda ctx, model, rows: Cost(passes=passes_through([model], len(rows))),
    returns=lambda ctx, **_: {"accuracy": 0.0, "loss": 0.0, "own_mix": 0.0},
)
def score_on(ctx: TaskContext, model: Params, rows: Examples) -> dict[str, float]:
    """Accuracy and loss of a personal model on these rows, and `own_mix`: its accuracy on this home's label mix."""
    outcome = examine(ctx, model, rows)
    own_mix = float((label_share(ctx) * recognised(outcome["confusion"])).sum())
    return {"accuracy": outcome["accuracy"], "loss": outcome["loss"], "own_mix": own_mix}
