"""The processes that the FedHEAD paper's theorems are about, in numpy, all repetitions side by side.

Phases are counted in SGD steps. One counter τ runs on over local training and distillation, and step τ has the size
2 / (μ(τ + γ − 1)). Distillation is the idealised one of the theorems: a student stops before the step at which its loss
against its teacher is no longer above what the optimum w* would have there. docs/theory.md says how each definition was
read, and why.

Batches are drawn with replacement, as an unbiased gradient wants. All four methods start at the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from problem import Federation, Setting

from headwater.theory import convergence
from headwater.theory.convergence import Problem
from headwater.theory.softmax import Array, Regression, softmax, squared

Method = Literal["fedavg", "fedhead", "fedhead+", "feddf"]
METHODS: tuple[Method, ...] = ("fedavg", "fedhead", "fedhead+", "feddf")
BY_SECTORS, AT_SERVER = ("fedhead", "fedhead+"), ("fedhead+", "feddf")


@dataclass(frozen=True)
class Way:
    """What the theorems leave open, and what the library's own methods need in place of the idealised."""

    stop: Literal["each", "together", "never"] = "each"  # a leader by itself; all when their mean loss is low enough
    judge: Literal["teacher", "labels"] = "teacher"  # against what the loss is that stopping looks at
    counter: Literal["mean", "longest"] = "mean"  # how τ goes on after leaders took unequal numbers of steps
    leader: Literal["random", "largest"] = "random"
    whole: bool = False  # batches of all rows
    step_size: Callable[[Array], Array] | None = None  # of τ, in place of the theorems' rule
    looks: int = 1_000_000  # rounds in which ε is measured, which takes most of the time


@dataclass
class Seen:
    """Maxima over the visited points of one kind of phase, and the steps that were taken."""

    second: float = 0.0  # E‖g‖² of a stochastic gradient
    variance: float = 0.0
    excess: float = 0.0  # of how far distillation losses could fall below the optimum's, over the true losses' Γ
    off: float = 0.0  # |loss against the teacher − loss against the labels|
    steps: list[float] = field(default_factory=list)  # of each round, mean over repetitions and by p_m over leaders

    def visit(self, gradient: Array, spread: Array, there: Array) -> None:
        if there.any():
            self.variance = max(self.variance, float(spread[there].max()))
            self.second = max(self.second, float((squared(gradient) + spread)[there].max()))

    @property
    def mean(self) -> float:
        return float(np.mean(self.steps)) if self.steps else 0.0


@dataclass
class Trace:
    """A method's way in one setting: the gap L − L* after each round (and before the first) of every repetition."""

    method: Method
    gaps: Array  # (repetition, round)
    ends: Array  # the last weights of every repetition
    local: Seen
    sector: Seen
    server: Seen

    def constants(self, known: Problem) -> Problem:
        """The bound's constants with what was measured. δ is the most that holds at all visited points: distillation
        gradients have at most (1 − δ)G² as their second moment and (1 − δ)σ² as their variance."""
        taught = [seen for seen in (self.sector, self.server) if seen.second > 0]
        second = max(seen.second for seen in (self.local, *taught))
        variance = max(seen.variance for seen in (self.local, *taught))
        ratios = [seen.second / second for seen in taught]
        ratios += [seen.variance / variance for seen in taught if variance > 0]
        return replace(
            known,
            variance=variance,
            gradient=second,
            delta=1 - max(ratios) if ratios else 1.0,
            epsilon=max(self.sector.excess, self.server.excess),
        )

    def bound(self, p: Problem, s: Setting, rounds: int, *, whole: bool = False) -> float:
        """The method's bound after so many rounds; `whole` counts every phase with its full length, stopped or not."""
        sector_mean, server_mean = (s.sector, s.server) if whole else (self.sector.mean, self.server.mean)
        if self.method == "fedavg":
            return convergence.fedavg_bound(p, rounds, s.local)
        if self.method == "fedhead":
            return convergence.fedhead_bound(p, rounds, s.local, s.sector, sector_mean)
        if self.method == "fedhead+":
            return convergence.fedhead_plus_bound(p, rounds, s.local, s.sector, sector_mean, server_mean)
        return convergence.feddf_bound(p, rounds, s.local, server_mean)


