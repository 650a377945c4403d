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


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_fits_two_screens_of_80_columns(call: Call, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("list", kind).out.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["name", "summary"]
    assert KINDS[kind] in "\n".join(lines)
    assert kind != "algorithms" or "needs client state" in " ".join(" ".join(lines).split())


def test_one_method_shows_its_fields_moves_and_who_sees_what(call: Call) -> None:
    told = " ".join(call("list", "algorithms", "fedhead").out.split())
    for words in ("leader", '"random"', "client → leader model", "the server sees", "[local], [sector]"):
        assert words in told
    facts = json.loads(call("list", "algorithms", "fedprox", "--json").out)
    mu = next(row for row in facts["keys"] if row["key"] == "mu")
    assert (mu["symbol"], mu["default"], mu["accepted"]) == ("μ", "0.01", "a number of at least 0")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [("partitions", "dirichlet", "alpha"), ("models", "cnn", "[32, 64]"), ("datasets", "svhn", "extra_32x32.mat")],
)
def test_one_of_another_kind_shows_its_keys(call: Call, kind: str, name: str, words: str) -> None:
    assert words in call("list", kind, name).out
    assert json.loads(call("list", kind, name, "--json").out)["keys"]


def test_a_preset_shows_its_file_and_a_folder_its_presets(call: Call) -> None:
    assert 'extends = "fedhead/common"' in call("list", "presets", "fedhead/table2").out
    assert "fedhead/table7" in call("list", "presets", "fedhead").out
    told = call("list", "presets", "fedhead/tabel2")
    assert (told.status, "did you mean 'fedhead/table2'" in told.err, len(told.err) < 200) == (2, True, True)


def test_an_unknown_name_is_refused(call: Call) -> None:
    told = call("list", "algorithms", "fedhed")
    assert told.status == 2
    assert "did you mean 'fedhead'?" in told.err
