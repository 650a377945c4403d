"""The spread over clients."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.partition.base import pack
from headwater.report import clients
from headwater.report.groups import Group
from headwater.report.runs import read


def test_a_dot_a_client_in_its_sectors_lane(fake, tmp_path):
    run = read(fake(clients=12, sectors=3).write(tmp_path / "a"))
    group = Group("x", (run,))
    drawn = clients.card_of(group, "k", clients.axis([group]), few=True)
    dots = dict(re.findall(r"<title>c(\d+), sector (\d+): ", drawn))
    assert {int(client): int(sector) for client, sector in dots.items()} == dict(enumerate(run.partition["sectors"]))
    assert drawn.count('class="bar"') == 3
    assert "12 clients: lowest" in drawn


def test_names_of_the_data_stand_beside_the_numbers(fake, tmp_path):
    run = read(fake(clients=4, sectors=2).write(tmp_path / "a"))
    named = {"client_names": [f"site {at}" for at in range(4)], "sector_names": ["east", "w" * 60]}
    group = Group("x", (replace(run, partition=run.partition | named),))
    drawn = clients.card_of(group, "k", clients.axis([group]), few=True)
    for at, sector in enumerate(run.partition["sectors"]):
        assert f"<title>c{at} (site {at}), sector {named['sector_names'][sector]}: " in drawn
    assert ">sector east<" in drawn
    assert f">sector {'w' * 14}…<" in drawn


def test_clients_without_a_number_are_left_out(fake, tmp_path):
    run = read(
        fake(clients=3, sectors=1, result={"client_accuracy": {"c0": 0.5, "c1": None, "c2": 0.7}}).write(tmp_path / "a")
    )
    group = Group("x", (run,))
    drawn = clients.card_of(group, "k", clients.axis([group]), few=True)
    assert "2 clients: lowest 50.0\u00a0%, median 60.0\u00a0%, highest 70.0\u00a0%." in drawn


def test_without_partition_there_is_one_lane(fake, tmp_path):
    run = replace(read(fake().write(tmp_path / "a")), partition=None)
    group = Group("x", (run,))
    drawn = clients.card_of(group, "k", clients.axis([group]), few=False)
    assert drawn.count('class="bar"') == 1
    assert ", clients: " in drawn


def test_of_very_many_it_is_said_that_some_were_drawn(fake, tmp_path):
    placed = tuple(at % 2 for at in range(50_000))
    asked = {f"c{at}": 0.5 for at in range(7, 50_000, 500)}
    run = read(fake(result={"client_accuracy": asked}).write(tmp_path / "a"))
    group = Group("x", (replace(run, partition=run.partition | {"sectors": pack(placed)}),))
    drawn = clients.card_of(group, "k", clients.axis([group]), few=True)
    assert "100 clients drawn among 50\u202f000: lowest" in drawn
    dots = dict(re.findall(r"<title>c(\d+), sector (\d+): ", drawn))
    assert {int(client): int(sector) for client, sector in dots.items()} == {
        int(client[1:]): placed[int(client[1:])] for client in asked
    }


def test_nothing_recorded_nothing_drawn(fake, tmp_path):
    run = read(fake(stop=1, every=2).write(tmp_path / "a"))
    assert clients.axis([Group("x", (run,))]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from([34.0, 90.0]))
def test_dots_stay_in_their_lane_and_apart_while_there_is_room(shares, lane):
    lifts = clients.swarm(shares, lane)
    assert all(abs(lift) <= lane / 2 - clients.RADIUS for lift in lifts)
    if len(shares) <= 3:
        spots = [(420 * share, lift) for share, lift in zip(shares, lifts, strict=True)]
        gaps = [(a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for i, a in enumerate(spots) for b in spots[:i]]
        assert all(gap >= (1.7 * clients.RADIUS) ** 2 - 1e-6 for gap in gaps)
