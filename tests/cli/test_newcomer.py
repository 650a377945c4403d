"""What somebody meets who types commands for the first time: hints that lead on, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """60 rows with a column that names rows, semicolons and a byte order mark; one client has one row."""
    rows = [f"{n};{n % 7};{'ab'[n % 2]};row number {n};h{n % 3}" for n in range(59)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["id;days;kind;note;hospital", *rows, "59;3;a;row number 59;h9"]), encoding="utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--set", "partition.client=4"), "did you mean 'partition.clients' or 'data.client'?"),
        (("run", "--set", "local.clients=4"), "did you mean 'partition.clients'?"),
        (("list", "methods"), "did you mean 'algorithms'?"),
        (("list", "model"), "did you mean 'models'?"),
        (("export", "runs"), "missing option --to onnx|torchscript"),
        (("export", "runs", "--to", "tflite"), "--to takes onnx or torchscript, got 'tflite'"),
        (("predict", "nowhere", "new.csv"), "there is no 'nowhere'; name the directory of a finished run"),
    ],
)
def test_hints(call: Call, words: tuple[str, ...], said: str) -> None:
    told = call(*words)
    assert told.status == 2
    assert said in told.err


def test_a_comparison_that_cannot_begin_leaves_no_directory(
    call: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("compare", "fedavg", "fedhead", "--set", f"data.name={table}", "--quiet")
    assert told.status == 2
    assert "set data.label to the column to learn" in told.err
    assert not any(Path("runs").iterdir())


def test_the_whole_way_with_a_table(call: Call, table: Path, tmp_path: Path) -> None:
    own = ("--set", f"data.name={table}", "--set", "data.label=kind", "--set", "data.client=hospital")
    few = ("--set", "local.epochs=1", "--set", "model.name=mlp", "--rounds", 1, "--out", tmp_path / "both")
    told = call("compare", "fedavg", "hfedavg", *own, *few)
    assert told.status == 0
    assert "column 'note' holds 48 different words" in told.err.replace("\n", " ")
    assert "'days'" not in told.err
    wrong = call("predict", tmp_path / "both", table, "--quiet")
    assert wrong.status == 2
    assert f"name one of them: {tmp_path}/both/fedavg/seed-0, {tmp_path}/both/hfedavg/seed-0" in wrong.err
    answers = call("predict", tmp_path / "both/fedavg/seed-0", table, "--quiet").out.splitlines()
    assert answers[0] == "row,class,probability"
    assert len(answers) == 61
