"""Curves as SVG: as many as there are methods, where their numbers say."""

from __future__ import annotations

import re

import pytest

from headwater.report import charts
from headwater.report.grouping import MethodRuns, accuracy, group
from headwater.report.runs import find, read
from headwater.report.svg import WIDE


def polylines(page: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline class="curve" points="([^"]+)"', page)
    return [[tuple(map(float, pair.split(","))) for pair in each.split()] for each in found]


def test_one_curve_a_method_from_left_to_right(comparison, tmp_path):
    series = accuracy(group(find(comparison(tmp_path))).groups)
    for drawn in (charts.by_round(series), charts.by_bytes(series)):
        lines = polylines(drawn)
        assert len(lines) == 4
        for line, each in zip(lines, series, strict=True):
            assert len(line) == len(each.points)
            assert [x for x, _ in line] == sorted(x for x, _ in line)
            assert all(0 <= x <= WIDE and 0 <= y <= charts.HEIGHT for x, y in line)
    heights = [line[-1][1] for line in polylines(charts.by_round(series))]
    values = [each.points[-1].value for each in series]
    by_height = sorted(range(4), key=lambda at: heights[at])
    assert by_height == sorted(range(4), key=lambda at: -values[at]), "a higher accuracy is drawn higher"


def test_a_point_lies_where_its_value_says(fake, tmp_path):
    run = read(fake(rounds=3).write(tmp_path / "a"))
    for row, value in zip(run.rows, (0.2, 0.6, 1.0), strict=True):
        row["accuracy"] = value
    drawn = charts.by_round(accuracy([MethodRuns("x", (run,))]))
    assert polylines(drawn) == [[(0, 300), (500, 150), (1000, 0)]]


def test_thrifty_methods_get_a_logarithmic_axis(fake, tmp_path):
    runs = [
        read(fake(method=name, model_bytes=size).write(tmp_path / name)) for name, size in (("a", 100), ("b", 10**6))
    ]
    drawn = charts.by_bytes(accuracy(group(runs).groups))
    assert "logarithmic" in drawn
    starts = [line[0][0] for line in polylines(drawn)]
    assert starts[1] - starts[0] > 0.3 * WIDE


def test_a_method_that_sends_nothing_is_a_level_line(fake, tmp_path):
    runs = [
        read(fake(method=name, model_bytes=size).write(tmp_path / name)) for name, size in (("local", 0), ("b", 10**6))
    ]
    drawn = charts.by_bytes(accuracy(group(runs).groups))
    assert len(polylines(drawn)) == 1
    assert drawn.count('class="series level') == 1
    alone = charts.by_bytes(accuracy(group(runs[:1]).groups))
    assert "No bytes" in alone


def test_stopped_seeds_leave_a_pale_end(fake, tmp_path):
    runs = [read(fake(seed=0).write(tmp_path / "a")), read(fake(seed=1, stop=3).write(tmp_path / "b"))]
    drawn = charts.by_round(accuracy(group(runs).groups))
    assert drawn.count('class="curve tail"') == 1
    assert "pale end" in drawn
    assert [len(line) for line in polylines(drawn)] == [3]


def test_one_round_is_a_dot(fake, tmp_path):
    drawn = charts.by_round(accuracy(group([read(fake(rounds=1).write(tmp_path / "a"))]).groups))
    assert polylines(drawn) == []
    assert drawn.count("<circle") == 1


@pytest.mark.parametrize(
    ("sectors", "server", "headings"),
    [(True, False, ["at sectors"]), (False, True, ["at the server"]), (True, True, ["at sectors", "at the server"])],
)
def test_teacher_and_student_where_they_meet(fake, tmp_path, sectors, server, headings):
    run = read(fake(distils=True, at_sectors=sectors, at_server=server).write(tmp_path / "a"))
    drawn = charts.distillation(MethodRuns("x", (run,)), "0")
    assert re.findall("<h3>Teacher and student (.*?)</h3>", drawn) == headings
    assert len(polylines(drawn)) == 3 * len(headings)


def test_teacher_and_student_without_places(fake, tmp_path):
    run = read(fake(distils=True).write(tmp_path / "a"))
    for row in run.rows:
        del row["distill"]
    assert len(polylines(charts.distillation(MethodRuns("x", (run,)), "0"))) == 3
    plain = read(fake().write(tmp_path / "b"))
    assert charts.distillation(MethodRuns("x", (plain,)), "0") == ""
