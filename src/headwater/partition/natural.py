"""Data that is already split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import FixedSplit, Ints, Partitioner
from headwater.registry import Info
from headwater.specs import STRICT

if TYPE_CHECKING:
    from headwater.data.arrays import Owners


@dataclass(frozen=True, config=STRICT)
class Natural(Partitioner):
    """Every client holds the samples that the data assigns to it."""

    INFO = Info(
        "natural",
        "as the data has it: a client column, or a folder or file for each client; chosen by itself for such data",
    )

    def fixed_split(self, labels: Ints, owners: Owners | None) -> FixedSplit:
        if owners is None:
            raise ConfigError(
                "partition.scheme = 'natural' is for data that is already split: name the column with data.client, use "
                "a folder or file for each client, or give hw.Data its client=...; or choose another scheme"
            )
        return FixedSplit(owners.indices(), owners.sectors, owners.clients, owners.sector_names)

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]:
        """Always raises ConfigError, because the owners of the samples are not known here."""
        return self.fixed_split(labels, None).indices
