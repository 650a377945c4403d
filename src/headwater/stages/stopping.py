"""Early stopping and what is restored: one component for every stage that is judged on validation data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from headwater.specs import Restore

Snapshot = TypeVar("Snapshot")


class EarlyStop(Generic[Snapshot]):
    """Stops as soon as (current index − index of the best) ≥ patience. A tie is not an improvement.

    Indices count epochs or steps, as the caller does. `restore` says what `chosen` gives: the `last` snapshot, the
    `best` of those evaluated, or `best_or_init`, which lets the untouched start compete.
    """

    def __init__(
        self,
        metric: Literal["loss", "accuracy"] = "loss",
        patience: int | None = None,
        min_delta: float = 0.0,
        restore: Restore = "last",
    ) -> None:
        self.sign = -1.0 if metric == "loss" else 1.0
        self.metric, self.patience, self.min_delta, self.restore = metric, patience, min_delta, restore
        self.best_index: int | None = None
        self._best_score = -math.inf
        self._best: Snapshot | None = None

    def begin(self, value: float, snapshot: Callable[[], Snapshot]) -> None:
        """The start, before any step; it competes only under `best_or_init`."""
        if self.restore == "best_or_init":
            self.update(0, value, snapshot)

    def update(self, index: int, value: float, snapshot: Callable[[], Snapshot]) -> bool:
        """Record one evaluation; True says stop."""
        score = self.sign * value
        first = self.best_index is None and not math.isnan(score)
        if first or score > self._best_score + self.min_delta:
            self.best_index, self._best_score = index, score
            if self.restore != "last":
                self._best = snapshot()
        return self.patience is not None and index - (self.best_index or 0) >= self.patience

    def chosen(self, last: Callable[[], Snapshot]) -> Snapshot:
        return last() if self.restore == "last" or self._best is None else self._best
