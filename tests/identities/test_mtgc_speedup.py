"""MTGC's rate: with the step that it is proved for, the mean squared gradient falls as 1 / √(clients · E · H)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.algorithms.mtgc import Mtgc
from headwater.data.base import Examples
from headwater.specs import LocalSpec

WIDTH, ROWS, ROUNDS, SECTORS = 300, 40, 40, 2
BASE = {"clients": 4, "sector_rounds": 2, "steps": 2}


class Bowls(nn.Module):
    """Many bowls side by side, ½ Σ a (w − b)² for rows (a, b): each is a run of its own, and all of them a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((WIDTH,), 2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, :WIDTH], x[:, WIDTH:]
        return 0.5 * (a * (self.w - b) ** 2).sum(1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.mean()


def unlike(clients: int) -> list[Examples]:
    """Clients of other curvatures and other centres, whose rows scatter around the centre."""
    rng, made = np.random.default_rng(1), []
    for _ in range(clients):
        a, b = rng.uniform(0.5, 1.5, WIDTH), rng.normal(size=WIDTH)
        noise = rng.normal(size=(ROWS, WIDTH)) * 3
        rows = np.concatenate([np.tile(a, (ROWS, 1)), b + noise - noise.mean(0)], axis=1)
        made.append(Examples(torch.tensor(rows), torch.zeros(ROWS, dtype=torch.int64)))
    return made


@cache
def mean_square(**changes: int) -> float:
    """The squared gradient of the common loss, averaged over rounds, relative to that at the start."""
    now = BASE | changes
    clients, share = now["clients"], now["clients"] / (ROUNDS * now["sector_rounds"] * now["steps"])
    local = LocalSpec(steps=now["steps"], batch=1, lr=0.3 * share**0.5)
    data = unlike(clients)
    sectors = [number * SECTORS // clients for number in range(clients)]
    first = torch.stack([rows.x[0, :WIDTH] for rows in data])
    centres = torch.stack([rows.x[:, WIDTH:].mean(0) for rows in data])

    def square(w: Tensor) -> float:
        return float((first * (w - centres)).mean(0).square().sum())

    found = []
    method: Any = Mtgc(local, sector_rounds=now["sector_rounds"], z_init="stochastic")
    with toys.lab(method, data, sectors, Bowls) as lab:
        start = square(Bowls().w.detach())
        for number in range(1, ROUNDS + 1):
            lab.round(number)
            found.append(square(lab.model.vector))
    return float(np.mean(found)) / start


@pytest.mark.thorough
@pytest.mark.parametrize("what", BASE)
def test_speed_up_is_linear(what: str) -> None:
    """Four times the clients, sector rounds or steps halve what is left."""
    found = mean_square(**{what: 4 * BASE[what]}) / mean_square()
    assert 0.38 < found < 0.62, found
