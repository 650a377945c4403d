"""Partition: its hash, its manifest and its counts."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.errors import DataError
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.partition import Partition

TWO = Partition((np.array([3, 0]), np.array([1])), (1, 0))


def test_the_same_seed_gives_this_very_partition_on_every_platform() -> None:
    labels = np.tile(np.arange(10), 100)
    parts = Dirichlet(alpha=0.1).split(labels, 20, stream(0, "partition"))
    partition = Partition(tuple(parts), tuple(client % 2 for client in range(20)))
    assert partition.sha256 == "e6eebf3f5bb679f67bd7f36687114ebac2c8a7a1289f73a913a52f216ccbacc9"


class TestAccepts:
    def test_indices_become_sorted_and_fixed(self) -> None:
        assert TWO.indices[0].tolist() == [0, 3]
        with pytest.raises(ValueError, match="read-only"):
            TWO.indices[0][0] = 7

    def test_the_callers_array_stays_as_it_was(self) -> None:
        mine = np.array([3, 0])
        partition = Partition((mine,), (0,))
        mine[0] = 5
        assert mine.tolist() == [5, 0]
        assert partition.indices[0].tolist() == [0, 3]

    def test_empty_clients(self) -> None:
        partition = Partition((np.empty(0, np.int64), np.array([0])), (0, 0))
        assert partition.sizes == (0, 1)
        assert partition.clients == 2
        assert partition.counts(np.array([2]), 3).tolist() == [[0, 0, 0], [0, 0, 1]]

    def test_counts_by_hand(self) -> None:
        assert TWO.counts(np.array([0, 1, 1, 0]), 2).tolist() == [[2, 0], [0, 1]]

    def test_manifest_goes_through_json_and_back(self) -> None:
        again = Partition.from_manifest(json.loads(json.dumps(TWO.manifest())))
        assert again == TWO
        assert hash(again) == hash(TWO)
        assert again.sectors == (1, 0)

    def test_names_go_with_it_and_leave_the_hash_alone(self) -> None:
        named = Partition(TWO.indices, TWO.sectors, ("b", "a"), ("east", "west"))
        assert named == TWO
        again = Partition.from_manifest(json.loads(json.dumps(named.manifest())))
        assert (again.client_names, again.sector_names) == (("b", "a"), ("east", "west"))
        assert (again.client_name(1), again.sector_name(0)) == ("a", "east")
        assert (TWO.client_name(1), TWO.sector_name(0)) == ("1", "0")
        assert not {"client_names", "sector_names"} & set(TWO.manifest())

    def test_what_is_told_knows_its_data(self) -> None:
        """The hash of the labels is the same for numbers of any width."""
        told = TWO.described(np.array([0, 1, 1, 0], np.uint8), 2, ["a", "b"], {"seed": 3})
        assert told["labels_sha256"] == TWO.described(np.array([0, 1, 1, 0]), 2, ["a", "b"])["labels_sha256"]
        assert (
            told["labels_sha256"] == hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (0, 1, 1, 0))).hexdigest()
        )
        assert (told["samples"], told["made_with"]) == (4, {"seed": 3})

    def test_further_keys_in_a_manifest_are_passed_over(self) -> None:
        assert Partition.from_manifest({**TWO.manifest(), "counts": [[1, 2]], "classes": ["a", "b"]}) == TWO

    def test_hash_sees_who_holds_what_and_where(self) -> None:
        variants = [
            TWO,
            Partition((np.array([3, 0]), np.array([1])), (0, 1)),
            Partition((np.array([3]), np.array([0, 1])), (1, 0)),
            Partition((np.array([1]), np.array([0, 3])), (1, 0)),
            Partition((np.array([0, 3]), np.array([1]), np.array([], np.int64)), (1, 0, 0)),
        ]
        assert len({partition.sha256 for partition in variants}) == len(variants)


class TestRefuses:
    def test_a_changed_manifest(self) -> None:
        manifest = TWO.manifest()
        manifest["indices"][1] = [2]
        with pytest.raises(DataError, match="manifest was changed"):
            Partition.from_manifest(manifest)

    def test_changed_sectors(self) -> None:
        with pytest.raises(DataError, match="manifest was changed"):
            Partition.from_manifest({**TWO.manifest(), "sectors": [0, 1]})

    def test_what_is_no_manifest(self) -> None:
        with pytest.raises(DataError, match="it lacks version, sha256, sectors, indices"):
            Partition.from_manifest({})
        with pytest.raises(DataError, match="lists of whole numbers"):
            Partition.from_manifest({**TWO.manifest(), "indices": [["a"], [1]]})
        with pytest.raises(DataError, match="lists of whole numbers"):
            Partition.from_manifest({**TWO.manifest(), "indices": 5})
        with pytest.raises(DataError, match="version 9"):
            Partition.from_manifest({**TWO.manifest(), "version": 9})

    @pytest.mark.parametrize(
        ("indices", "sectors", "sentence"),
        [
            (([0, 1], [1]), (0, 0), "each sample to one client only"),
            (([-1],), (0,), "start at 0"),
            (([0], [1]), (0,), "2 clients names the sectors of 1"),
            (([0], [1]), (0, 2), "without gaps"),
            ((), (), "at least one client"),
        ],
    )
    def test_nonsense(self, indices: tuple[list[int], ...], sectors: tuple[int, ...], sentence: str) -> None:
        with pytest.raises(DataError, match=sentence):
            Partition(tuple(np.array(client) for client in indices), sectors)

    def test_names_for_others(self) -> None:
        for names in ({"client_names": ("a",)}, {"sector_names": ("a", "b", "c")}):
            with pytest.raises(DataError, match="names for 2 clients or sectors"):
                Partition(TWO.indices, TWO.sectors, **names)

    def test_labels_of_another_set(self) -> None:
        with pytest.raises(DataError, match="names sample 3, but there are only 2 labels"):
            TWO.counts(np.array([0, 1]), 2)
