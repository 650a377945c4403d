"""Clients with quadratic losses of unlike curvature, for the methods that promise to reach their common optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import toys
from headwater.core.federation import SERVER, Located
from headwater.core.params import Params
from headwater.core.tree import Place
from headwater.data.base import Examples
from headwater.tasks.task import TaskContext, task
from oracles.quadratics import Quadratic, mixture

Vector = np.ndarray[Any, np.dtype[np.float64]]


def bowls(count: int, seed: int = 0, rows: Sequence[int] | None = None) -> tuple[list[Examples], list[Quadratic]]:
    """As data for `toys.Bowl`, and as losses to compute with: curvature 1 one way and 3 across, in other directions."""
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(count):
        turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        losses.append(Quadratic(turn @ np.diag([1.0, 3.0]) @ turn.T, rng.normal(size=2) * 2))
    sizes = rows or [2] * count
    return [toys.bowl(q.curvature, q.centre, n) for q, n in zip(losses, sizes, strict=True)], losses


def optimum(losses: Sequence[Quadratic], shares: Sequence[float] | None = None) -> Vector:
    return mixture(losses, shares or [1.0] * len(losses)).centre


def error(model: Params | Vector, target: Vector) -> float:
    """The distance to a target, relative to how far that is from zero."""
    w = model.vector.numpy() if isinstance(model, Params) else model
    return float(np.linalg.norm(w - target) / np.linalg.norm(target))


def values(lab: toys.Lab, x: Located) -> dict[str, Vector]:
    """What every node holds, wherever it is, without charge to training."""
    fed = lab.fed.whole.with_purpose("export")
    found: Any = fed.read(x if x.place is Place.SERVER else fed.up(x, to=SERVER))
    held: dict[str, Params] = {"server": found} if isinstance(found, Params) else found or {}
    return {node: value.vector.numpy() for node, value in held.items()}


@task("average")
def placed(ctx: TaskContext, like: Params, numbers: tuple[float, ...]) -> Params:
    """A model with these numbers."""
    return Params(torch.tensor(numbers, dtype=torch.float64), like.counters, like.layout, like.weight)


def half(lab: toys.Lab, number: int) -> tuple[str, ...]:
    """Half of the clients, others in every round."""
    clients = lab.tree.holders
    chosen = np.random.default_rng(number).choice(len(clients), size=len(clients) // 2, replace=False)
    return tuple(clients[i] for i in sorted(chosen))


def run(
    method: Any,
    clients: Sequence[Examples],
    sectors: Sequence[int],
    rounds: int,
    who: Callable[[toys.Lab, int], tuple[str, ...]] | None = None,
    **options: Any,
) -> Params:
    """The model after so many rounds on bowls, with everybody or with whom `who` names."""
    with toys.lab(method, clients, sectors, toys.Bowl, **options) as lab:
        for number in range(1, rounds + 1):
            lab.round(number, who(lab, number) if who else None)
        return lab.model
