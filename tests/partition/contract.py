"""The contract of a partition scheme, for listed schemes and for a user's own.

A test file for a scheme of one's own calls it with the class:

    from partition.contract import check_partitioner

    def test_contract(): check_partitioner(MyScheme)

A scheme may refuse a case with a `ConfigError` whose message says what to change, such as one that needs two classes
per client when there is one. That is right behaviour. It must accept `USUAL`, or the case given as `accepts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.data.arrays import Owners
from headwater.errors import ConfigError, DataError
from headwater.partition.base import as_partitioner
from headwater.partition.iid import Iid
from headwater.partition.partition import LazyIndices, Partition

Case = tuple[Any, int]  # labels and clients
UNEQUAL = np.repeat([0, 1, 2, 3], [200, 50, 7, 1])
USUAL: Case = (np.tile(np.arange(10), 60), 20)
CASES: dict[str, Case] = {
    "one client": (UNEQUAL, 1),
    "two clients": (UNEQUAL, 2),
    "seven clients": (UNEQUAL, 7),
    "twenty clients": (UNEQUAL, 20),
    "more clients than samples": (np.array([0, 1, 1]), 8),
    "classes without samples": (np.array([0, 3, 3, 0, 7, 7]), 2),
    "one class": (np.full(40, 3), 5),
    "a single sample": (np.array([2]), 3),
    "small unsigned labels": (UNEQUAL.astype(np.uint8), 3),
}


class SchemeUnderTest:
    """A scheme with its options.

    Args:
        kind: the scheme's class.
        options: its options.
        before: called with labels and a split of them before a scheme with a fixed split is built; returns options.
    """

    def __init__(
        self, kind: Any, options: Mapping[str, Any] | None = None, before: Callable[..., dict[str, Any]] | None = None
    ) -> None:
        self.kind, self.options, self.before = as_partitioner(kind), dict(options or {}), before
        self.draws = True  # whether the last split used the random generator

    def split(self, labels: Any, clients: int, seed: int = 0) -> Sequence[Any]:
        rng = stream(seed, "partition")
        if not self.kind.fixed:
            before = rng.bit_generator.state
            parts = self.kind(**self.options).split(labels, clients, rng)
            self.draws = rng.bit_generator.state != before
            return parts
        drawn = Iid().split(labels, clients, rng)
        rows = np.empty(len(labels), np.int64)
        for client, part in enumerate(drawn):
            rows[part] = client
        more = self.before(labels, Partition(drawn, (0,) * clients)) if self.before else {}
        owners = Owners(rows, tuple(map(str, range(clients))))
        return self.kind(**self.options, **more).fixed_split(labels, owners).indices

    def accepted(self, labels: Any, clients: int, seed: int = 0) -> Sequence[Any] | None:
        """The split, or None if the scheme refuses the case with a sentence."""
        try:
            return self.split(labels, clients, seed)
        except ConfigError as error:
            if len(str(error).split()) < 5:
                raise AssertionError(f"a refusal says what to change, got {str(error)!r}") from error
            return None


def check_valid(scheme: SchemeUnderTest, case: Case, *, complete: bool = False) -> None:
    """Sorted int64 sample numbers, one array per client; no sample is at two clients unless the scheme is SHARED."""
    labels, clients = case
    parts = scheme.accepted(labels, clients)
    if parts is None:
        return
    assert len(parts) == clients, f"{len(parts)} parts for {clients} clients"
    for part in parts:
        assert part.dtype == np.int64, f"sample numbers are {part.dtype}, not int64"
        assert np.array_equal(part, np.unique(part)), "sample numbers are not sorted, or one is there twice"
        assert not len(part) or 0 <= part[0] <= part[-1] < len(labels), "a sample number is out of range"
    if scheme.kind.SHARED:
        assert isinstance(parts, LazyIndices), "a SHARED scheme returns LazyIndices"
        return
    together = np.concatenate(list(parts))
    assert len(np.unique(together)) == len(together), "a sample is at two clients"
    assert not complete or len(together) == len(labels), "a sample is at no client"


def check_seed(scheme: SchemeUnderTest, case: Case = (UNEQUAL, 5)) -> None:
    """The same seed gives the same split. Another seed may give another; see `check_drawn`."""
    first, again = scheme.accepted(*case, 1), scheme.accepted(*case, 1)
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "two splits of one seed differ"


def check_drawn(scheme: SchemeUnderTest, case: Case = (UNEQUAL, 5)) -> None:
    """Another seed gives another split, if the scheme draws at all."""
    first, other = scheme.accepted(*case, 1), scheme.accepted(*case, 2)
    if first is not None and other is not None and scheme.draws:
        assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def check_labels_unchanged(scheme: SchemeUnderTest, case: Case = (UNEQUAL, 5)) -> None:
    labels = case[0].copy()
    scheme.accepted(labels, case[1])
    assert np.array_equal(labels, case[0]), "the scheme changed the labels"


def check_refusals(scheme: SchemeUnderTest) -> None:
    """No clients, no samples and labels that are no classes are refused; `headwater.partition.base.check` does so."""
    if scheme.kind.fixed:
        return
    for labels, clients in ((UNEQUAL, 0), (np.empty(0, np.int64), 3), (np.array([0.5, 1.0]), 3)):
        with pytest.raises((ConfigError, DataError)):
            scheme.split(labels, clients)


def check_partitioner(
    kind: Any, options: Mapping[str, Any] | None = None, *, accepts: Case = USUAL, complete: bool = False
) -> None:
    """The whole contract.

    Args:
        kind: the scheme's class.
        options: its options.
        accepts: labels and clients that it must not refuse.
        complete: whether it uses every sample.
    """
    scheme = SchemeUnderTest(kind, options)
    check_labels_unchanged(scheme, accepts)
    scheme.split(*accepts)
    for case in (accepts, *CASES.values()):
        check_valid(scheme, case, complete=complete)
    check_seed(scheme, accepts)
    check_refusals(scheme)
