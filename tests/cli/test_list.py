"""`headwater list`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Call = Callable[..., Any]
KINDS = {
    "algorithms": "fedhead+",
    "datasets": "digits",
    "models": "resnet8",
    "partitions": "dirichlet-balanced",
    "presets": "fedhead/table2",
}


@pytest.mark.parametrize(("kind", "name"), KINDS.items())
def test_each_kind_lists_names_with_a_line(call: Call, kind: str, name: str) -> None:
    told = call("list", kind)
    assert (told.status, told.err) == (0, "")
    assert name in told.out


@pytest.mark.parametrize(("kind", "name"), KINDS.items())
def test_json_has_name_and_summary(call: Call, kind: str, name: str) -> None:
    rows = json.loads(call("list", kind, "--json").out)
    assert name in [row["name"] for row in rows]
    assert all(row["summary"] for row in rows)


def test_methods_show_their_three_stages(call: Call) -> None:
    rows = {row["name"]: row for row in json.loads(call("list", "algorithms", "--json").out)}
    shown = ["local", "teachers", "consolidation", "models a round", "needs"]
    assert list(rows["fedhead"]["stages"]) == shown
    assert rows["fedhead"]["stages"]["models a round"].startswith("2M, 2M")
    assert rows["scaffold"]["stages"]["needs"] == "client state"
    assert all(row["stages"][part] for row in rows.values() for part in shown)
    told = call("list", "algorithms").out
    assert "teachers" in told
    assert "distil at leaders" in told


def test_without_a_kind_everything_is_listed(call: Call) -> None:
    told = call("list")
    assert all(name in told.out for name in KINDS.values())
    assert set(json.loads(call("list", "--json").out)) == set(KINDS)
