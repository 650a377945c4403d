"""Clients with quadratic losses, a model that is the point they are asked about, and where averaging comes to rest.

Client i's loss is ½(x − b)ᵀA(x − b). Every A has the eigenvalues 1 and `steep` only, in directions and numbers of its
own: Hessians differ, and yet two steps, of length 1/(1 + alpha) and 1/(steep + alpha), solve FedDyn's local problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Setting:
    dim: int
    sectors: int
    clients: int  # of a sector
    steps: int  # H
    paces: int  # E
    lr: float
    steep: float = 3.0
    participation: float = 1.0
    rounds: int = 80
    seed: int = 0

    @property
    def alpha(self) -> float:
        return float(np.sqrt(self.steep))


SETTINGS = {
    "1": Setting(dim=2, sectors=2, clients=2, steps=2, paces=2, lr=0.15, rounds=60),
    "2": Setting(dim=5, sectors=2, clients=3, steps=3, paces=2, lr=0.12, rounds=60, seed=1),
    "3": Setting(dim=10, sectors=3, clients=2, steps=2, paces=3, lr=0.1, rounds=70, seed=2),
    "4": Setting(dim=20, sectors=3, clients=3, steps=2, paces=2, lr=0.1, steep=5.0, rounds=90, seed=3),
    "5": Setting(dim=3, sectors=4, clients=2, steps=5, paces=1, lr=0.1, rounds=70, seed=4),
    "6": Setting(dim=8, sectors=2, clients=4, steps=2, paces=4, lr=0.08, rounds=60, seed=5),
    "7": Setting(dim=50, sectors=2, clients=3, steps=4, paces=2, lr=0.05, steep=8.0, rounds=110, seed=6),
    "8": Setting(dim=5, sectors=2, clients=4, steps=2, paces=2, lr=0.1, participation=0.5, rounds=160, seed=7),
    "9": Setting(dim=10, sectors=3, clients=3, steps=2, paces=2, lr=0.1, participation=0.67, rounds=140, seed=8),
    "10": Setting(dim=2, sectors=2, clients=5, steps=3, paces=2, lr=0.1, participation=0.4, rounds=220, seed=9),
}


@dataclass(frozen=True, eq=False)
class Problem:
    curvatures: Array  # (client, dim, dim)
    centres: Array  # (client, dim)

    @staticmethod
    def of(setting: Setting) -> Problem:
        rng = np.random.default_rng(setting.seed)
        count, dim = setting.sectors * setting.clients, setting.dim
        curvatures, centres = np.zeros((count, dim, dim)), np.zeros((count, dim))
        for i in range(count):
            flat = rng.integers(1, dim)  # how many directions have curvature 1
            basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
            curvatures[i] = basis @ np.diag([1.0] * flat + [setting.steep] * (dim - flat)) @ basis.T
            centres[i] = rng.normal(size=dim) * 2
        return Problem(curvatures, centres)

    @property
    def optimum(self) -> Array:
        pulls = np.einsum("nij,nj->i", self.curvatures, self.centres)
        return np.asarray(np.linalg.solve(self.curvatures.sum(axis=0), pulls))

    def distance(self, x: Array, target: Array | None = None) -> float:
        """To the optimum or another target, relative to the optimum's distance from the start, which is zero."""
        away = x - (self.optimum if target is None else target)
        return float(np.linalg.norm(away) / np.linalg.norm(self.optimum))

    # -- where averaging comes to rest

    def _ends(self, i: int, steps: int, lr: float, mu: float) -> tuple[Array, Array]:
        """So many steps of client i from x as (M, c) of x → Mx + c, with a pull of strength mu back to x."""
        identity = np.eye(len(self.centres[i]))
        one, power, total = identity - lr * (self.curvatures[i] + mu * identity), identity, np.zeros_like(identity)
        for _ in range(steps):
            total, power = total + power, power @ one
        return power + lr * mu * total, lr * total @ self.curvatures[i] @ self.centres[i]

    def rest(self, teams: Sequence[Sequence[int]], steps: int, paces: int, lr: float, mu: float = 0.0) -> Array:
        """The fixed point of a round: teams of clients average `paces` times, then the mean of teams is taken."""
        maps = []
        for team in teams:
            ends = [self._ends(i, steps, lr, mu) for i in team]
            matrix, constant = np.mean([e[0] for e in ends], axis=0), np.mean([e[1] for e in ends], axis=0)
            whole, part = np.eye(len(constant)), np.zeros(len(constant))
            for _ in range(paces):
                whole, part = matrix @ whole, matrix @ part + constant
            maps.append((whole, part))
        matrix, constant = np.mean([m[0] for m in maps], axis=0), np.mean([m[1] for m in maps], axis=0)
        return np.asarray(np.linalg.solve(np.eye(len(constant)) - matrix, constant))


class Point(nn.Module):
    """A point that is trained. A row of data is the number of a client, whose loss it is asked for.

    When judged, it tells how far it is from the optimum instead, so that the run's own record of losses shows it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(problem.centres.shape[1], dtype=torch.float64))
        self._problem = problem
        self._curvatures, self._centres = torch.tensor(problem.curvatures), torch.tensor(problem.centres)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            client = rows[:, 0].long()
            away = self.x - self._centres[client]
            values = 0.5 * torch.einsum("ni,nij,nj->n", away, self._curvatures[client], away)
        else:
            values = torch.full((len(rows),), self._problem.distance(self.x.detach().numpy()), dtype=torch.float64)
        return torch.stack([values, torch.zeros_like(values)], dim=1)  # two columns, as of a classifier

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0].mean()
