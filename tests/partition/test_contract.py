"""Every listed scheme keeps the contract; new ones are found by scanning. The contract itself is tested below."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.errors import ConfigError, DataError
from headwater.partition import PARTITIONS
from headwater.partition.base import Partitioner, as_partitioner, check
from headwater.partition.partition import Partition
from partition.contract import (
    CASES,
    UNEQUAL,
    USUAL,
    SchemeUnderTest,
    check_drawn,
    check_labels_unchanged,
    check_partitioner,
    check_refusals,
    check_seed,
    check_valid,
)

# Options with which tiny sets can be split too. A scheme that is not here is tested with its defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet-balanced": {"min_size": 0},
    "blocked": {"block": 1},
    "quantity": {"min_size": 0},
    "drawn": {"size": 1},
}
# Of `USUAL`, 600 samples of ten classes over 20 clients: a published split must not change with version or machine. A
# newer scheme fixes its split in its own test file.
FIXED = {
    "iid": "34c201e4fac354a3",
    "dirichlet": "c97ce38b27cb2374",
    "dirichlet-balanced": "3a0c66a251129d8a",
    "client-prior": "3a3402e815720292",
    "blocked": "3916ba63195dd6c7",
    "two-level": "3a3402e815720292",  # all clients in one sector: as client-prior
    "shards": "304116bc3a47ec74",
    "quantity": "3f82e09e9d823605",
    "drawn": "1733371ba439ab9a",  # of the rule; what it draws is fixed in its own tests
    "natural": "34c201e4fac354a3",  # of the first one
    "manifest": "34c201e4fac354a3",
}
SHARED = [name for name in PARTITIONS if PARTITIONS.load(name).SHARED]


def under_test(name: str, folder: Path, options: dict[str, Any] | None = None) -> SchemeUnderTest:
    def write(labels: Any, split: Partition) -> dict[str, str]:
        content = split.described(labels, int(labels.max()) + 1, ())
        (folder / "partition.json").write_text(json.dumps(content))
        return {"manifest": str(folder)}

    before = write if name == "manifest" else None
    return SchemeUnderTest(PARTITIONS.load(name), OPTIONS.get(name, {}) if options is None else options, before)


@pytest.fixture(params=list(PARTITIONS))
def scheme(request: pytest.FixtureRequest, tmp_path: Path) -> SchemeUnderTest:
    return under_test(request.param, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> SchemeUnderTest:
    """Schemes in which a sample may be at several clients, or at none."""
    return under_test(request.param, tmp_path)


@pytest.mark.parametrize("case", list(CASES))
def test_splits_are_valid_or_refused(scheme: SchemeUnderTest, case: str) -> None:
    check_valid(scheme, CASES[case], complete=not scheme.kind.SHARED)


def test_the_usual_case_is_never_refused(scheme: SchemeUnderTest) -> None:
    assert len(scheme.split(*USUAL)) == 20


def test_one_client_gets_everything(scheme: SchemeUnderTest) -> None:
    parts = scheme.accepted(UNEQUAL, 1)
    assert parts is None or scheme.kind.SHARED or np.array_equal(parts[0], np.arange(len(UNEQUAL)))


def test_the_seed_decides(scheme: SchemeUnderTest) -> None:
    check_seed(scheme)
    check_drawn(scheme)


def test_labels_are_left_alone(scheme: SchemeUnderTest) -> None:
    check_labels_unchanged(scheme)


def test_nobody_and_nothing_are_refused(scheme: SchemeUnderTest) -> None:
    check_refusals(scheme)


@pytest.mark.parametrize("name", list(FIXED))
def test_the_split_of_a_seed_is_fixed(name: str, tmp_path: Path) -> None:
    parts = under_test(name, tmp_path, {}).split(*USUAL)
    assert Partition(parts, (0,) * 20).sha256[:16] == FIXED[name]


class TestShared:
    """The contract of a scheme whose clients may hold the same sample."""

    def test_a_clients_draw_does_not_depend_on_the_number_of_clients(self, shared: SchemeUnderTest) -> None:
        few, many = shared.split(UNEQUAL, 3), shared.split(UNEQUAL, 300_000)
        assert all(np.array_equal(few[at], many[at]) for at in range(3))

    def test_labels_of_any_kind_of_number_give_the_same(self, shared: SchemeUnderTest) -> None:
        small, large = shared.split(UNEQUAL.astype(np.uint8), 3), shared.split(UNEQUAL, 3)
        assert all(np.array_equal(a, b) for a, b in zip(small, large, strict=True))
        assert Partition(small, (0, 0, 0)) == Partition(large, (0, 0, 0))

    def test_a_partition_takes_the_rule_and_not_the_lists(self, shared: SchemeUnderTest) -> None:
        """As lists, samples that several clients hold are a mistake."""
        parts = shared.split(UNEQUAL, 600)
        assert Partition(parts, (0,) * 600).rule is not None
        with pytest.raises(DataError, match="one client only"):
            Partition(tuple(parts), (0,) * 600)


@dataclass(frozen=True)
class Picky(Partitioner):
    """Gives each client samples of `classes` classes, and refuses to split if there are fewer."""

    classes: int = 2

    def split(self, labels: Any, clients: int, rng: np.random.Generator) -> Sequence[Any]:
        labels = check(labels, clients)
        if len(np.unique(labels)) < self.classes:
            raise ConfigError(f"partition.classes is {self.classes}, more than the data has; use a smaller number")
        return [np.sort(part).astype(np.int64) for part in np.array_split(rng.permutation(len(labels)), clients)]


class Plain:
    """A class of a user's own that inherits from nothing."""

    def split(self, labels: Any, clients: int, rng: np.random.Generator) -> Sequence[Any]:
        return Picky(1).split(labels, clients, rng)


