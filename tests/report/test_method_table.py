"""Rows by method, by hand where a number is at stake."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from headwater.report import method_table, method_text
from headwater.report.runs import find, read


def write(path: Path, method: str, seed: int, curve: list[float | None], finished: bool = True) -> None:
    """A run whose every number is known: 100 bytes up and 50 down a round, 2 seconds a round."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(f'seed = {seed}\nrounds = {len(curve)}\n[algorithm]\nname = "{method}"\n')
    rows = [
        {
            "round": at,
            "accuracy": value,
            "seconds": {"train": 1.5, "evaluate": 0.5},
            "bytes": {"server_sector": {"up": 100, "down": 50}},
        }
        for at, value in enumerate(curve, start=1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        result = {"algorithm": method, "label": method.upper(), "seed": seed, "accuracy": curve[-1]}
        ledger = {
            "server_sector": {
                "up_bytes": 100 * len(curve),
                "down_bytes": 50 * len(curve),
                "round_trips": 2 * len(curve),
            }
        }
        result |= {"accuracy_ci95": [0.4, 0.75], "ledger": ledger}
        (path / "result.json").write_text(json.dumps(result))


@pytest.fixture
def three(tmp_path):
    """A over three seeds, B over one, C unfinished."""
    write(tmp_path / "a0", "a", 0, [0.2, 0.6, 0.70])
    write(tmp_path / "a1", "a", 1, [0.2, None, 0.74])
    write(tmp_path / "a2", "a", 2, [0.6, 0.7, 0.78])
    write(tmp_path / "b0", "b", 0, [0.1, 0.5555, 0.5])
    write(tmp_path / "c0", "c", 0, [0.3], finished=False)
    return method_table.tabulate(find(tmp_path))


def test_interval_over_seeds_by_hand(three):
    """Mean 0.74, s = 0.04, t(0.975, 2) = 4.302653: half width 4.302653 · 0.04 / √3 = 0.0993655."""
    row = three.rows[0]
    assert (row.method, row.seeds, row.interval) == ("A", 3, method_table.OVER_SEEDS)
    assert row.accuracy == pytest.approx(0.74)
    assert row.accuracy_high - row.accuracy == pytest.approx(0.0993655, abs=1e-6)
    assert method_text.accuracy_text(row).replace("\u00a0", " ") == "74.0 ± 9.9 %"


def test_a_single_seed_shows_its_own_interval_and_says_so(three):
    row = three.rows[1]
    assert (row.accuracy, row.accuracy_low, row.accuracy_high, row.interval) == (0.5, 0.4, 0.75, method_table.ONE_RUN)
    assert method_text.accuracy_text(row).replace("\u00a0", " ") == "50.0 % [40.0, 75.0]"
    assert any("single run" in note for note in method_text.notes(three))


def test_target_is_what_every_finished_run_reaches(three):
    assert three.target == 0.555, "B's best, rounded down; the unfinished C does not count"
    first, second, third = three.rows
    assert first.rounds_to_target == pytest.approx((2 + 3 + 1) / 3)
    assert first.bytes_to_target == pytest.approx(150 * 2)
    assert (second.rounds_to_target, second.bytes_to_target) == (2, 300)
    assert (third.reached_target, third.rounds_to_target) == (0, None)


def test_a_given_target_may_be_missed(tmp_path, three):
    found = method_table.tabulate(find(tmp_path), target=0.75)
    assert (found.rows[0].reached_target, found.rows[0].rounds_to_target) == (1, None)
    column = next(column for column in method_text.columns(found) if column.key == "rounds_to_target")
    assert column.text(found.rows[0]) == "– (1 of 3 seeds)"
    assert not any("highest accuracy" in note for note in method_text.notes(found))


def test_costs_and_the_rest(three):
    row = three.rows[0]
    assert (row.bytes, row.round_trips, row.seconds) == (450, 6, 6)
    assert three.rows[1].best_accuracy == 0.5, "the last round, never the best one on the test set"
    last = three.rows[2]
    assert (last.finished, last.seeds, last.accuracy, last.round_trips, last.bytes) == (0, 1, 0.3, None, 150)
    assert method_text.accuracy_text(last).endswith("so far")


def test_best_is_marked_among_finished_methods_only(three, tmp_path):
    write(tmp_path / "d0", "d", 0, [0.99], finished=False)
    found = method_table.tabulate(find(tmp_path))
    assert [row.best for row in found.rows] == [True, False, False, False]
    accuracy = next(column for column in method_text.columns(found) if column.key == "accuracy")
    assert method_text.best_rows(found, accuracy) == {0}


def test_nobody_wins_alone_or_in_a_tie_of_all(tmp_path):
    write(tmp_path / "a0", "a", 0, [0.5, 0.6])
    alone = method_table.tabulate(find(tmp_path))
    assert not any(row.best for row in alone.rows)
    assert not any(method_text.best_rows(alone, column) for column in method_text.columns(alone))
    write(tmp_path / "b0", "b", 0, [0.4, 0.6])
    tie = method_table.tabulate(find(tmp_path))
    bytes_column = next(column for column in method_text.columns(tie) if column.key == "bytes")
    assert method_text.best_rows(tie, bytes_column) == set()


def test_columns_without_values_are_left_out(tmp_path, fake):
    run = read(fake(result={"local_accuracy": 0.7}).write(tmp_path / "a"))
    keys = [column.key for column in method_text.columns(method_table.tabulate([run]))]
    assert "local_accuracy" in keys
    assert "ensemble_accuracy" not in keys
    begun = fake(stop=1).write(tmp_path / "b")
    (begun / "rounds.jsonl").unlink()
    keys = [column.key for column in method_text.columns(method_table.tabulate([read(begun)]))]
    assert "rounds_to_target" not in keys


def test_csv_holds_the_bare_numbers(three):
    rows = list(csv.DictReader(io.StringIO(method_text.csv_text(three))))
    assert [row["method"] for row in rows] == ["A", "B", "c"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.74)
    assert rows[2]["round_trips"] == ""
    assert rows[0]["target"] == "0.555"
    assert method_table.dicts(three)[0]["best"] is True


def test_markdown_is_one_table_with_the_best_in_bold(tmp_path, three):
    write(tmp_path / "e0", "a|b<i>", 0, [0.9, 0.9, 0.9])
    lines = method_text.markdown(method_table.tabulate(find(tmp_path))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    bars = {line.replace("\\|", "").count("|") for line in table}
    assert len(table) == 2 + 4
    assert bars == {len(method_text.columns(three)) + 1}
    assert "A\\|B&lt;I>" in lines[5]
    assert "**90.0\u00a0% [40.0, 75.0]**" in lines[5]
