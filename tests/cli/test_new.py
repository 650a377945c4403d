"""`headwater new`: the starter project runs as it stands."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

Call = Callable[..., Any]


@pytest.fixture
def project(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = list(sys.path)
    assert call("new", tmp_path / "mine").status == 0
    monkeypatch.chdir(tmp_path / "mine")
    yield tmp_path / "mine"
    sys.path[:] = path  # of modules in the folder
    for name in ("my_model", "my_method"):
        sys.modules.pop(name, None)


def test_it_runs_and_learns(call: Call, project: Path) -> None:
    told = call("run", "experiment.toml", "--engine", "inline", "--json", "-q")
    facts = json.loads(told.out)
    assert (facts["algorithm"], facts["clients"], facts["sectors"]) == ("my_method:Mine", 6, 2)
    assert facts["accuracy"] > 0.8
    assert (project / "runs/my_method.Mine-measurements-001/report.html").exists()
    assert "a sector's host" in call("audit", "runs/latest").out


def test_its_file_is_valid_under_its_schema(project: Path) -> None:
    schema = json.loads((project / "headwater.schema.json").read_text())
    text = (project / "experiment.toml").read_text()
    assert text.startswith("#:schema headwater.schema.json\n")
    Draft202012Validator(schema).validate(tomllib.loads(text))


def test_every_file_that_its_readme_names_is_there(project: Path) -> None:
    text = (project / "README.md").read_text()
    for name in ("measurements.csv", "my_model.py", "my_method.py", "experiment.toml", "headwater.schema.json"):
        assert f"`{name}`" in text
        assert (project / name).exists()


def test_a_folder_that_is_not_empty_is_left_alone(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    told = call("new", tmp_path)
    assert (told.status, "not an empty folder" in told.err) == (2, True)
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]