class TestTheContractItself:
    def test_a_scheme_that_refuses_is_right(self) -> None:
        check_partitioner(Picky, complete=True)
        check_partitioner(Picky, {"classes": 4}, accepts=(UNEQUAL, 3))
        assert SchemeUnderTest(Picky).accepted(*CASES["one class"]) is None

    def test_one_that_refuses_the_usual_case_is_wrong(self) -> None:
        with pytest.raises(ConfigError, match="use a smaller number"):
            check_partitioner(Picky, {"classes": 11})

    def test_a_class_that_inherits_from_nothing_is_adapted(self) -> None:
        check_partitioner(Plain, complete=True)
        kind = as_partitioner(Plain)
        assert (kind.SHARED, kind.by_sector, kind.fixed, kind().carving_seed) == (False, False, False, None)
        assert as_partitioner(Picky) is Picky

    def test_what_is_no_scheme_is_refused(self) -> None:
        for other in (len, Path, 3):
            with pytest.raises(ConfigError, match="is not a partition scheme"):
                as_partitioner(other, "mine:other")

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            (lambda parts, labels: [*parts[:-1], parts[0]], "at two clients"),
            (lambda parts, labels: [part[::-1] for part in parts], "not sorted"),
            (lambda parts, labels: [part.astype(np.int32) for part in parts], "not int64"),
            (lambda parts, labels: parts[:-1], "19 parts for 20 clients"),
            (lambda parts, labels: [part + 1 for part in parts], "out of range"),
            (lambda parts, labels: labels.fill(0) or parts, "changed the labels"),
            (lambda parts, labels: [part[1:] for part in parts], "at no client"),
        ],
    )
    def test_a_violation_is_named(self, wrong: Any, words: str) -> None:
        class Wrong(Picky):
            def split(self, labels: Any, clients: int, rng: np.random.Generator) -> Sequence[Any]:
                return wrong(super().split(labels, clients, rng), labels)  # type: ignore[no-any-return]

        with pytest.raises((AssertionError, DataError), match=f"{words}|one client only"):
            check_partitioner(Wrong, {"classes": 1}, complete=True)
