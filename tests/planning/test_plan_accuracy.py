"""The benchmark of plans: what it carries on with, and what its table says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.planning import resources

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WHERE = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}


@pytest.fixture(scope="module")
def benchmark() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import plan_accuracy
    finally:
        sys.path.remove(str(BENCHMARKS))
    return plan_accuracy


def turn(planned: float, seconds: float, *, others: float = 0.0, at_most: bool = False) -> dict[str, Any]:
    found = {"others": others, "planned_seconds": planned, "seconds": seconds, "at_most": at_most}
    return found | {"planned_memory": 3_000_000, "memory": 2_000_000, "engine": "inline × 1"}


def test_every_setting_is_a_configuration(benchmark):
    for name in benchmark.SETTINGS:
        method, *words = benchmark.command_of(name)
        assert Config.load(method, words[1::2]).method == method


def test_a_plan_is_near_if_it_is_within_the_share_or_an_upper_bound(benchmark):
    name = next(iter(benchmark.SETTINGS))
    near = benchmark.summary(name, [turn(1.2, 1.0), turn(5.0, 1.0), turn(1.29, 1.0)])
    assert (near["time_ratio"], near["within"], near["idle"], near["memory_ratio"]) == (1.29, True, True, 1.5)
    assert not benchmark.summary(name, [turn(0.6, 1.0)])["within"]
    assert benchmark.summary(name, [turn(3.0, 1.0, at_most=True)])["within"]
    assert not benchmark.summary(name, [turn(0.6, 1.0, at_most=True)])["within"], "no upper bound at all"
    assert not benchmark.summary(name, [turn(1.0, 1.0, others=3.0)])["idle"]


def test_a_second_call_carries_on_at_the_same_commit_only(benchmark, tmp_path):
    first, second = [*benchmark.SETTINGS][:2]
    out = tmp_path / "plan.json"
    found = benchmark.write(out, WHERE, 3, {first: [turn(1.0, 2.0)], second: []})
    assert [row["name"] for row in found["rows"]] == [first]
    assert "0 of 1 settings are within 30%" in out.with_suffix(".md").read_text()
    assert benchmark.known(out, WHERE) == {first: [turn(1.0, 2.0)]}
    assert benchmark.known(out, WHERE | {"commit": "def"}) == {}
    whole = json.loads(out.read_text())
    whole["rows"][0]["command"] = "headwater run another"
    out.write_text(json.dumps(whole))
    assert benchmark.known(out, WHERE) == {}


def test_the_load_is_that_of_now(monkeypatch):
    """After a run the average of the last minute is still high; what wants a core now is not."""
    monkeypatch.setattr(resources.os, "getloadavg", lambda: (1e9, 0.0, 0.0))
    assert 0 <= resources.load() < 1e6
    monkeypatch.setattr(resources.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert resources.load() == 0
