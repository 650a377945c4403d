"""`headwater config`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headwater.config import catalog

Call = Callable[..., Any]


def test_every_section_and_key_is_shown(call: Call) -> None:
    told = call("config")
    assert (told.status, told.err) == (0, "")
    for section in catalog.ORDER:
        assert f"[{section}]" in told.out
        assert all(f" {key} " in told.out for key in catalog.common(section))


def test_a_section_has_defaults_as_used(call: Call) -> None:
    told = " ".join(call("config", "local").out.split())
    assert "0.001 (Adam), 0.1 (SGD)" in told
    assert 'scaffold: optimizer = "sgd"' in told.replace("hfeddyn, hscaffold, mtgc, fedalign, feddyn, ", "")
    assert "[server]" not in told


def test_the_method_section_says_where_its_fields_are(call: Call) -> None:
    told = call("config", "algorithm").out
    assert "headwater list algorithms NAME" in told
    assert "fedhead: leader, val_source" in told


def test_a_key_is_found_by_its_last_part_with_the_papers_symbol(call: Call) -> None:
    rows = json.loads(call("config", "mu", "--json").out)
    assert {(row["key"], row["symbol"], *row["of"]) for row in rows} >= {("algorithm.mu", "μ", "fedprox")}
    assert "learning rate" in call("config", "local.lr").out


def test_json_has_the_keys_of_every_choice(call: Call) -> None:
    (section,) = json.loads(call("config", "algorithm", "--json").out)
    assert {row["key"]: row["symbol"] for row in section["choices"]["fedeed"]}["cohorts"] == "K"


def test_schema_is_json_for_editors(call: Call) -> None:
    assert json.loads(call("config", "--schema").out)["$schema"].endswith("2020-12/schema")


def test_80_columns_are_enough(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("config", "server").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["key", "default", "meaning"] in [line.split() for line in lines]


def test_an_unknown_section_is_refused_with_the_nearest(call: Call) -> None:
    told = call("config", "sektor")
    assert told.status == 2
    assert "did you mean 'sector'?" in told.err
