"""What FedEED's table of costs and FedDF's figure of unlike networks read from a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import toys
from headwater.config import Config
from headwater.errors import ConfigError
from headwater.papers.measures import Measure
from headwater.report.runs import RunRecord, read
from headwater.training.experiment import prepare
from headwater.training.loop import train


def record(method: str, out: Path, **algorithm: object) -> RunRecord:
    train(toys.tiny(method, algorithm=algorithm), out=out)
    return read(out)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("fedavg", {}, 1.0),
        ("fedprox", {}, 1.0),
        ("scaffold", {}, 2.0),
        ("scaffold", {"reconstruct": True}, 1.5),
        ("feddf", {}, 1.0),
        ("fedeed", {"cohorts": 2}, 1.0),
    ],
)
def test_communication_by_hand(method: str, options: dict[str, object], expected: float, tmp_path: Path) -> None:
    """Models down and up of a client's round trip, halved: SCAFFOLD has two each way, or one on the way back."""
    assert Measure.of("communication").value(record(method, tmp_path, **options)) == expected


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("feddf", {"drop_worst": False}, 5),  # C active clients
        ("fedbe", {"samples": 3}, 5 + 3 + 1),  # C + S + 1
        ("fedeed", {"cohorts": 2, "kept": 2}, 4),  # K · R, from the second round on
        ("fedavg", {}, None),
    ],
)
def test_teachers_by_hand(method: str, options: dict[str, object], expected: float | None, tmp_path: Path) -> None:
    assert Measure.of("teachers").value(record(method, tmp_path, **options)) == expected


def test_accuracy_of_another_network(tmp_path: Path) -> None:
    asked = {"algorithm": {"name": "feddf"}, "model": {"name": "mlp", "also": ["linear"]}}
    short = {"local": {"epochs": 1}, "server": {"epochs": 1}, "engine": {"name": "inline"}}
    made = prepare(Config(data={"name": "arrays"}, rounds=2, **asked, **short), data=toys.tiny_data())
    run = train(made, out=tmp_path)
    found = read(tmp_path)
    assert Measure.of("accuracy_of:1").value(found) == run.history[-1]["linear_accuracy"]
    assert Measure.of("accuracy_of:2").value(found) is None
    assert Measure.of("accuracy_of:1").factor("%") == 100
    assert not Measure.of("accuracy_of:1").needs_every_round
    with pytest.raises(ConfigError, match="there is no metric 'accuracy_of'"):
        Measure.of("accuracy_of")
