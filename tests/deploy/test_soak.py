"""The soak under experiments/: what it wrote down, and how it goes on after it was stopped."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

SOAK = Path(__file__).resolve().parents[2] / "experiments" / "soak"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    described = importlib.util.spec_from_file_location("soak_run", SOAK / "run.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.fixture
def found() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((SOAK / "obtained.json").read_text(encoding="utf-8"))
    return content


class TestEvidence:
    def test_the_table_is_that_of_the_figures(self, soak: ModuleType, found: dict[str, Any]) -> None:
        assert (SOAK / "table.md").read_text(encoding="utf-8") == soak.table(found)

    def test_the_model_is_the_simulations_where_it_is_promised(self, found: dict[str, Any]) -> None:
        result = found["result"]
        assert result["promised"] == (not found["left_out"])
        assert result["same"] or not result["promised"]
        assert result["same"] == (result["model_sha256"] == result["simulation_sha256"])
        assert found["left_over"] == []

    def test_a_difference_that_is_not_promised_away_is_called_a_fault(
        self, soak: ModuleType, found: dict[str, Any]
    ) -> None:
        found["result"] |= {"same": False, "promised": True}
        assert "**a fault**" in soak.table(found)
        found["result"] |= {"promised": False}
        assert "**a fault**" not in soak.table(found)


class TestGoingOn:
    def options(self, place: Path, **changes: Any) -> argparse.Namespace:
        given = {"minutes": 60.0, "every": 30.0, "seed": 0, "method": "scaffold", "new": False}
        return argparse.Namespace(**given | changes, out=place, evidence=place / "obtained.json")

    def test_a_soak_that_was_stopped_goes_on_and_others_begin_anew(self, soak: ModuleType, tmp_path: Path) -> None:
        options = self.options(tmp_path)
        begun, goes_on = soak.begin(options)
        assert not goes_on
        (tmp_path / "federation").mkdir()
        options.evidence.write_text(json.dumps(begun | {"seconds": 90.0, "faults": [{}, {}, {}]}), encoding="utf-8")
        kept, goes_on = soak.begin(options)
        assert goes_on
        assert (kept["seconds"], len(kept["faults"])) == (90.0, 3)
        for changed in ({"seed": 1}, {"minutes": 3.0}, {"new": True}):
            again, goes_on = soak.begin(self.options(tmp_path, **changed))
            assert not goes_on
            assert again["faults"] == []
        options.evidence.write_text(json.dumps(kept | {"result": {}}), encoding="utf-8")
        assert soak.begin(options)[1] is False, "it has finished"
