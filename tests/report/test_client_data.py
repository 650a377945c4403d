"""Clients, sectors and their samples, as partition.json records them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.partition.partition import pack
from headwater.report.client_data import caller, class_names, client_sectors, tree
from headwater.report.runs import read


def test_the_tree_has_every_client_with_its_counts_in_its_sector(fake, tmp_path):
    run = read(fake(clients=12, sectors=3).write(tmp_path / "a"))
    root = tree(run)
    assert [sector.name for sector in root.below] == ["sector 0", "sector 1", "sector 2"]
    counts = run.partition["counts"]
    for at, sector in enumerate(root.below):
        own = [client for client, place in enumerate(run.partition["sectors"]) if place == at]
        assert [each.name for each in sector.below] == [f"client {client}" for client in own]
        for client, each in zip(own, sector.below, strict=True):
            held = {str(label): value for label, value in enumerate(counts[client]) if value}
            assert {name: amount for name, _, amount in each.mix} == held
        assert sector.samples == sum(sum(counts[client]) for client in own)
    assert root.samples == sum(map(sum, counts))
    assert f"0: {sum(row[0] for row in counts)}" in root.words


def test_too_many_clients_become_sectors(fake, tmp_path):
    root = tree(read(fake(clients=500, sectors=4).write(tmp_path / "a")))
    assert [len(sector.below) for sector in root.below] == [0] * 4
    assert root.samples == sum(sector.samples for sector in root.below)


def test_incomplete_files_are_no_obstacle(fake, tmp_path):
    run = read(fake().write(tmp_path / "a"))
    assert tree(replace(run, partition=None)) is None
    assert tree(replace(run, partition={"sectors": [0]})) is None
    root = tree(replace(run, partition={"counts": [[1, 2], [3]]}))
    assert [each.words for each in root.below[0].below] == ["0: 1, 1: 2", "0: 3"]
    assert client_sectors({"sectors": [0, None, 2]}) == {0: 0, 2: 2}
    assert class_names(["a"], 3) == ["a", "1", "2"]


def test_an_empty_client_keeps_its_place(fake, tmp_path):
    run = read(fake(clients=3, sectors=1).write(tmp_path / "a"))
    run.partition["counts"][1] = [0] * 10
    assert tree(run).below[0].below[1].words == "no samples"


def test_of_a_large_population_it_is_said_how_many_were_counted(fake, tmp_path):
    placed = tuple(at % 3 for at in range(50_000))
    run = read(fake(clients=60).write(tmp_path / "a"))
    packed = run.partition | {"sectors": pack(placed), "counted": {"first": 60, "of": 50_000}}
    assert client_sectors(packed)[49_999] == placed[49_999]
    assert client_sectors(packed).get(50_000) is None
    root = tree(replace(run, partition=packed))
    assert "first 60 of 50000 clients" in root.name
    assert [len(sector.below) for sector in root.below] == [20, 20, 20]
    assert client_sectors(packed | {"sectors": "<u1:nonsense"}) == {}


@pytest.mark.parametrize(("kind", "at", "name"), [("client", 1, "client north 2"), ("client", 3, "client 3")])
def test_names_are_those_of_the_data(kind, at, name):
    """A list that is too short leaves the rest as numbers."""
    named = {"client_names": ["<b>", "north 2", "x"], "sector_names": ["east", "west"]}
    assert caller(named)(kind, at) == name
    assert caller(named)("sector", 1) == "sector west"
    assert caller({"client_names": 5})("client", 1) == "client 1"
