"""`make secure-costs` carries on where it was stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ABOUT = {"date": "2026-01-02", "commit": "abc", "machine": "one"}


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import secure_costs

    return secure_costs


def row(method: str, clients: int, repeats: int = 3, **more: Any) -> dict[str, Any]:
    return {"method": method, "clients": clients, "cpu_ratio": 1.0, "cpu_ratios": [1.0] * repeats} | more


def test_only_missing_rows_are_measured(costs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    kept = [row("fedavg", 6), row("fedeed", 20, options=["algorithm.cohorts=2"])]
    stale = [row("fedavg", 20, repeats=2), row("fedeed", 50, options=["algorithm.cohorts=9"]), row("gone", 6)]
    path.write_text(json.dumps(ABOUT | {"command": costs.COMMAND, "rows": kept + stale}), encoding="utf-8")
    measured: list[tuple[str, int]] = []

    def measure(method: str, clients: int, repeats: int) -> dict[str, Any]:
        measured.append((method, clients))
        return row(method, clients, repeats, options=list(costs.METHODS[method]))

    monkeypatch.setattr(costs, "measure", measure)
    monkeypatch.setattr(costs, "made", lambda *cell: None)
    monkeypatch.setattr(costs, "seconds_of_round", lambda experiment: 1.0)
    monkeypatch.setattr(sys, "argv", ["secure_costs.py", "--out", str(path)])
    assert costs.main() == 0
    cells = [(method, clients) for method in costs.METHODS for clients in costs.CLIENTS]
    assert measured == [cell for cell in cells if cell not in (("fedavg", 6), ("fedeed", 20))]
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(each["method"], each["clients"]) for each in rows] == cells
    assert rows[0] == ABOUT | kept[0]  # where and when it was measured stays with it
    measured.clear()
    costs.main()
    assert measured == []


def test_rows_of_another_command_are_not_kept(costs: Any, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert costs.kept_rows(path, 3) == {}
    path.write_text(json.dumps(ABOUT | {"command": "another", "rows": [row("fedavg", 6)]}), encoding="utf-8")
    assert costs.kept_rows(path, 3) == {}
