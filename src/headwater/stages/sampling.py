"""Models drawn around those of the clients, as FedBE does: from a Gaussian, or as mixtures with Dirichlet shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from headwater.params import By, Params, average_of, cut, mean
from headwater.specs import DistillSpec
from headwater.stages.consolidate import distill
from headwater.stages.site import Site, task

Sampler = Literal["gaussian", "gaussian-as-coded", "dirichlet"]
_FLOOR = 1e-5  # smallest variance of a unit delta, as in FedBE's code


@task("average")
def sample_models(
    site: Site,
    models: Mapping[str, Params],
    count: int,
    sampler: Sampler = "gaussian",
    base: Params | None = None,
    concentration: float = 1.0,
    scale: float = 0.1,
    by: By = "samples",
) -> dict[int, Params]:
    """So many models drawn around these.

    `gaussian`: the weighted mean plus noise with the weighted variance of each parameter. `gaussian-as-coded`: the
    same of deltas from `base`, made unit length tensor by tensor, with noise times `scale`, and brought back to the
    mean length. `dirichlet`: mixtures with shares from Dir(concentration). Only what is trained gets noise, since a
    batch-norm variance must not become negative.
    """
    centre = average_of(models, by)
    if sampler == "dirichlet":
        shares = [iter(site.rng.dirichlet([concentration] * len(models)).tolist()) for _ in range(count)]
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
        noise = torch.from_numpy(site.rng.standard_normal(size)).to(centre.vector.dtype)
        vector = centre.vector.clone()
        vector[:size] = middle + deviation * noise
        result[i] = replace(centre, vector=vector)
    return result


def variance(models: Mapping[str, Params], centre: Params, by: By = "samples") -> Tensor:
    """Σ_k p_k (w_k − mean)² of each trained parameter."""
    weights = [model.weight if by == "samples" else 1.0 for model in models.values()]
    found = torch.zeros_like(centre.trainable)
    for model, weight in zip(models.values(), weights, strict=True):
        found += weight / sum(weights) * (model.trainable - centre.trainable).square()
    return found


def _unit_deltas(models: Mapping[str, Params], base: Params) -> tuple[Tensor, Tensor]:
    """Where samples lie and how far they scatter, worked out on deltas of unit length and scaled back, each tensor by
    itself; clients count alike."""
    shapes = base.layout.trainable
    middle, deviation = base.trainable.clone(), torch.zeros_like(base.trainable)
    deltas = [cut(model.trainable - base.trainable, shapes) for model in models.values()]
    places, scatter = cut(middle, shapes), cut(deviation, shapes)
    for name in places:
        lengths = [float(delta[name].norm()) for delta in deltas]
        units = torch.stack(
            [d[name] / length if length else d[name] for d, length in zip(deltas, lengths, strict=True)]
        )
        length = sum(lengths) / len(lengths)
        spread = (units.square().mean(0) - units.mean(0).square()).clamp_min(_FLOOR).sqrt()
        places[name] += length * units.mean(0)
        scatter[name] += length * spread
    return middle, deviation


@task("average")
def tally(site: Site, models: Mapping[str, Tensor]) -> Tensor:
    """The label counts of several senders added up; of sums of them, the sum."""
    return torch.stack(list(models.values())).sum(0)


@task("distill")
def distill_per_class(site: Site, spec: DistillSpec, **given: Any) -> Params:
    """`distill` with its loss divided by the number of classes, as FedBE's code has it.

    Under SGD that is a smaller step with a larger weight decay: v ← βv + g/C + λw, w ← w − ηv is, for C·v, the same as
    C·v ← β(C·v) + g + Cλw, w ← w − (η/C)(C·v).
    """
    smaller = replace(spec, lr=spec.lr / site.classes, weight_decay=spec.weight_decay * site.classes)
    return distill(site, spec=smaller, **given)
