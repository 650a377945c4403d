"""Samples by client and class, and the figure of a split."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest

from headwater.partition.partition import pack
from headwater.report.client_data import SampleCounts, class_names, client_sectors, split_card
from headwater.report.runs import read


def test_a_dot_for_every_holding_and_area_by_count(fake, tmp_path):
    run = read(fake().write(tmp_path / "a"))
    drawn = split_card(run, "s", "Samples by client and class")
    counts = {
        (client, name): value
        for client, row in enumerate(run.partition["counts"])
        for name, value in zip(run.partition["classes"], row, strict=True)
        if value
    }
    dots = re.findall(r'r="([\d.]+)"><title>client (\d+), sector (\d+): (\d+) of (\w+)</title>', drawn)
    assert {(int(client), name): int(value) for _, client, _, value, name in dots} == counts
    assert all(int(sector) == run.partition["sectors"][int(client)] for _, client, sector, _, _ in dots)
    ratios = [float(radius) / math.sqrt(int(value)) for radius, _, _, value, _ in dots if float(radius) > 2]
    assert max(ratios) - min(ratios) < 0.02
    totals = sorted(map(sum, run.partition["counts"]))
    assert f"10 clients in 2 sectors, 10 classes; samples per client: {totals[0]} to {totals[-1]}" in drawn


def test_sectors_stand_apart(fake, tmp_path):
    run = read(fake(clients=12, sectors=3).write(tmp_path / "a"))
    drawn = split_card(run, "s", "Samples by client and class")
    stripes = [tuple(map(float, pair)) for pair in re.findall(r'"stripe" x="([\d.]+)%" y="0" width="([\d.]+)%"', drawn)]
    assert len(stripes) == 3
    assert all(before + wide < after for (before, wide), (after, _) in itertools.pairwise(stripes))


@pytest.mark.parametrize(
    ("clients", "scrolls", "kind"), [(1, False, "card "), (20, False, "card "), (100, True, "card span")]
)
def test_many_clients_scroll_in_their_own_box(fake, tmp_path, clients, scrolls, kind):
    run = read(fake(clients=clients, sectors=min(clients, 5)).write(tmp_path / "a"))
    drawn = split_card(run, "s", "Samples by client and class")
    assert ("--least" in drawn) == scrolls
    assert f'<figure class="{kind}"' in drawn


def test_too_many_clients_become_sectors(fake, tmp_path):
    run = read(fake(clients=500, sectors=4).write(tmp_path / "a"))
    held = SampleCounts.of(run.partition)
    assert not held.by_client
    assert len(held.names) == 4
    assert sum(map(sum, held.counts)) == sum(map(sum, run.partition["counts"]))
    assert "too many clients" in split_card(run, "s", "Samples by client and class")


def test_incomplete_files_are_no_obstacle(fake, tmp_path):
    run = read(fake().write(tmp_path / "a"))
    assert split_card(replace(run, partition=None), "s", "x") == ""
    assert split_card(replace(run, partition={"sectors": [0]}), "s", "x") == ""
    held = SampleCounts.of({"counts": [[1, 2], [3]]})
    assert (held.sectors, held.counts, held.classes) == ([0, 0], [[1, 2], [3, 0]], ["0", "1"])
    assert client_sectors({"sectors": [0, None, 2]}) == {0: 0, 2: 2}
    assert class_names(["a"], 3) == ["a", "1", "2"]


def test_an_empty_client_keeps_its_column(fake, tmp_path):
    run = read(fake(clients=3, sectors=1).write(tmp_path / "a"))
    run.partition["counts"][1] = [0] * 10
    held = SampleCounts.of(run.partition)
    assert held.names == ["0", "1", "2"]
    assert "client 1," not in split_card(run, "s", "x")


def test_of_a_large_population_it_is_said_how_many_were_counted(fake, tmp_path):
    placed = tuple(at % 3 for at in range(50_000))
    run = read(fake(clients=60).write(tmp_path / "a"))
    rows = run.partition["counts"]
    told = run.partition | {"sectors": pack(placed), "counted": {"first": 60, "of": 50_000}}
    assert client_sectors(told)[49_999] == placed[49_999]
    assert client_sectors(told).get(50_000) is None
    held = SampleCounts.of(told)
    assert held.names[:3] == ["0", "3", "6"]
    assert [sum(row) for row in held.counts] == [sum(rows[int(name)]) for name in held.names]
    drawn = (
        split_card(replace(run, partition=told), "s", "Samples by client and class")
        .replace("\u202f", " ")
        .replace("\xa0", " ")
    )
    assert "the first 60 of 50 000 clients in 3 sectors" in drawn
    assert "may share samples" in drawn
    assert client_sectors(told | {"sectors": "<u1:nonsense"}) == {}


def test_names_of_the_data_are_told(fake, tmp_path):
    """Columns keep their numbers; what a dot says has the name. A list that is too short leaves the rest as numbers."""
    run = read(fake(clients=4, sectors=2).write(tmp_path / "a"))
    named = {"client_names": ["<b>", "north 2", "x"], "sector_names": ["east", "west"]}
    drawn = split_card(replace(run, partition=run.partition | named), "s", "Samples by client and class")
    places = [["east", "west"][sector] for sector in run.partition["sectors"]]
    for who, place in zip(["&lt;b&gt;", "north 2", "x", "3"], places, strict=True):
        assert f"<title>client {who}, sector {place}: " in drawn
    assert ">sector east<" in drawn
    assert SampleCounts.of(run.partition | {"client_names": 5}).called("client", 1) == "client 1"
