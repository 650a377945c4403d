"""Softmax regression with an ℓ2 term: smooth and strongly convex, so that the bounds apply to it and every constant in
them can be measured.

The loss of weights W (features × classes) is Σ share · cross-entropy(target, softmax(xW)) + μ/2 ‖W‖². Targets may be
labels or a teacher's probabilities; a bias is a feature that is always 1. Arrays may have further dimensions in front:
so many problems side by side, with rows of share 0 where one has fewer than another.

>>> one = Regression(np.ones((1, 1)), np.array([[1.0, 0.0]]), np.ones(1), decay=0.5)
>>> round(float(one.loss(np.zeros((1, 2)))), 4)
0.6931
>>> one.gradient(np.zeros((1, 2))).tolist()
[[-0.5, 0.5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def gap(joint: float, shares: Sequence[float], alone: Sequence[float]) -> float:
    """Γ: the best loss of one model for all, less the mean of the best losses of each alone.

    Over clients it is Γ_client, over sectors Γ_sec. A sector serves several clients with one model, so its own optimum
    lies between the two, and 0 ≤ Γ_sec ≤ Γ_client.

    >>> gap(1.0, [0.5, 0.5], [0.25, 0.75])
    0.5
    """
    if len(shares) != len(alone):
        raise ValueError(f"{len(shares)} shares were given for {len(alone)} losses; give one for each")
    if not np.isclose(sum(shares), 1.0):
        raise ValueError(f"shares must add up to 1, got {sum(shares)}")
    return joint - sum(share * loss for share, loss in zip(shares, alone, strict=True))


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Regression:
    """The loss of one place, or of several side by side."""

    x: Array  # (…, rows, features)
    target: Array  # (…, rows, classes), each row a distribution
    share: Array  # (…, rows), adding up to 1 in each problem
    decay: float  # μ, which is also the constant of strong convexity

    def loss(self, weights: Array) -> Array:
        logits = self.x @ weights
        top = logits.max(axis=-1)
        above = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
        entropy = (self.share * (above - (self.target * logits).sum(axis=-1))).sum(axis=-1)
        return np.asarray(entropy + self.decay / 2 * squared(weights))

    def residuals(self, weights: Array) -> Array:
        """Prediction minus target of each row. The gradient of a row is its features times this."""
        return softmax(self.x @ weights) - self.target

    def gradient(self, weights: Array, residuals: Array | None = None, share: Array | None = None) -> Array:
        """Of the loss; with `share`, of the rows that a batch has drawn."""
        residuals = self.residuals(weights) if residuals is None else residuals
        weighed = residuals * (self.share if share is None else share)[..., None]
        return np.asarray(np.swapaxes(self.x, -1, -2) @ weighed + self.decay * weights)

    def spread(self, weights: Array, residuals: Array | None = None) -> Array:
        """The variance of the gradient of one row drawn by share: a batch of b drawn with replacement has 1/b of it."""
        residuals = self.residuals(weights) if residuals is None else residuals
        each = (self.share * squared(self.x, 1) * squared(residuals, 1)).sum(axis=-1)
        mean = np.swapaxes(self.x, -1, -2) @ (residuals * self.share[..., None])
        return np.asarray(np.maximum(0.0, each - squared(mean)))  # rounding may make it negative

    @property
    def smoothness(self) -> Array:
        """L of the whole space: μ + ½ λ_max(Σ share · xxᵀ). Cross-entropy has a Hessian of at most ½ by logits."""
        bend = np.swapaxes(self.x, -1, -2) @ (self.x * self.share[..., None])
        return np.asarray(self.decay + 0.5 * np.linalg.eigvalsh(bend)[..., -1])

    def minimise(self, start: Array | None = None, tolerance: float = 1e-9) -> tuple[Array, float]:
        """The weights where the loss of a single problem is lowest, and that loss.

        Strong convexity says how far off the result can be: the loss at most ‖gradient‖² / 2μ above the lowest.
        """
        from scipy.optimize import minimize

        shape = (self.x.shape[-1], self.target.shape[-1])

        def both(flat: Array) -> tuple[float, Array]:
            weights = flat.reshape(shape)
            return float(self.loss(weights)), self.gradient(weights).ravel()

        begin = np.zeros(shape) if start is None else start
        options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 0.0, "gtol": tolerance, "maxcor": 30}
        found = minimize(both, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
        weights = np.asarray(found.x).reshape(shape)
        return weights, float(self.loss(weights))


def joined(parts: Sequence[Regression], shares: Sequence[float]) -> Regression:
    """The weighted mean of single problems as one over all of their rows."""
    total = sum(shares)
    return Regression(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.share * share / total for part, share in zip(parts, shares, strict=True)]),
        parts[0].decay,
    )


@dataclass(frozen=True, eq=False)
class Optima:
    """The best weights for all, and how much better everybody could do alone."""

    weights: Array  # w*
    loss: float  # L*
    client_gap: float  # Γ_client
    sector_gap: float  # Γ_sec


def optima(clients: Sequence[Regression], shares: Sequence[float], sectors: Sequence[int]) -> Optima:
    """Γ as it is defined: the best loss of one model for all less the mean of the best losses of each alone."""
    whole, best = joined(clients, shares).minimise()
    alone = [client.minimise(whole)[1] for client in clients]
    teams = [[k for k, sector in enumerate(sectors) if sector == number] for number in sorted(set(sectors))]
    within = [joined([clients[k] for k in team], [shares[k] for k in team]).minimise(whole)[1] for team in teams]
    weight = [sum(shares[k] for k in team) for team in teams]
    return Optima(whole, best, max(0.0, gap(best, shares, alone)), max(0.0, gap(best, weight, within)))


def squared(values: Array, axes: int = 2) -> Array:
    """The squared norm over the last one or two dimensions."""
    return np.asarray((values * values).sum(axis=tuple(range(-axes, 0))))
