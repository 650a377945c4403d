"""`headwater compare`: the same split for every method, finished runs skipped, one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def words(small: tuple[str, ...], tmp_path: Path) -> tuple[Any, ...]:
    return ("compare", "fedavg", "fedhead", *small, "--rounds", 2, "--seeds", "0,1", "--out", tmp_path / "c")


def test_every_method_and_seed_has_its_directory_on_the_same_split(
    call: Call, words: tuple[Any, ...], tmp_path: Path
) -> None:
    told = call(*words)
    assert (told.status, told.err) == (0, "")
    for text in ("fedavg", "fedhead", "±", "Rounds to", "Bytes to", "report.html"):
        assert text in told.out
    assert (tmp_path / "c/report.html").exists()
    for seed in (0, 1):
        facts = [
            json.loads((tmp_path / f"c/{method}/seed-{seed}/result.json").read_text())
            for method in ("fedavg", "fedhead")
        ]
        assert facts[0]["partition_sha256"] == facts[1]["partition_sha256"]
        assert {fact["seed"] for fact in facts} == {seed}


def test_json_is_a_row_a_method(call: Call, words: tuple[Any, ...]) -> None:
    rows = json.loads(call(*words, "--json").out)
    assert [(row["method"], row["seeds"]) for row in rows] == [("fedavg", 2), ("fedhead", 2)]
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in rows)


def test_finished_runs_are_kept_and_new_ones_added(call: Call, words: tuple[Any, ...], tmp_path: Path) -> None:
    call(*words)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("result.json")}
    grown = ["0,1,2" if word == "0,1" else word for word in words]
    loud = [word for word in grown if word != "--quiet"]
    told = call(*loud)
    assert told.status == 0
    assert "fedhead seed 2: round 1/2" in told.err
    assert "seed 0: round" not in told.err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (tmp_path / "c/fedhead/seed-2/result.json").exists()


def test_a_run_of_a_comparison_equals_the_same_run_alone(
    call: Call, words: tuple[Any, ...], small: tuple[str, ...], tmp_path: Path
) -> None:
    call(*words)
    call("run", "fedhead", *small, "--rounds", 2, "--seed", 1, "--out", tmp_path / "alone")
    alone, beside = (json.loads((tmp_path / at / "result.json").read_text()) for at in ("alone", "c/fedhead/seed-1"))
    assert alone["model_sha256"] == beside["model_sha256"]


def test_a_target_is_counted_to(call: Call, words: tuple[Any, ...]) -> None:
    rows = json.loads(call(*words, "--target", "0.01", "--json").out)
    assert all(row["target"] == 0.01 for row in rows)
    assert all(row["rounds_to_target"] == 1 for row in rows)


def test_a_preset_is_what_they_share(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    told = call("compare", "fedavg", "--config", "demo", *small, "--rounds", 1, "--out", tmp_path / "c", "--json")
    assert [row["seeds"] for row in json.loads(told.out)] == [1]


def test_differences_are_to_the_baseline(call: Call, words: tuple[Any, ...]) -> None:
    rows = json.loads(call(*words, "--json").out)
    assert (rows[0]["baseline"], rows[0]["difference"]) == ("fedavg", None)
    assert rows[1]["difference"] == pytest.approx(rows[1]["accuracy"] - rows[0]["accuracy"])
    assert rows[1]["difference_low"] <= rows[1]["difference"] <= rows[1]["difference_high"]
    other = json.loads(call(*words, "--baseline", "fedhead", "--json").out)
    assert other[0]["difference"] == pytest.approx(-rows[1]["difference"])
    assert "A difference is paired by seed" in call(*words).out
    refused = call(*words, "--baseline", "fedhed")
    assert (refused.status, "did you mean 'fedhead'" in refused.err) == (2, True)
