"""Which methods `make test` runs of a test that is for every method; `make test-all` runs it for all of them.

One of each mechanism. A test that takes less than about a tenth of a second keeps every method instead, and so does
`tests/algorithms/test_contract.py::test_trains`: each method is trained in `make test`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from headwater.algorithms import ALGORITHMS

CHOSEN = (
    "fedavg",  # averages at the server
    "scaffold",  # control variates, which clients keep
    "mtgc",  # sectors average several times; corrections at both levels
    "feddf",  # clients teach the server
    "fedeed",  # several models, by cohort
    "fedhead+",  # sectors teach their leaders, leaders teach the server
    "fedhkd",  # knowledge of each class
    "fedmd",  # answers in place of models; a model for each client
)
FEW = ("fedavg", "scaffold", "mtgc", "fedhead+")  # where one case takes a second or more


def further(*values: Any) -> Any:
    """A parameter that only `make test-all` tries."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def first(names: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Parameters of a test: all of them, those that are not chosen marked `thorough`."""
    return [name if name in chosen else further(name) for name in names]


def methods(chosen: Collection[str] = CHOSEN, *, pooled: bool = True) -> list[Any]:
    """Every method; without those that see all data at one place if `pooled` is false."""
    return first([name for name, part in ALGORITHMS.items() if pooled or not part.info.pooled], chosen)
