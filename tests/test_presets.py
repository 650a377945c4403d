"""Presets: each is a difference from another, and the published settings stand as published."""

from __future__ import annotations

import tomllib

import pytest

from headwater import presets
from headwater.config import Config


@pytest.mark.parametrize("name", presets.names())
def test_each_has_a_line_for_the_list(name: str) -> None:
    assert len(presets.names()[name]) > 20
    assert presets.text(name).startswith("# ")


@pytest.mark.parametrize("name", [n for n in presets.names() if "extends" in tomllib.loads(presets.text(n))])
def test_each_line_of_a_preset_changes_something(name: str) -> None:
    own = tomllib.loads(presets.text(name))
    base = Config.load(own.pop("extends")).tree()
    for section, values in own.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            before = base[section].get(key) if key else base[section]
            assert before != value, f"{name}: {section}.{key} is what it was"


def test_fedheads_tables_are_as_published() -> None:
    config = Config.load("fedhead/table2")
    assert (config.rounds, config.partition.clients, config.partition.sectors) == (50, 20, 2)
    for stage in (config.local, config.sector):
        assert (stage["epochs"], stage["batch"], stage["optimizer"], stage["lr"]) == (20, 128, "adam", 1e-3)
        assert stage["weight_decay"] == 1e-4
    assert (config.sector["patience"], config.sector["restore"], config.sector["mix"]) == (5, "last", "probs")
    assert (config.data.validation, config.data.reference_size) == (1000, 5000)
    assert Config.load("fedhead/table7").algorithm["leader"] == "fixed"


def test_feddfs_tables_are_as_published() -> None:
    config = Config.load("feddf/table2")
    assert (config.rounds, config.partition.participation, config.local["epochs"]) == (100, 0.4, 40)
    assert (config.local["optimizer"], config.local["lr"], config.local["batch"]) == ("sgd", 0.1, 64)
    wanted = {"steps": 10000, "patience": 1000, "eval_every": 100, "batch": 128, "clip": 5.0, "schedule": "cosine"}
    assert {key: config.server[key] for key in wanted} == wanted
    assert (config.server["mix"], config.server["weights"], config.server["restore"]) == ("logits", "uniform", "best")


def test_feddf_inside_fedheads_tables_is_another_method() -> None:
    config = Config.load("feddf_as_in_fedhead")
    assert config.method == "feddf"
    assert (config.server["mix"], config.server["weights"], config.server["epochs"]) == ("probs", "samples", 20)
    assert (config.server["schedule"], config.server["clip"]) == ("constant", None)
    assert config.algorithm["drop_worst"] is False
