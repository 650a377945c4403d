"""Label skew on two levels: by sector, and by client inside a sector."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Alpha, Ints, Partitioner, check, check_alpha, even, fill
from headwater.registry import Info
from headwater.specs import STRICT

ALIKE = 10_000.0  # an alpha that makes the clients of a sector nearly equal


@dataclass(frozen=True, config=STRICT, kw_only=True)
class TwoLevel(Partitioner):
    """Samples are distributed over sectors by one class prior per sector, then over clients by one per client (MTGC).

    A client's prior is over the classes that its sector holds. All clients get equally many samples.

    Args:
        setting: what is unequal. "both": sectors by `alpha` and clients inside by `alpha_client`. "clients": one draw
            over all clients that ignores sectors; clients in a row form a sector with `assign = "blocks"`. "sectors":
            sectors by `alpha`, with equal label shares inside.
        alpha: concentration of the sectors' priors.
        alpha_client: concentration of the clients' priors; `alpha` if None.
    """

    INFO = Info("two-level", "sectors by a class prior, then their clients by another (setting, alpha, alpha_client)")

    setting: Literal["both", "clients", "sectors"] = "both"
    alpha: Alpha = 0.1
    alpha_client: float | None = None

    @model_validator(mode="after")
    def _accepted(self) -> TwoLevel:
        if self.alpha_client is not None:
            check_alpha(self.alpha_client, "alpha_client")
            if self.setting != "both":
                raise ConfigError(
                    f"partition.alpha_client has no effect with setting = {self.setting!r}; "
                    "remove it or use setting = 'both'"
                )
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        """Split with all clients in one sector."""
        return self.split_tree(labels, (0,) * clients, rng)

    def split_tree(self, labels: Ints, sector_of: tuple[int, ...], rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, len(sector_of))
        sizes, sectors = even(len(labels), len(sector_of)), np.array(sector_of)
        if self.setting == "clients" or len(set(sector_of)) == 1:
            return fill(labels, sizes, self._inner, rng)
        members = [np.flatnonzero(sectors == sector) for sector in range(int(sectors.max()) + 1)]
        parts: list[Ints] = [np.empty(0, np.int64)] * len(sector_of)
        shares = fill(labels, np.array([sizes[clients].sum() for clients in members]), self.alpha, rng)
        for share, clients in zip(shares, members, strict=True):
            if len(share):
                for client, part in zip(clients, fill(labels[share], sizes[clients], self._inner, rng), strict=True):
                    parts[client] = share[part]
        return parts

    @property
    def _inner(self) -> float:
        if self.setting == "sectors":
            return ALIKE
        return self.alpha if self.alpha_client is None else self.alpha_client
