"""`headwater report`: page, picture and tables from runs on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def compared(call: Call, small: tuple[str, ...], tmp_path: Path) -> Path:
    call("compare", "fedavg", "local", *small, "--rounds", 1, "--out", tmp_path / "c")
    return tmp_path / "c"


def test_it_writes_html_png_csv_and_markdown(call: Call, compared: Path, tmp_path: Path) -> None:
    told = call("report", compared, "--out", tmp_path / "r", "--quiet")
    assert (told.status, told.err) == (0, "")
    assert {path.suffix for path in (tmp_path / "r").iterdir()} == {".html", ".png", ".csv", ".md"}
    assert "fedavg" in told.out
    assert str(tmp_path / "r/report.html") in told.out


def test_json_names_the_files_and_holds_the_rows(call: Call, compared: Path, tmp_path: Path) -> None:
    runs = (compared / "fedavg/seed-0", compared / "local/seed-0")
    facts = json.loads(call("report", *runs, "--out", tmp_path / "r", "--quiet", "--json").out)
    assert [row["method"] for row in facts["rows"]] == ["fedavg", "local"]
    assert all(Path(file).exists() for file in facts["files"])
