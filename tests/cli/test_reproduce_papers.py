"""`headwater reproduce` on a figure and a table that come along: a sample of what `make papers` does with all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.mark.thorough
def test_a_figure_that_comes_along(call: Call, tmp_path: Path) -> None:
    told = call("reproduce", "feddf/fig1", "--out", tmp_path, "--workers", 1, "--json", "--set", "local.epochs=2")
    assert told.status == 0
    facts = json.loads(told.out)
    assert facts["table"] == "feddf/fig1"
    assert all(0 < each["ours"] <= 100 for each in facts["cells"])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_a_table_of_real_data(call: Call, real_data: Path, tmp_path: Path) -> None:
    given = ("--data-dir", real_data, "--rounds", 1, "--set", "data.test_fraction=0.02", "--out", tmp_path)
    told = call("reproduce", "fedhead/table7", "--scale", "smoke", *given, "--json")
    assert told.status == 0
    facts = json.loads(told.out)
    assert len(facts["cells"]) == 6
    assert all(each["ours"] is not None and each["paper"] is not None for each in facts["cells"])
    there = {folder.name for folder in real_data.iterdir()}
    for name in {"svhn", "cifar100"} - there:
        assert any(f"stands in for {name}" in sentence for sentence in facts["remarks"])
        assert name in told.err
