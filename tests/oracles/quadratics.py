"""Clients with quadratic losses, whose optima and gaps Γ have closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater.theory.softmax import gap

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """½ (x − b)ᵀ A (x − b) + c with a positive definite A."""

    curvature: Vector  # A
    centre: Vector  # b
    floor: float = 0.0  # c, the lowest loss

    def __call__(self, x: Vector) -> float:
        away = x - self.centre
        return float(0.5 * away @ self.curvature @ away + self.floor)

    def gradient(self, x: Vector) -> Vector:
        return np.asarray(self.curvature @ (x - self.centre))


def mixture(parts: Sequence[Quadratic], shares: Sequence[float]) -> Quadratic:
    """The weighted mean of quadratics, again as a quadratic: its centre is the minimiser, its floor the best loss."""
    total = sum(shares)
    weights = [share / total for share in shares]
    curvature = np.sum([w * q.curvature for w, q in zip(weights, parts, strict=True)], axis=0)
    pull = np.sum([w * q.curvature @ q.centre for w, q in zip(weights, parts, strict=True)], axis=0)
    centre = np.linalg.solve(curvature, pull)
    return Quadratic(curvature, centre, sum(w * q(centre) for w, q in zip(weights, parts, strict=True)))


def quadratic_gaps(
    clients: Sequence[Quadratic], shares: Sequence[float], sectors: Sequence[int]
) -> tuple[float, float]:
    """(Γ_client, Γ_sec) of clients with these losses, shares and sector numbers."""
    joint = mixture(clients, shares).floor
    teams = [[i for i, sector in enumerate(sectors) if sector == number] for number in sorted(set(sectors))]
    best = [mixture([clients[i] for i in team], [shares[i] for i in team]).floor for team in teams]
    weight = [sum(shares[i] for i in team) for team in teams]
    return gap(joint, shares, [q.floor for q in clients]), gap(joint, weight, best)
