"""Accuracy by client, and the confusion matrix."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.partition.partition import pack
from headwater.report.breakdown import RADIUS, client_axis, clients_card, confusion_card, swarm
from headwater.report.grouping import MethodRuns
from headwater.report.runs import read


def test_a_dot_a_client_in_its_sectors_lane(fake, tmp_path):
    run = read(fake(clients=12, sectors=3).write(tmp_path / "a"))
    group = MethodRuns("x", (run,))
    drawn = clients_card(group, "k", client_axis([group]), few=True)
    dots = dict(re.findall(r"<title>c(\d+), sector (\d+): ", drawn))
    assert {int(client): int(sector) for client, sector in dots.items()} == dict(enumerate(run.partition["sectors"]))
    assert drawn.count('class="bar"') == 3
    assert "12 clients: lowest" in drawn


def test_names_of_the_data_stand_beside_the_numbers(fake, tmp_path):
    run = read(fake(clients=4, sectors=2).write(tmp_path / "a"))
    named = {"client_names": [f"site {at}" for at in range(4)], "sector_names": ["east", "w" * 60]}
    group = MethodRuns("x", (replace(run, partition=run.partition | named),))
    drawn = clients_card(group, "k", client_axis([group]), few=True)
    for at, sector in enumerate(run.partition["sectors"]):
        assert f"<title>c{at} (site {at}), sector {named['sector_names'][sector]}: " in drawn
    assert ">sector east<" in drawn
    assert f">sector {'w' * 14}…<" in drawn


def test_clients_without_a_number_are_left_out(fake, tmp_path):
    run = read(
        fake(clients=3, sectors=1, result={"client_accuracy": {"c0": 0.5, "c1": None, "c2": 0.7}}).write(tmp_path / "a")
    )
    group = MethodRuns("x", (run,))
    drawn = clients_card(group, "k", client_axis([group]), few=True)
    assert "2 clients: lowest 50.0\u00a0%, median 60.0\u00a0%, highest 70.0\u00a0%." in drawn


def test_without_partition_there_is_one_lane(fake, tmp_path):
    run = replace(read(fake().write(tmp_path / "a")), partition=None)
    group = MethodRuns("x", (run,))
    drawn = clients_card(group, "k", client_axis([group]), few=False)
    assert drawn.count('class="bar"') == 1
    assert ", clients: " in drawn


def test_of_very_many_it_is_said_that_some_were_drawn(fake, tmp_path):
    placed = tuple(at % 2 for at in range(50_000))
    asked = {f"c{at}": 0.5 for at in range(7, 50_000, 500)}
    run = read(fake(result={"client_accuracy": asked}).write(tmp_path / "a"))
    group = MethodRuns("x", (replace(run, partition=run.partition | {"sectors": pack(placed)}),))
    drawn = clients_card(group, "k", client_axis([group]), few=True)
    assert "100 clients drawn among 50\u202f000: lowest" in drawn
    dots = dict(re.findall(r"<title>c(\d+), sector (\d+): ", drawn))
    assert {int(client): int(sector) for client, sector in dots.items()} == {
        int(client[1:]): placed[int(client[1:])] for client in asked
    }


def test_nothing_recorded_nothing_drawn(fake, tmp_path):
    run = read(fake(stop=1, every=2).write(tmp_path / "a"))
    assert client_axis([MethodRuns("x", (run,))]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from([34.0, 90.0]))
def test_dots_stay_in_their_lane_and_apart_while_there_is_room(shares, lane):
    lifts = swarm(shares, lane)
    assert all(abs(lift) <= lane / 2 - RADIUS for lift in lifts)
    if len(shares) <= 3:
        spots = [(420 * share, lift) for share, lift in zip(shares, lifts, strict=True)]
        gaps = [(a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for i, a in enumerate(spots) for b in spots[:i]]
        assert all(gap >= (1.7 * RADIUS) ** 2 - 1e-6 for gap in gaps)


def test_counts_of_all_seeds_together(fake, tmp_path):
    runs = [
        read(fake(seed=seed, classes=("cat", "dog"), result={"confusion": table}).write(tmp_path / str(seed)))
        for seed, table in ((0, [[8, 2], [1, 9]]), (1, [[7, 3], [0, 10]]))
    ]
    drawn = confusion_card(MethodRuns("x", tuple(runs)), "c")
    assert set(re.findall(r"<title>(\w+ taken for \w+: \d+) \(", drawn)) == {
        "cat taken for cat: 15",
        "cat taken for dog: 5",
        "dog taken for cat: 1",
        "dog taken for dog: 19",
    }
    assert re.findall(r">(\d+)</text>", drawn) == ["75", "25", "5", "95"]
    assert "cat taken for dog (25.0\u00a0%); dog taken for cat (5.0\u00a0%)." in drawn
    assert "2 seeds together" in drawn


def test_classes_the_test_set_lacks_and_perfect_models(fake, tmp_path):
    run = read(
        fake(classes=("a", "b", "c"), result={"confusion": [[5, 0, 0], [0, 0, 0], [0, 0, 3]]}).write(tmp_path / "a")
    )
    drawn = confusion_card(MethodRuns("x", (run,)), "c")
    assert drawn.count('class="right"') == 2
    assert "No mistakes" in drawn


def test_a_hundred_classes_without_figures(fake, tmp_path):
    run = read(fake(classes=[f"class {at}" for at in range(100)]).write(tmp_path / "a"))
    drawn = confusion_card(MethodRuns("x", (run,)), "c")
    assert drawn.count('class="right"') == 100
    assert '<g class="figures" aria-hidden="true"></g>' in drawn


def test_absent_or_odd_matrices_are_left_out(fake, tmp_path):
    run = read(fake().write(tmp_path / "a"))
    for odd in (None, [], [[1, 2]], "x", {"a": 1}):
        assert confusion_card(MethodRuns("x", (replace(run, result={"confusion": odd}),)), "c") == ""
