"""More teachers: models drawn around those of the clients, as SWAG draws them around the iterates of one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

import torch

from headwater.params import Params, mean
from headwater.stages.site import Site, task


@task("distill")
def with_swag(site: Site, models: Mapping[str, Params], count: int) -> dict[str, Params]:
    """The models, and so many drawn ones: of each architecture in turn, as many of one as of another.

    Of K models of an architecture, with mean m, deviations D = (w_1 − m, …, w_K − m) and variance σ² = Σ_k D_k²/K of
    each parameter, a draw is m + σ·z/√2 + D·u/√(2(K − 1)), with z and u standard normal: one half of the covariance is
    diagonal, the other of rank K − 1. The only model of an architecture is drawn as it is. What is trained scatters,
    batch-norm statistics are the mean's. A draw weighs as much as the models of its architecture on average.
    """
    teams: dict[str, list[Params]] = {}
    for model in models.values():
        teams.setdefault(model.layout.arch, []).append(model)
    found, of = dict(models), list(teams.values())
    for i in range(count):
        found[f"swag{i}"] = _draw(site, of[i % len(of)])
    return found


def _draw(site: Site, team: list[Params]) -> Params:
    centre = mean(team, lambda _: 1.0)
    away = torch.stack([model.trainable - centre.trainable for model in team])
    each, by_model = (site.rng.standard_normal(size) for size in (centre.layout.size, len(team)))
    z, u = (torch.from_numpy(drawn).to(away.dtype) for drawn in (each, by_model))
    vector = centre.vector.clone()
    scatter = away.square().mean(0).sqrt() * z / sqrt(2) + u @ away / sqrt(2 * max(1, len(team) - 1))
    vector[: centre.layout.size] += scatter
    return replace(centre, vector=vector, weight=centre.weight / len(team))
