"""Charts of a sweep: which chart for how many keys, and what is marked as best."""

from __future__ import annotations

import pytest

from headwater.report import sweep_charts
from headwater.report.charts import picture
from headwater.report.grouping import group
from headwater.report.method_table import tabulate
from headwater.report.runs import find


def figures(path, keys=None):
    groups = group(find(path)).groups
    return sweep_charts.figures(groups, tabulate(groups), sweep_charts.keys_of(groups) if keys is None else keys)


@pytest.fixture
def swept(fake, tmp_path):
    for alpha in (0.1, 1.0):
        for mu, value in ((0.1, 0.7), (0.01, 0.8), (1.0, 0.6)):
            made = fake(algorithm={"mu": mu}, alpha=alpha, result={"accuracy": value - alpha / 10})
            made.write(tmp_path / "s" / f"{alpha}-{mu}")
    return tmp_path / "s"


def test_two_keys_are_a_heat_map_with_the_best_of_each_problem(swept):
    (figure,) = figures(swept)
    assert figure.title == "Accuracy by partition.alpha and algorithm.mu"
    cells = {(row["k0"], row["k1"]): row["cell"] for row in figure.spec["data"]["values"]}
    assert len(cells) == 6
    assert {key for key, text in cells.items() if text.startswith("★")} == {("0.1", "0.01"), ("1.0", "0.01")}
    assert cells["0.1", "1.0"] == "59.0"
    assert figure.spec["encoding"]["x"]["sort"] == ["0.01", "0.1", "1.0"], "by value, not as words"


def test_one_key_is_a_row_of_dots_and_three_are_parallel_coordinates(fake, swept, tmp_path):
    fake(algorithm={"mu": 0.5}).write(tmp_path / "t" / "a")
    fake(algorithm={"mu": 0.7}).write(tmp_path / "t" / "b")
    (dots,) = figures(tmp_path / "t")
    assert dots.spec["encoding"]["x"]["title"] == "algorithm.mu"
    (lines,) = figures(swept, ["partition.alpha", "algorithm.mu", "algorithm.name"])
    rows = lines.spec["layer"][0]["data"]["values"]
    assert {row["axis"] for row in rows} == {"alpha", "mu", "name", "accuracy"}
    assert len(rows) == 6 * 4
    assert picture(lines.spec, tmp_path / "lines.svg").read_text(encoding="utf-8").count("<path") > 10
    assert picture(dots.spec, tmp_path / "dots.png").stat().st_size > 1000


def test_a_comparison_of_methods_is_no_sweep(comparison, tmp_path):
    assert figures(comparison(tmp_path / "c")) == []
