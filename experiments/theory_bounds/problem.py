"""Random federations with ℓ2-regularised softmax regression: who holds which rows, and all constants of the bounds that
do not depend on a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headwater.theory.convergence import Problem, offset
from headwater.theory.softmax import Array, Optima, Regression, optima


@dataclass(frozen=True)
class Setting:
    """What is drawn: a federation, the lengths of its phases, and how long it trains."""

    number: int  # also the seed of the data
    clients: int
    sectors: int
    features: int
    classes: int
    rows: int  # of a client, at most
    alpha: float  # of the clients' label distributions
    shift: float  # how far clients' inputs are moved apart
    decay: float  # μ
    batch: int
    local: int  # n_l, in steps
    sector: int  # n_s
    server: int  # n_g
    scale: float  # of the start
    rounds: int = 0

    @staticmethod
    def draw(number: int) -> Setting:
        rng = np.random.default_rng([2026, number])
        sectors = int(rng.integers(2, 5))
        steps = [int(rng.choice([1, 2, 3, 5, 8])) for _ in range(3)]
        made = Setting(
            number=number,
            clients=int(rng.integers(2 * sectors, 13)),
            sectors=sectors,
            features=int(rng.integers(2, 7)),
            classes=int(rng.integers(2, 5)),
            rows=int(rng.integers(20, 41)),
            alpha=round(float(np.exp(rng.uniform(np.log(0.1), np.log(5)))), 2),
            shift=round(float(rng.uniform(0, 1)), 2),
            decay=round(float(np.exp(rng.uniform(np.log(0.05), np.log(0.5)))), 3),
            batch=int(rng.choice([1, 2, 4, 8])),
            local=steps[0],
            sector=steps[1],
            server=steps[2],
            scale=round(float(rng.uniform(0, 2)), 2),
        )
        # long enough for the start to be forgotten where that takes fewer than 400 rounds
        needed = 4 * offset(Federation(made).constants, made.local, made.sector) / made.local
        return replace(made, rounds=int(min(400, max(60, needed))))


class Federation:
    """The clients' and the reference rows of a setting. Clients are padded with rows of share 0 to equal length."""

    def __init__(self, setting: Setting) -> None:
        self.setting, rng = setting, np.random.default_rng([7, setting.number])
        self.centres = rng.normal(size=(setting.classes, setting.features))
        further = rng.integers(setting.sectors, size=setting.clients - setting.sectors)
        self.sector_of = rng.permutation(np.concatenate([np.arange(setting.sectors), further]))  # none is empty
        sizes = rng.integers(8, setting.rows + 1, size=setting.clients)
        self.parts = [self._rows(rng, int(size), setting.alpha, setting.shift) for size in sizes]
        self.reference = self._rows(rng, setting.rows, 5.0, setting.shift)
        self.sizes = sizes
        self.shares = sizes / sizes.sum()
        self.start = rng.normal(size=(setting.features + 1, setting.classes)) * setting.scale
        self.padded = _padded(self.parts)

    def _rows(self, rng: np.random.Generator, count: int, alpha: float, shift: float) -> Regression:
        labels = rng.choice(len(self.centres), size=count, p=rng.dirichlet(np.full(len(self.centres), alpha)))
        away = rng.normal(size=self.centres.shape[1]) * shift
        x = (self.centres[labels] + away + rng.normal(size=(count, len(away)))) / np.sqrt(len(away))
        rows = np.concatenate([x, np.ones((count, 1))], axis=1)
        return Regression(rows, np.eye(len(self.centres))[labels], np.full(count, 1 / count), self.setting.decay)

    @cached_property
    def optima(self) -> Optima:
        return optima(self.parts, self.shares.tolist(), self.sector_of.tolist())

    @cached_property
    def members(self) -> Array:
        """(sector, client): p_k / p_m within a sector, 0 elsewhere."""
        inside = (self.sector_of == np.arange(self.setting.sectors)[:, None]) * self.shares
        return np.asarray(inside / inside.sum(axis=1, keepdims=True))

    @cached_property
    def sector_shares(self) -> Array:
        return np.bincount(self.sector_of, weights=self.shares, minlength=self.setting.sectors)

    def loss(self, weights: Array) -> Array:
        """L of weights that may have further dimensions in front."""
        return np.asarray(self.padded.loss(weights[..., None, :, :]) @ self.shares)

    @cached_property
    def constants(self) -> Problem:
        """All but what is measured along the way: σ², G², δ and ε."""
        found = self.optima
        smooth = max(float(self.padded.smoothness.max()), float(self.reference.smoothness))
        reference_gap = float(self.reference.loss(found.weights)) - self.reference.minimise(found.weights)[1]
        return Problem(
            smoothness=smooth,
            convexity=self.setting.decay,
            variance=0.0,
            gradient=0.0,
            client_shares=tuple(self.shares.tolist()),
            sector_shares=tuple(self.sector_shares.tolist()),
            client_gap=found.client_gap,
            sector_gap=found.sector_gap,
            reference_gap=max(0.0, reference_gap),
            distance=float(((self.start - found.weights) ** 2).sum()),
        )


def _padded(parts: list[Regression]) -> Regression:
    longest = max(len(part.share) for part in parts)

    def fill(values: Array) -> Array:
        room = [(0, longest - len(values))] + [(0, 0)] * (values.ndim - 1)
        return np.pad(values, room)

    stacked = [np.stack([fill(getattr(part, name)) for part in parts]) for name in ("x", "target", "share")]
    return Regression(stacked[0], stacked[1], stacked[2], parts[0].decay)