class Process:
    def __init__(self, federation: Federation, method: Method, seeds: int, way: Way | None = None) -> None:
        self.fed, self.method, self.way, self.setting = federation, method, way or Way(), federation.setting
        self.best = federation.optima.weights
        self.rngs = [np.random.default_rng([11, self.setting.number, seed]) for seed in range(seeds)]
        self.tau = np.ones(seeds)
        known = federation.constants
        longest = self.setting.sector if method in BY_SECTORS else 0
        gamma = convergence.offset(known, self.setting.local, longest)
        self.size = self.way.step_size or (lambda tau: convergence.step_size(known, tau, gamma))
        self.local, self.sector, self.server = Seen(), Seen(), Seen()

    def run(self, rounds: int | None = None) -> Trace:
        weights = np.repeat(self.fed.start[None], len(self.rngs), axis=0)
        gaps = [self._gap(weights)]
        for _ in range(self.setting.rounds if rounds is None else rounds):
            weights = self.round(weights)
            gaps.append(self._gap(weights))
        return Trace(self.method, np.stack(gaps, axis=1), weights, self.local, self.sector, self.server)

    def _gap(self, weights: Array) -> Array:
        return self.fed.loss(weights) - self.fed.optima.loss

    def round(self, weights: Array) -> Array:
        trained = self._train(weights)
        mean = np.einsum("k,skfc->sfc", self.fed.shares, trained)
        if self.method in BY_SECTORS:
            teachers = self._at_leaders(trained, mean)
            mean = np.einsum("m,smfc->sfc", self.fed.sector_shares, teachers)
        else:
            teachers = trained
        return self._at_server(teachers, mean) if self.method in AT_SERVER else mean

    def _train(self, weights: Array) -> Array:
        """n_l steps of every client on its own rows."""
        rows, now = self.fed.padded, np.repeat(weights[:, None], self.setting.clients, axis=1)
        for _ in range(self.setting.local):
            there = np.ones(now.shape[:2], dtype=bool)
            now = now - self._lr(0) * self._draw(rows, now, self.fed.sizes, self.local, there)
            self.tau = self.tau + 1
        return now

    def _at_leaders(self, trained: Array, mean: Array) -> Array:
        """Leaders start at the mean of all and learn what their sector's clients say on the leader's rows."""
        fed, leaders = self.fed, self._leaders()
        x, share = fed.padded.x[leaders], fed.padded.share[leaders]
        said = softmax(x[:, fed.sector_of] @ trained)
        taught = Regression(x, np.einsum("mk,sknc->smnc", fed.members, said), share, fed.padded.decay)
        true = Regression(x, fed.padded.target[leaders], share, fed.padded.decay)
        start = np.repeat(mean[:, None], self.setting.sectors, axis=1)
        sizes = fed.sizes[leaders]
        return self._distil(taught, true, start, sizes, fed.sector_shares, self.setting.sector, self.sector)

    def _leaders(self) -> np.ndarray:
        """One client a sector, by its share of the sector, anew in every round; or the largest."""
        if self.way.leader == "largest":
            return np.repeat(self.fed.members.argmax(axis=1)[None], len(self.rngs), axis=0)
        edges = self.fed.members.cumsum(axis=1)
        drawn = np.stack([rng.random(self.setting.sectors) for rng in self.rngs])
        return np.minimum((drawn[..., None] >= edges).sum(axis=-1), self.setting.clients - 1)

    def _at_server(self, teachers: Array, mean: Array) -> Array:
        """The mean learns what its teachers say on the reference rows."""
        rows = self.fed.reference
        shares = self.fed.sector_shares if self.method in BY_SECTORS else self.fed.shares
        target = np.einsum("k,sknc->snc", shares, softmax(rows.x @ teachers))[:, None]
        taught = Regression(rows.x, target, rows.share, rows.decay)
        sizes = np.full((len(self.rngs), 1), len(rows.share))
        one = np.ones(1)
        return self._distil(taught, rows, mean[:, None], sizes, one, self.setting.server, self.server)[:, 0]

    def _distil(
        self, taught: Regression, true: Regression, now: Array, sizes: np.ndarray, shares: Array, most: int, seen: Seen
    ) -> Array:
        judged = taught if self.way.judge == "teacher" else true
        goal = judged.loss(np.broadcast_to(self.best, now.shape))
        if len(seen.steps) < self.way.looks:
            alone = self.fed.constants.sector_gap if seen is self.sector else self.fed.constants.reference_gap
            room = _slack(taught, self.best, taught.loss(np.broadcast_to(self.best, now.shape)))
            seen.excess = max(seen.excess, float((room @ shares).max()) - alone)
        there, taken = np.ones(now.shape[:2], dtype=bool), np.zeros(now.shape[:2])
        for step in range(most):
            above = judged.loss(now) - goal
            if self.way.stop == "each":
                there = there & (above > 0)
            elif self.way.stop == "together":
                there = there & (above @ shares > 0)[:, None]
            if not there.any():
                break
            seen.off = max(seen.off, float(np.abs(taught.loss(now) - true.loss(now))[there].max()))
            moved = now - self._lr(step) * self._draw(taught, now, sizes, seen, there)
            now = np.where(there[..., None, None], moved, now)
            taken += there
        self.tau = self.tau + (taken @ shares if self.way.counter == "mean" else taken.max(axis=1))
        seen.steps.append(float((taken @ shares).mean()))
        return now

    def _lr(self, ahead: int) -> Array:
        return np.asarray(self.size(self.tau + ahead))[:, None, None, None]

    def _draw(self, rows: Regression, now: Array, sizes: np.ndarray, seen: Seen, there: np.ndarray) -> Array:
        """A stochastic gradient at each place, after noting its moments there."""
        residuals = rows.residuals(now)
        mean, batch = rows.gradient(now, residuals), self.setting.batch
        if self.way.whole:
            seen.visit(mean, np.zeros(now.shape[:2]), there)
            return mean
        seen.visit(mean, rows.spread(now, residuals) / batch, there)
        points = np.stack([rng.random((now.shape[1], batch)) for rng in self.rngs])
        picked = (points * np.broadcast_to(sizes, now.shape[:2])[..., None]).astype(int)
        times = (picked[..., None, :] == np.arange(rows.share.shape[-1])[:, None]).sum(axis=-1)
        return rows.gradient(now, residuals, times / batch)


