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


@pytest.mark.parametrize("name", presets.names())
def test_nothing_is_written_twice(name: str) -> None:
    """Also where a preset's own method has no use for the key, as FedHEAD's for [server]: nearest file first."""
    own = tomllib.loads(presets.text(name))
    written = {(s, k): v for s, values in own.items() if isinstance(values, dict) for k, v in values.items()}
    while (base := own.get("extends")) is not None:
        own = tomllib.loads(presets.text(base))
        for section, values in own.items():
            for key in [key for part, key in written if part == section and key in values]:
                assert written.pop((section, key)) != values[key], f"{name}: {section}.{key} is what {base} has"


def test_feddfs_tables_are_as_published() -> None:
    config = Config.load("feddf/table2")
    assert (config.rounds, config.partition.participation, config.local["epochs"]) == (100, 0.4, 40)
    assert (config.local["optimizer"], config.local["lr"], config.local["batch"]) == ("sgd", 0.1, 64)
    wanted = {"steps": 10000, "patience": 1000, "eval_every": 100, "batch": 128, "clip": 5.0, "schedule": "cosine"}
    assert {key: config.server[key] for key in wanted} == wanted
    assert (config.server["mix"], config.server["weights"], config.server["restore"]) == ("logits", "uniform", "best")
