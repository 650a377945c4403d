"""Intervals, verdicts and orders, from numbers made by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.algorithms import SameAs
from headwater.papers import scales
from headwater.papers.claims import coincidences, judge, ranks, sentences
from headwater.papers.measures import Measure
from headwater.papers.results import Results, TableEntry
from headwater.papers.table import PaperColumn, PaperTable, parse
from headwater.papers.table_files import TableReport, as_json, cell_text, csv_text, markdown
from headwater.papers.table_plan import TablePlan

T2 = 4.302652729696142  # Student's t, two degrees of freedom, two-sided 95 %


def table(metric: str = "accuracy", rows: str = "ABC", order: str = "") -> PaperTable:
    lines = [f'# By hand\npreset = "demo"\nmetric = "{metric}"\nunit = "%"\n']
    lines += [f'[[row]]\nname = "{name}"\n' for name in rows]
    lines += ['[[column]]\nname = "x"\n[[column]]\nname = "y"\n[printed]\nA = [3, 1]\nB = [2, 2]\nC = [1, 3]\n']
    order = order or '[[order]]\nbetter = "A"\nthan = ["B", "C"]\n'
    return parse("".join([*lines, order]), "by-hand.toml", scales.names())


def results(made: PaperTable, values: dict[tuple[str, str], Sequence[float | None]], failed: str = "") -> Results:
    seeds = tuple(range(max(len(each) for each in values.values())))
    measures = {column.name: made.measure(column) for column in made.columns}
    plan = TablePlan(made, "paper", seeds, (), {}, measures, ())
    entries = {
        key: TableEntry(
            *key, "%", made.printed.get(key), None, dict(enumerate(found)), {0: "no"} if key[0] == failed else {}, {}
        )
        for key, found in values.items()
    }
    return Results(plan, entries)


def entry(*values: float | None, printed: float | None = None) -> TableEntry:
    return TableEntry("A", "x", "%", printed, None, dict(enumerate(values)), {}, {0: Path("cells")})


class TestNumbers:
    def test_mean_interval_and_difference_of_three_seeds(self) -> None:
        found = entry(10.0, 12.0, 14.0, printed=11.0)
        assert found.mean == 12.0
        assert found.half == pytest.approx(T2 * 2.0 / math.sqrt(3))  # standard deviation 2
        assert found.difference == 1.0
        assert cell_text(found) == "12.00 ± 4.97 (11.00, +1.00)"
        facts = found.to_dict()
        assert (facts["low"], facts["high"]) == pytest.approx((12 - 4.968, 12 + 4.968), abs=1e-3)

    def test_one_seed_has_no_interval(self) -> None:
        found = entry(10.0)
        assert (found.mean, found.half) == (10.0, None)
        assert found.to_dict()["low"] is None
        assert cell_text(found) == "10.00"

    def test_a_seed_without_a_number_leaves_no_mean(self) -> None:
        found = entry(10.0, None, printed=9.0)
        assert (found.mean, found.half, found.difference) == (None, None, None)
        assert cell_text(found) == "– in 1 of 2 seeds (9.00)"


class TestVerdicts:
    def test_it_holds_where_intervals_are_apart(self) -> None:
        found = judge(
            results(table(), {(r, "x"): [v - 0.1, v, v + 0.1] for r, v in zip("ABC", (9, 5, 6), strict=True)})
        )
        assert [(each.place, each.verdict) for each in found] == [("x", "holds")]

    def test_it_does_not_where_another_is_better(self) -> None:
        found = judge(
            results(table(), {(r, "x"): [v - 0.1, v, v + 0.1] for r, v in zip("ABC", (5, 9, 4), strict=True)})
        )
        assert [(each.verdict, each.reason) for each in found] == [("does not hold", "B is better")]

    def test_it_cannot_be_told_where_the_difference_may_be_zero(self) -> None:
        made = results(table(), {("A", "x"): [4.0, 6.0], ("B", "x"): [5.0, 4.0], ("C", "x"): [0.0, 0.0]})
        (found,) = judge(made)
        why = "B and C: the interval of the difference contains zero"
        assert (found.verdict, found.reason) == ("cannot be told", why)

    def test_seeds_that_agree_tell_although_they_vary_alike(self) -> None:
        """Each row varies by 20 over seeds, and A is 1 above B in every seed."""
        values = {("A", "x"): [11.0, 31.0, 51.1], ("B", "x"): [10.0, 30.0, 50.0], ("C", "x"): [0.0, 20.0, 40.0]}
        assert judge(results(table(), values))[0].verdict == "holds"

    def test_the_interval_of_the_difference_decides(self) -> None:
        half = T2 * 1.0 / math.sqrt(3)  # of differences that are 1 apart
        for gap, verdict in ((half - 1e-6, "cannot be told"), (half + 1e-6, "holds")):
            values = {("A", "x"): [gap - 1, gap, gap + 1], ("B", "x"): [0.0, 0.0, 0.0]}
            only = table(order='[[order]]\nbetter = "A"\nthan = ["B"]\n')
            assert judge(results(only, values))[0].verdict == verdict

    def test_one_seed_compares_numbers_and_says_so(self) -> None:
        made = results(table(), {("A", "x"): [5.0], ("B", "x"): [4.9], ("C", "x"): [1.0]})
        found = judge(made)
        assert found[0].verdict == "holds"
        assert sentences(made, found)[-1].startswith("With one seed there is no interval")
        equal = judge(results(table(), {("A", "x"): [5.0], ("B", "x"): [5.0], ("C", "x"): [1.0]}))
        assert (equal[0].verdict, equal[0].reason) == ("cannot be told", "B: the numbers are equal")

    def test_what_failed_cannot_be_judged(self) -> None:
        made = results(table(), {("A", "x"): [5.0], ("B", "x"): [None], ("C", "x"): [1.0]}, failed="B")
        assert judge(made)[0].reason == "B lacks a result in some seed"
        assert made.entries["B", "x"].failed
        both = results(
            table("rounds_to:80"), {("A", "x"): [5.0, 6.0], ("B", "x"): [7.0, None], ("C", "x"): [None, 9.0]}
        )
        assert judge(both)[0].reason == "B and C lack a result in some seed"

    def test_fewer_rounds_are_better_and_never_is_the_worst(self) -> None:
        made = table("rounds_to:80")
        found = judge(results(made, {("A", "x"): [3.0], ("B", "x"): [9.0], ("C", "x"): [None]}))
        assert found[0].verdict == "holds"
        found = judge(results(made, {("A", "x"): [None], ("B", "x"): [9.0], ("C", "x"): [1.0]}))
        assert (found[0].verdict, found[0].reason) == ("does not hold", "B and C are better")

    @pytest.mark.parametrize("seeds", [1, 3])
    def test_who_never_reached_a_target_is_told_so(self, seeds: int) -> None:
        made, never = table("rounds_to:80"), [None] * seeds
        (found,) = judge(results(made, {("A", "x"): never, ("B", "x"): never, ("C", "x"): never}))
        assert (found.verdict, found.reason) == ("cannot be told", "none of A, B and C reached the target")
        made = table("rounds_to:80", order='[[order]]\nbetter = "A"\nthan = ["B"]\n')
        (found,) = judge(results(made, {("A", "x"): never, ("B", "x"): never}))
        assert found.reason == "neither A nor B reached the target"

    def test_a_cost_that_was_not_measured_is_no_target_that_was_missed(self) -> None:
        made = table("seconds_per_client", order='[[order]]\nbetter = "A"\nthan = ["B"]\ncolumns = ["x"]\n')
        (found,) = judge(results(made, {("A", "x"): [1.0], ("B", "x"): [None]}))
        assert (found.verdict, found.reason) == ("cannot be told", "B lacks a result in some seed")

    def test_columns_can_be_compared_in_rows(self) -> None:
        made = table(order='[[order]]\nbetter = "x"\nthan = ["y"]\nrows = ["A", "B"]\n')
        found = judge(results(made, {("A", "x"): [2.0], ("A", "y"): [1.0], ("B", "x"): [1.0], ("B", "y"): [2.0]}))
        assert [(each.place, each.verdict) for each in found] == [("A", "holds"), ("B", "does not hold")]

    def test_sentences_gather_the_columns_of_a_verdict(self) -> None:
        values = {("A", "x"): [5.0], ("B", "x"): [4.0], ("C", "x"): [1.0]}
        values |= {("A", "y"): [5.0], ("B", "y"): [9.0], ("C", "y"): [1.0]}
        made = results(table(), values)
        told = sentences(made, judge(made))
        assert told[0] == "A better than B and C: holds in x; does not hold in y (B is better)."
        values["B", "y"] = [2.0]
        made = results(table(), values)
        assert sentences(made, judge(made))[0] == "A better than B and C: holds everywhere."

    def test_everywhere_is_said_of_the_whole_table_only(self) -> None:
        some = '[[order]]\nbetter = "A"\nthan = ["B"]\ncolumns = ["x", "y"]\n'
        made = replace(table(order=some), columns=(PaperColumn("x"), PaperColumn("y"), PaperColumn("z")))
        values = {(row, place): [float(row == "A")] for row in "AB" for place in "xyz"}
        told = sentences(results(made, values), judge(results(made, values)))
        assert told[0] == "A better than B: holds in all 2 places where it is claimed."
        rows = '[[order]]\nbetter = "x"\nthan = ["y"]\nrows = ["A", "B"]\n'
        found = results(table(order=rows), {(row, place): [float(place == "x")] for row in "ABC" for place in "xy"})
        assert sentences(found, judge(found))[0] == "x better than y: holds in all 2 places where it is claimed."


class TestSameAs:
    """A row whose method is another one on the split of its runs."""

    SAME = SameAs("fedavg", "nothing is shared")

    def made(self, *seeds: int) -> Results:
        values = {(row, place): [float(at), float(at)] for at, row in enumerate("CBA") for place in "xy"}
        found = results(table(), values)
        entry = replace(found.entries["A", "x"], alike=dict.fromkeys(seeds, self.SAME))
        return replace(found, entries={**found.entries, ("A", "x"): entry})

    def test_no_order_is_judged_where_every_seed_is_so(self) -> None:
        made = self.made(0, 1)
        assert [each.place for each in judge(made)] == ["y"]
        assert [each.column for each in ranks(made)] == ["y"]  # two rows are left in x
        (said,) = coincidences(made)
        assert said == "A is the same as fedavg in x, since nothing is shared: no order of it is judged there."

    def test_the_table_itself_says_so(self) -> None:
        told = TableReport.of(self.made(0, 1))
        page = markdown(told)
        assert "| A | 2.00 ± 0.00 (3.00, -1.00) † | 2.00 ± 0.00 (1.00, +1.00) |" in page
        assert "†: the same as fedavg, since nothing is shared." in page
        assert "A is the same as fedavg in x" in page
        facts = json.loads(as_json(told))
        assert {each["column"] for each in facts["cells"] if each["same_as"]} == {"x"}
        lines = csv.DictReader(io.StringIO(csv_text(told.results)))
        assert [(line["row"], line["column"]) for line in lines if line["same_as"] == "fedavg"] == [("A", "x")]

    def test_one_seed_of_two_is_marked_but_judged(self) -> None:
        made = self.made(1)
        assert [each.place for each in judge(made)] == ["x", "y"]
        assert cell_text(made.entries["A", "x"]).endswith("† in 1 of 2 seeds")
        assert coincidences(made) == []


class TestOrders:
    def test_the_same_order_and_the_opposite(self) -> None:
        values: dict[tuple[str, str], list[float]] = {}
        for row, value in zip("ABC", (30.0, 20.0, 10.0), strict=True):
            values |= {(row, "x"): [value], (row, "y"): [value]}
        found = ranks(results(table(), values))  # printed: 3, 2, 1 in x and 1, 2, 3 in y
        assert [(each.column, each.rows, each.tau) for each in found] == [("x", 3, 1.0), ("y", 3, -1.0)]
        assert found[0].sentence == "x: the printed order of 3 rows and ours are the same (Kendall's tau 1.00)."
        assert "opposed" in found[1].sentence

    def test_one_pair_of_three_the_other_way(self) -> None:
        found = ranks(results(table(), {("A", "x"): [3.0], ("B", "x"): [1.0], ("C", "x"): [2.0]}))
        assert found[0].tau == pytest.approx(1 / 3)  # two pairs agree, one does not
        assert "loosely alike" in found[0].sentence

    def test_two_rows_are_no_order(self) -> None:
        assert ranks(results(table(), {("A", "x"): [3.0], ("B", "x"): [1.0], ("C", "x"): [None]})) == []


class TestFiles:
    def test_all_three_say_the_same(self) -> None:
        values = {(row, "x"): [float(at), float(at) + 1 + at % 2] for at, row in enumerate("ABC")}
        told = TableReport.of(results(table(), values))
        facts = json.loads(as_json(told))
        assert [each["ours"] for each in facts["cells"]] == [0.5, 2.0, 2.5]
        assert facts["order"][0]["verdict"] == "does not hold"
        lines = csv_text(told.results).splitlines()
        assert lines[0].startswith("row,column,metric,unit,paper,paper_spread,ours,low,high,difference")
        assert lines[1].startswith("A,x,accuracy,%,3.0,,0.5,")
        page = markdown(told)
        assert "| A | 0.50 ± 6.35 (3.00, -2.50) |  |" in page
        assert "* A better than B and C: does not hold in x (C is better)" in page
        assert facts["baseline"] == "A"
        gaps = [(each["to_baseline"], each["to_baseline_low"], each["star"]) for each in facts["cells"]]
        assert gaps == [(None, None, False), (1.5, pytest.approx(1.5 - 12.7062 / 2, abs=1e-4), False), (2.0, 2.0, True)]
        assert "## Difference to A" in page
        assert "| B | +1.50 [−4.85,\u00a0+7.85] |" in page

    def test_no_interval_of_an_accuracy_leaves_its_range(self) -> None:
        made = TableEntry("A", "x", "%", None, None, {0: 99.0, 1: 90.0}, {}, {}, Measure("accuracy").range("%"))
        assert made.interval == (pytest.approx(94.5 - 12.7062 * 4.5, abs=1e-2), 100.0)
        assert cell_text(made) == "94.50 [37.32, 100.00]"
        assert Measure("seconds_per_client").range("s") == (0.0, math.inf)

    def test_a_name_cannot_break_the_markdown(self) -> None:
        made = parse('# T\npreset = "demo"\n[[row]]\nname = "a|b*<c"\n[[column]]\nname = "x"\n', "t", scales.names())
        page = markdown(TableReport.of(results(made, {("a|b*<c", "x"): [1.0]})))
        assert "| a\\|b\\*&lt;c | 1.00 |" in page


def test_measures_are_read_from_their_text() -> None:
    assert Measure.of("accuracy_at:20") == Measure("accuracy_at", 20.0)
    assert Measure.of("rounds_to:0.75").text == "rounds_to:0.75"
    assert Measure.of("parameters_held").factor("M") == 1e-6
    assert (Measure.of("accuracy").factor("%"), Measure.of("accuracy").factor("")) == (100.0, 1.0)