def _slack(taught: Regression, best: Array, there: Array) -> Array:
    """D(w*) − min D of every place, from above: by Newton's method, and what strong convexity says may be left then."""
    (features, classes), many = best.shape, there.shape
    now, identity = np.broadcast_to(best, (*many, features, classes)).copy(), np.eye(features * classes)
    weighed = (taught.x * taught.share[..., None])[..., :, None] * taught.x[..., None, :]
    pairs = np.swapaxes(weighed.reshape(*taught.x.shape[:-1], -1), -1, -2)
    for _ in range(30):
        gradient = taught.gradient(now)
        left = squared(gradient) / (2 * taught.decay)
        if left.max() < 1e-12:
            break
        p = softmax(taught.x @ now)
        bends = p[..., None] * np.eye(classes) - p[..., :, None] * p[..., None, :]
        bent = (pairs @ bends.reshape(*p.shape[:-1], -1)).reshape(*many, features, features, classes, classes)
        hessian = np.swapaxes(bent, -3, -2).reshape(*many, *identity.shape) + taught.decay * identity
        step = np.linalg.solve(hessian, gradient.reshape(*many, -1, 1)).reshape(now.shape)
        far = np.sqrt(np.maximum(0.0, (step * gradient).sum(axis=(-1, -2))))
        # far from the minimum a full step may go too far
        now = now - np.where(left > 1e-3, 1 / (1 + far), 1.0)[..., None, None] * step
    return there - taught.loss(now) + squared(taught.gradient(now)) / (2 * taught.decay)
