"""Numbers of a cell from the files of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.papers.measures import Measure
from headwater.report.runs import RunRecord
from headwater.sweep import CellFile
from headwater.sweep.cell_worker import facts_of
from headwater.training.experiment import prepare

CURVE = [0.2, None, 0.5, 0.8, 0.7]


def record(path: Path = Path(), **result: Any) -> RunRecord:
    rows = [{"round": at, "accuracy": value} for at, value in enumerate(CURVE, 1)]
    return RunRecord(path, "a", "a", 0, {"model": {}}, rows, {"accuracy": 0.7, **result}, None)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("accuracy", 0.7),
        ("after_fusion", 0.7),
        ("best_accuracy", 0.8),
        ("local_accuracy", 0.9),
        ("ensemble_accuracy", None),
        ("accuracy_at:3", 0.5),
        ("accuracy_at:2", None),  # which was not tested
        ("rounds_to:50", 3.0),
        ("rounds_to:0.5", 3.0),
        ("rounds_to:81", None),
    ],
)
def test_shares_and_rounds(metric: str, value: float | None) -> None:
    assert Measure.of(metric).value(record(best_accuracy=0.8, local_accuracy=0.9)) == value


def test_seconds_of_a_client_in_a_round_are_its_own_training_and_distilling(tmp_path: Path) -> None:
    spans = [
        ("c0", 1, "train", 0.0, 2.0),
        ("c0", 1, "distill", 2.0, 3.0),  # it leads its sector
        ("c1", 1, "train", 0.0, 1.0),
        ("c1", 2, "train", 5.0, 7.0),
        ("c1", 2, "evaluate", 7.0, 70.0),
        ("server", 1, "distill", 3.0, 90.0),
    ]
    keys = ("node", "round", "phase", "start", "end")
    lines = [json.dumps(dict(zip(keys, span, strict=True))) for span in spans]
    (tmp_path / "timeline.jsonl").write_text("\n".join(lines))
    assert Measure.of("seconds_per_client").value(record(tmp_path)) == pytest.approx((3 + 1 + 2) / 3)
    assert Measure.of("seconds_per_client").value(record(tmp_path / "nowhere")) is None


def test_facts_come_with_the_cell(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text(CellFile("1", {}, {"parameters_held": 12, "public_samples": 0}).text())
    assert Measure.of("parameters_held").value(record(tmp_path)) == 12
    assert Measure.of("public_samples").value(record(tmp_path)) == 0
    assert Measure.of("public_samples").value(record(tmp_path / "nowhere")) is None


class TestFacts:
    """FedHKD's table 1: FedProx holds two models, MOON three, FedGen one and its generator."""

    @pytest.fixture(scope="class")
    @classmethod
    def held(cls) -> dict[str, dict[str, int]]:
        methods = ("fedavg", "fedprox", "moon", "fedgen", "fedhkd", "fedproto", "fedmd", "feddf")
        sets = ["model.name=mlp", "model.hidden=[8]", "model.projection=0", "partition.clients=3"]
        return {method: facts_of(prepare(Config.load(method, sets))) for method in methods}

    def test_parameters_that_a_client_holds(self, held: dict[str, dict[str, int]]) -> None:
        one = (64 + 1) * 8 + (8 + 1) * 10
        found = {method: facts["parameters_held"] for method, facts in held.items()}
        assert found["fedavg"] == found["fedhkd"] == found["fedproto"] == found["fedmd"] == one
        assert (found["fedprox"], found["moon"]) == (2 * one, 3 * one)
        assert found["fedgen"] > one

    def test_public_samples_where_the_method_uses_any(self, held: dict[str, dict[str, int]]) -> None:
        found = {method: facts["public_samples"] for method, facts in held.items()}
        assert found["fedmd"] == found["feddf"] == 1438 // 5
        assert found["fedavg"] == found["fedhkd"] == 0
