"""`headwater audit`: who saw what in a simulated run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.audit import inversion

Call = Callable[..., Any]


def test_it_counts_what_came_to_each_party(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    call("run", "hfedavg", *small, "--rounds", 2, "--out", tmp_path / "a")
    facts = json.loads(call("audit", tmp_path / "a", "--json").out)
    seen = {
        (role, row["how"], row["from"], row["kind"]): row["count"]
        for role, rows in facts["parties"].items()
        for row in rows
        if row["purpose"] == "train"
    }
    result = json.loads((tmp_path / "a/result.json").read_text())
    assert seen == {
        ("server", "received", "sector", "model"): result["ledger"]["server_sector"]["up_models"],
        ("sector", "received", "server", "model"): result["ledger"]["server_sector"]["down_models"],
        ("sector", "received", "client", "model"): result["ledger"]["sector_client"]["up_models"],
        ("client", "received", "sector", "model"): result["ledger"]["sector_client"]["down_models"],
    }
    told = call("audit", tmp_path / "a").out
    assert "no rows of data left their clients" in told
    assert "as the method says, the server sees: sectors' means" in told


def test_a_host_passes_on_what_goes_straight_through_it(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    own = ("--set", "algorithm.nu=0.0")
    call("run", "fedhkd", *small, *own, "--rounds", 1, "--out", tmp_path / "a")
    rows = json.loads(call("audit", tmp_path / "a", "--json").out)["parties"]["sector"]
    assert {row["how"] for row in rows} == {"passed on"}
    assert "privacy spent: Representations only: ε = " in call("audit", tmp_path / "a").out


def test_pooled_rows_are_named(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    call("run", "centralized", *small, "--rounds", 1, "--out", tmp_path / "a")
    assert "rows of data LEFT their clients" in call("audit", tmp_path / "a").out


def test_what_is_no_finished_run_is_refused(call: Call, tmp_path: Path) -> None:
    assert call("audit", tmp_path).status == 2
    (tmp_path / "config.toml").write_text("seed = 0")
    told = call("audit", tmp_path)
    assert (told.status, "is not finished" in told.err) == (2, True)


@pytest.mark.thorough
def test_a_probe_repeats_the_run_and_gives_numbers(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "STEPS", 5)  # of the search, which is tested elsewhere
    call("run", "hfedavg", *small, "--set", "model.name=mlp", "--rounds", 2, "--out", tmp_path / "a")
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    found = json.loads(call("audit", tmp_path / "a", "--probe", "--json", "--quiet").out)["probe"]
    assert found["model_sha256"] == json.loads((tmp_path / "a/result.json").read_text())["model_sha256"]
    kinds = {(each["role"], each["subject"]) for each in found["findings"]}
    assert ("sector", "client") in kinds
    assert ("server", "client") not in kinds
    assert all(0 <= each["loss"]["auc"]["value"] <= 1 for each in found["findings"])
    told = call("audit", tmp_path / "a", "--probe", "--quiet").out
    assert "lower bounds of the leak" in " ".join(told.split())
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before
