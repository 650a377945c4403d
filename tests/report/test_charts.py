"""Specifications of the charts: the numbers in them, and that Vega accepts each."""

from __future__ import annotations

import json

import pytest

from headwater.report import charts, detail_charts, page_sections
from headwater.report.grouping import group
from headwater.report.runs import find, read


def test_points_are_means_over_seeds_with_cost_so_far(comparison, tmp_path):
    runs = find(comparison(tmp_path))
    groups = group(runs).groups
    rows = charts.points(groups)
    assert len(rows) == 4 * 8
    own = [run for run in runs if run.label == "FedHEAD"]
    third = next(row for row in rows if row["name"] == "FedHEAD" and row["round"] == 3)
    values = [run.rows[2]["accuracy"] for run in own]
    assert third["accuracy"] == pytest.approx(sum(values) / 3)
    assert (third["accuracy_low"], third["accuracy_high"]) == (min(values), max(values))
    assert third["loss"] == pytest.approx(sum(run.rows[2]["loss"] for run in own) / 3)
    assert third["bytes"] == own[0].traffic()[3]
    assert third["near"] == pytest.approx(own[0].traffic("sector_client")[3] / 2)  # two sectors
    assert third["seconds"] == pytest.approx(3 * 0.6)  # training and distillation, without evaluation
    assert [row["round"] for row in rows if row["last"]] == [8] * 4


def test_stopped_seeds_leave_a_pale_end_that_begins_where_the_curve_ends(fake, tmp_path):
    fake(seed=0).write(tmp_path / "a")
    fake(seed=1, stop=3).write(tmp_path / "b")
    rows = charts.points(group(find(tmp_path)).groups)
    assert [row["round"] for row in rows if not row["tail"]] == [1, 2, 3]
    assert [row["round"] for row in rows if row["tail"]] == [3, 4, 5, 6, 7, 8]


def test_a_long_curve_has_few_marks_and_few_points_that_react():
    spec = charts.curves([f"m{at}" for at in range(50)], "round", "accuracy", 100)
    hover = next(layer for layer in spec["layer"] if "params" in layer)
    assert hover["transform"] == [{"filter": "datum.last || datum.round % 9 == 0"}]
    single = charts.curves(["m"], "round", "accuracy", 8)
    assert "% 1 == 0" in json.dumps(single)


@pytest.mark.parametrize("x", charts.X_AXES)
@pytest.mark.parametrize("y", charts.Y_AXES)
def test_vega_lite_accepts_the_curves(comparison, tmp_path, x, y):
    """The converter has the compiler that the page has; it would refuse or warn of what it does not know."""
    import vl_convert

    rows = charts.points(group(find(comparison(tmp_path, rounds=3))).groups)
    for row in rows:
        row["time"] = row["seconds"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    spec = charts.curves(names, x, y, 3) | {"data": {"values": rows}, "width": 300}
    drawn = vl_convert.vegalite_to_svg(spec)
    assert drawn.count('aria-roledescription="line mark') >= 4


def test_confusion_shares_are_those_of_the_row():
    spec = detail_charts.confusion([[8, 2], [0, 5]], ["cat", "dog"])
    cells = {
        (row["true"], row["predicted"]): (row["count"], row["share"], row["right"]) for row in spec["data"]["values"]
    }
    assert cells == {("cat", "cat"): (8, 0.8, True), ("cat", "dog"): (2, 0.2, False), ("dog", "dog"): (5, 1.0, True)}
    assert (spec["width"], spec["height"]) == (220, 220)
    many = detail_charts.confusion([[1.0] * 40] * 40, [str(at) for at in range(40)])
    assert len(many["layer"]) == 1, "figures would not fit"


@pytest.mark.parametrize(
    ("sectors", "server", "places"),
    [(True, False, ["at sectors"]), (False, True, ["at the server"]), (True, True, ["at sectors", "at the server"])],
)
def test_teacher_and_student_where_they_meet(fake, tmp_path, sectors, server, places):
    run = read(fake(distils=True, at_sectors=sectors, at_server=server).write(tmp_path / "a"))
    figures, table = page_sections.teaching(group([run]).groups)
    assert [figure.title for figure in figures] == [f"FedAvg: teacher and student {place}" for place in places]
    rows = figures[0].spec["data"]["values"]
    last = {row["name"]: row["value"] for row in rows if row["round"] == 8}
    assert last == {
        "teacher": run.rows[-1]["teacher_accuracy"],
        "student before": run.rows[-1]["student_before"],
        "student after": run.rows[-1]["student_after"],
    }
    students = [row[1].text for row in table.rows]
    assert students == (["sector 0", "sector 1"] if sectors else []) + (["server"] if server else [])
    assert table.rows[0][list(table.heads).index("Points gained")].value == pytest.approx(
        last["student after"] - last["student before"]
    )


def test_teacher_and_student_without_places(fake, tmp_path):
    run = read(fake(distils=True).write(tmp_path / "a"))
    for row in run.rows:
        del row["distill"]
    figures, table = page_sections.teaching(group([run]).groups)
    assert [figure.title for figure in figures] == ["FedAvg: teacher and student"]
    assert table.rows[0][1].text == "all"
    assert page_sections.teaching(group([read(fake().write(tmp_path / "b"))]).groups) == ([], None)


def test_all_methods_share_the_axis_of_clients(comparison, tmp_path):
    groups = group(find(comparison(tmp_path))).groups
    figure = page_sections.spread(groups)
    rows = figure.spec["data"]["values"]
    assert {row["name"] for row in rows} == {each.label for each in groups}
    own = groups[1].runs[0].result["client_accuracy"]
    assert sorted(row["accuracy"] for row in rows if row["name"] == "FedDF") == sorted(own.values())
    assert {row["sector"] for row in rows} == {"sector 0", "sector 1"}
    assert f"lowest {100 * min(own.values()):.1f}" in figure.description.replace("\xa0", " ")
