"""Leaders by round and sector, and link speeds: what the page shows of them."""

from __future__ import annotations

import json
import re

import pytest

from headwater.report import leaders, page, page_sections
from headwater.report.grouping import group, over_seeds
from headwater.report.runs import read


@pytest.fixture
def led(fake, tmp_path):
    """A run of three rounds: sector 0 gains 9 points each time; in sector 1 the last lesson loses 20."""
    path = fake(distils=True, rounds=3).write(tmp_path / "led")
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for at, row in enumerate(rows):
        row["leaders"] = {"s0": "c1", "s1": f"c{at + 2}"}
        row["distill"] = {
            "s0": {"student_before": 0.5, "student_after": 0.59, "teacher_accuracy": 0.6, "accepted": 1},
            "s1": {"student_before": 0.5, "student_after": 0.3 if at == 2 else 0.5},
        }
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read(path)


def test_lessons_by_round_and_sector(led):
    found = leaders.lessons(led)
    assert [(row["round"], row["sector"], row["leader"]) for row in found] == [
        (at, sector, f"client {client}")
        for at in (1, 2, 3)
        for sector, client in (("sector 0", 1), ("sector 1", at + 1))
    ]
    assert [row["gain"] for row in found] == pytest.approx([9, 0, 9, 0, 9, -20])
    [figure] = page_sections.led(group([led]).groups)
    assert "4 clients led. 3 of 6 distillations raised" in figure.description
    assert "1 lowered it" in figure.description
    assert "most client 1 (sector 0) +9.0, least client 4 (sector 1) -20.0" in figure.description
    cells = figure.spec["data"]["values"]
    assert [cell["up"] for cell in cells] == [True] * 5 + [False]
    assert max(cell["depth"] for cell in cells) == cells[-1]["depth"] == pytest.approx(0.56)
    assert cells[0]["tip"] == (
        "+9.0 points, student before 50.0 %, student after 59.0 %, teachers together 60.0 %, accepted 1"
    )


def test_the_table_of_the_last_round_names_leaders(led):
    _, table = page_sections.teaching(group([led]).groups)
    assert [row[1].text for row in table.rows] == ["sector 0, led by client 1", "sector 1, led by client 4"]


def test_leaders_without_measurements(led):
    for row in led.rows:
        row["distill"] = {"s0": None} if row["round"] == 1 else None
    [figure] = page_sections.led(group([led]).groups)
    assert "was not measured" in figure.description
    assert {cell["tip"] for cell in figure.spec["data"]["values"]} == {"not measured"}


def test_methods_without_leaders_have_no_such_chart(fake, tmp_path):
    assert page_sections.led(group([read(fake(distils=True).write(tmp_path / "a"))]).groups) == []


def test_the_page_starts_from_the_configured_speeds(fake, tmp_path):
    slow = fake(label="Slow")
    path = slow.write(tmp_path / "slow")
    with (path / "config.toml").open("a") as file:
        file.write("\n[links]\nserver_sector_mbps = 2.5\nserver_sector_ms = 300\n")
    text = page.render([read(path)])
    values = dict(re.findall(r'name="(far|near|far_ms|near_ms)"[^>]* value="([^"]*)"', text))
    assert values == {"far": "2.5", "near": "20", "far_ms": "300", "near_ms": "10"}
    assert "2.5 Mbit/s and 300 ms a round trip at the server, 20 Mbit/s and 10 ms at a sector." in text
    other = read(fake(seed=1).write(tmp_path / "other"))
    both = page.render([read(path), other])
    assert "others have different ones" in both
    assert len(group([read(path), other]).groups) == 1, "the same method on two seeds, whatever the links"


def test_round_trips_add_up_and_are_guessed_where_no_row_has_them(fake, tmp_path):
    run = read(fake(rounds=3).write(tmp_path / "a"))
    assert [(point.far_trips, point.near_trips) for point in over_seeds([run])] == [(1, 1), (2, 2), (3, 3)]
    for row in run.rows:
        row["waits"] = {"server_sector": 2, "sector_client": 0}
    assert [(point.far_trips, point.near_trips) for point in over_seeds([run])] == [(2, 0), (4, 0), (6, 0)]
