"""Default directories of commands that make several runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.directories import directory_for

Call = Callable[..., Any]


def test_the_same_and_more_goes_to_the_same_place_and_anything_else_to_a_new_one(tmp_path: Path) -> None:
    stem = tmp_path / "compare-digits"
    first = directory_for(stem, {"fedavg/seed-0": "rounds 3"})
    assert directory_for(stem, {"fedavg/seed-0": "rounds 3"}) == first
    assert directory_for(stem, {"fedprox/seed-0": "rounds 3"}) == first
    second = directory_for(stem, {"fedavg/seed-0": "rounds 4"})
    assert second.name == "compare-digits-002"
    assert directory_for(stem, {"fedprox/seed-0": "rounds 3", "fedavg/seed-0": "rounds 3"}).name == "compare-digits-003"


def test_a_directory_of_unknown_origin_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a-001").mkdir()
    assert directory_for(tmp_path / "a", {"x": "1"}).name == "a-001"  # empty
    (tmp_path / "a-002").mkdir()
    (tmp_path / "a-002/asked.json").write_text("{half")
    assert directory_for(tmp_path / "a", {"x": "1"}).name == "a-003"


@pytest.mark.thorough
def test_compare_and_sweep_carry_on_and_never_meet_another_run(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("compare", "fedavg"), ("sweep", "fedavg", "--grid", "local.lr=0.1", "--workers", "1")):
        assert call(*command, *small, "--rounds", 1).status == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert {path.relative_to(tmp_path / "runs").parts[0] for path in before} == {
        "compare-small-001",
        "sweep-fedavg-small-lr-001",
    }
    assert call("compare", "fedavg", "fedprox", *small, "--rounds", 1).status == 0  # one more
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (tmp_path / "runs/compare-small-001/fedprox/seed-0/result.json").exists()
    assert call("compare", "fedavg", *small, "--rounds", 2).status == 0
    assert (tmp_path / "runs/compare-small-002/fedavg/seed-0/result.json").exists()
