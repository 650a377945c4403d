"""`make stateful`, with few cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule

PROOF = Path(__file__).parent.parent / "proof"


@pytest.fixture
def stateful(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROOF))
    import stateful

    return stateful


def ran(stateful: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["stateful.py", "--out", str(out), *words])
    status: int = stateful.main()
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return status, found


def test_what_was_done_is_counted_and_other_machines_stay(
    stateful: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    out.write_text(json.dumps({"machines": {"rounds": {"cases": 7, "commit": "abc"}}}), encoding="utf-8")
    status, found = ran(stateful, monkeypatch, out, "--examples", "5", "--steps", "20", "sums")
    assert status == 0
    assert {"command", "commit", "date", "machine", "versions"} <= set(found)
    assert found["machines"]["rounds"] == {"cases": 7, "commit": "abc"}
    sums = found["machines"]["sums"]
    assert sums["findings"] == []
    assert sums["cases"] >= 50
    done = sums["done"]
    assert done["sums opened"] + done["sums lost"] == done["sums begun"] >= sums["cases"]
    assert sums["steps"] == sum(done.values()) - sum(done.get(kind, 0) for kind in stateful.OUTCOMES)
    assert all(done[kind] > 0 for kind in ("lost", "doubled", "reordered", "delivered in order"))


def test_what_does_not_hold_is_told(stateful: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Wrong(RuleBasedStateMachine):
        tally = stateful.SecureSum.tally

        @rule()
        def count(self) -> None:
            self.tally["doubled"] += 1
            raise AssertionError("one was counted twice")

    monkeypatch.setattr(stateful, "MACHINES", {"wrong": (Wrong, "something wrong", 1)})
    status, found = ran(stateful, monkeypatch, tmp_path / "found.json", "--examples", "5")
    assert status == 1
    assert "one was counted twice" in found["machines"]["wrong"]["findings"][0]
