"""Models sampled around those of the clients, as in FedBE: from a Gaussian, or as mixtures with Dirichlet shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor

from headwater.core.params import By, Params, average_of, cut, mean
from headwater.specs import DistillSpec
from headwater.tasks.cost import Cost, first_of
from headwater.tasks.distill import distill, distill_cost
from headwater.tasks.task import TaskContext, task

Sampler = Literal["gaussian", "gaussian-as-coded", "dirichlet"]
_FLOOR = 1e-5  # smallest variance of a unit delta, as in FedBE's code


@task("average", returns=lambda ctx, models, count, **_: dict.fromkeys(range(count), next(iter(models.values()))))
def sample_models(
    ctx: TaskContext,
    models: Mapping[str, Params],
    count: int,
    sampler: Sampler = "gaussian",
    base: Params | None = None,
    concentration: float = 1.0,
    scale: float = 0.1,
    by: By = "samples",
) -> dict[int, Params]:
    """Sample models around those of clients.

    Only trainable parameters get noise, since noise could make the variances of batch norm negative.

    Args:
        ctx: where it runs.
        models: client → model.
        count: how many to sample.
        sampler: "gaussian": the weighted mean plus noise with the weighted variance of each parameter.
            "gaussian-as-coded": the same for deltas from `base`, each tensor scaled to unit length. The noise is
            multiplied by `scale`, and the result is scaled back to the mean length. "dirichlet": mixtures with shares
            from Dir(concentration).
        base: the model that the clients started from.
        concentration: of the Dirichlet distribution.
        scale: factor of the noise of "gaussian-as-coded".
        by: weight of a client, as in `average`.
    """
    centre = average_of(models, by)
    if sampler == "dirichlet":
        shares = [iter(ctx.rng.dirichlet([concentration] * len(models)).tolist()) for _ in range(count)]
        drawn = [mean(models.values(), lambda _, share=share: next(share)) for share in shares]  # type: ignore[misc]
        return {i: replace(model, weight=centre.weight) for i, model in enumerate(drawn)}
    if sampler == "gaussian":
        middle, deviation = centre.trainable, variance(models, centre, by).sqrt()
    else:
        if base is None:
            raise ValueError("sampler = 'gaussian-as-coded' needs the model that the clients started from")
        middle, deviation = _unit_deltas(models, base)
        deviation = scale * deviation
    size, result = centre.layout.size, {}
    for i in range(count):
        noise = torch.from_numpy(ctx.rng.standard_normal(size)).to(centre.vector.dtype)
        vector = centre.vector.clone()
        vector[:size] = middle + deviation * noise
        result[i] = replace(centre, vector=vector)
    return result


def variance(models: Mapping[str, Params], centre: Params, by: By = "samples") -> Tensor:
    """Σ_k p_k (w_k − mean)² of each trained parameter."""
    weights = [model.weight if by == "samples" else 1.0 for model in models.values()]
    result = torch.zeros_like(centre.trainable)
    for model, weight in zip(models.values(), weights, strict=True):
        result += weight / sum(weights) * (model.trainable - centre.trainable).square()
    return result


def _unit_deltas(models: Mapping[str, Params], base: Params) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the samples, per parameter.

    Both are computed per tensor on deltas of unit length and scaled back to the mean length. All clients have the same
    weight.
    """
    shapes = base.layout.trainable
    middle, deviation = base.trainable.clone(), torch.zeros_like(base.trainable)
    deltas = [cut(model.trainable - base.trainable, shapes) for model in models.values()]
    middle_parts, deviation_parts = cut(middle, shapes), cut(deviation, shapes)
    for name in middle_parts:
        lengths = [float(delta[name].norm()) for delta in deltas]
        units = torch.stack(
            [d[name] / length if length else d[name] for d, length in zip(deltas, lengths, strict=True)]
        )
        length = sum(lengths) / len(lengths)
        spread = (units.square().mean(0) - units.mean(0).square()).clamp_min(_FLOOR).sqrt()
        middle_parts[name] += length * units.mean(0)
        deviation_parts[name] += length * spread
    return middle, deviation


@task("average", returns=first_of("models"))
def tally(ctx: TaskContext, models: Mapping[str, Tensor]) -> Tensor:
    """The sum of several senders' label counts."""
    return torch.stack(list(models.values())).sum(0)


@task("distill", cost=distill_cost, returns="start")
def distill_per_class(ctx: TaskContext, spec: DistillSpec, **inputs: Any) -> Params:
    """`distill` with its loss divided by the number of classes, as FedBE's code has it.

    Under SGD this equals a smaller step size with a larger weight decay: v ← βv + g/C + λw, w ← w − ηv becomes, with
    u = C·v, u ← βu + g + Cλw, w ← w − (η/C)u.
    """
    smaller = replace(spec, lr=spec.lr / ctx.classes, weight_decay=spec.weight_decay * ctx.classes)
    return distill(ctx, spec=smaller, **inputs)


@task(
    "distill",
    cost=Cost(),
    returns=lambda ctx, models, count: models | {f"swag{i}": next(iter(models.values())) for i in range(count)},
)
def with_swag(ctx: TaskContext, models: Mapping[str, Params], count: int) -> dict[str, Params]:
    """Return the models and `count` sampled ones, whose architectures alternate.

    Of K models of an architecture, with mean m, deviations D = (w_1 − m, …, w_K − m) and variance σ² = Σ_k D_k²/K of
    each parameter, a draw is m + σ·z/√2 + D·u/√(2(K − 1)), with z and u standard normal: one half of the covariance is
    diagonal, the other of rank K − 1. If an architecture has only one model, the draw is a copy of it. Batch-norm
    statistics are those of the mean. A sampled model has the mean weight of the models of its architecture.
    """
    teams: dict[str, list[Params]] = {}
    for model in models.values():
        teams.setdefault(model.layout.arch, []).append(model)
    result, by_arch = dict(models), list(teams.values())
    for i in range(count):
        result[f"swag{i}"] = _draw(ctx, by_arch[i % len(by_arch)])
    return result


def _draw(ctx: TaskContext, team: list[Params]) -> Params:
    centre = mean(team, lambda _: 1.0)
    deviations = torch.stack([model.trainable - centre.trainable for model in team])
    per_parameter, per_model = (ctx.rng.standard_normal(size) for size in (centre.layout.size, len(team)))
    z, u = (torch.from_numpy(drawn).to(deviations.dtype) for drawn in (per_parameter, per_model))
    vector = centre.vector.clone()
    noise = deviations.square().mean(0).sqrt() * z / sqrt(2) + u @ deviations / sqrt(2 * max(1, len(team) - 1))
    vector[: centre.layout.size] += noise
    return replace(centre, vector=vector, weight=centre.weight / len(team))
