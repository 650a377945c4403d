"""Models made of models, as tasks: averages, sums of label counts, starting models, and models sampled around others.

They run wherever the models are: at a sector or at the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from headwater.core.params import By, Params, average_of, cut, mean
from headwater.core.tree import ROOT
from headwater.tasks.cost import first_of
from headwater.tasks.privacy import mean_and_influence
from headwater.tasks.robust import fused
from headwater.tasks.sums import ArraySum, models_by
from headwater.tasks.task import TaskContext, task

Sampler = Literal["gaussian", "gaussian-as-coded", "dirichlet"]
_FLOOR = 1e-5  # smallest variance of a unit delta, as in FedBE's code


@task(
    "average",
    streaming=("models",),
    returns=first_of("models"),
    sums=("models", models_by),
    derived=True,
    takes_bound=True,
)
def average(ctx: TaskContext, models: Mapping[str, Params], by: By = "samples", bound: float = 0.0) -> Params:
    """The weighted mean of models, folded as they arrive; by the rule of `[robust]` where one is set for this tier, and
    with noise where `[privacy]` adds it here.

    Args:
        ctx: where it runs.
        models: sender → model; all of one architecture.
        by: "samples" weighs a model by the samples that it was trained on, "uniform" weighs all alike.
        bound: largest norm of an update in this round; 0: as `[privacy]` says.

    Returns:
        The mean. Its weight is the sum of the models' weights.
    """
    return _combined(ctx, models, by, bound)


@task("average", returns="like", derived=True, takes_bound=True)
def average_like(
    ctx: TaskContext, models: Mapping[str, Params], like: Params, by: By = "samples", bound: float = 0.0
) -> Params:
    """The mean of those models that have the architecture of `like`, or `like` itself where none has."""
    alike = {name: model for name, model in models.items() if model.layout.arch == like.layout.arch}
    return _combined(ctx, alike, by, bound) if alike else like


def _combined(ctx: TaskContext, models: Mapping[str, Params], by: By, bound: float) -> Params:
    privacy = ctx.privacy
    if not privacy.adds_noise(at="server" if ctx.home == ROOT else "sector"):
        return fused(models, by, ctx.robust)
    mean, most = mean_and_influence(models.values(), by)
    return ctx.hidden(mean, privacy.of_updates * (bound or privacy.clip) * most)


@task("average", returns=first_of("models"), sums=("models", lambda **_: ArraySum()))
def tally(ctx: TaskContext, models: Mapping[str, Tensor]) -> Tensor:
    """The sum of several senders' label counts."""
    return torch.stack(list(models.values())).sum(0)


@task("average", returns=lambda ctx, arch, **_: ctx.outline(arch), derived=True)
def initial(ctx: TaskContext, arch: str, number: int = 0) -> Params:
    """A freshly drawn model.

    Args:
        ctx: where it runs.
        arch: the architecture.
        number: 0 is the start of the run; each other number gives another draw.
    """
    return ctx.initial(arch, number)


# -- FedBE: samples from a Gaussian, or mixtures with Dirichlet shares


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
        noise = torch.from_numpy(ctx.rng.standard_normal(size)).to(centre.vector)
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
