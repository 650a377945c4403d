"""`headwater predict` and `headwater export`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.cli.app import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hw.Run:
    out = tmp_path_factory.mktemp("runs") / "digits"
    return hw.run("fedavg", clients=4, sectors=2, rounds=1, local__epochs=1, out=out)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.npz"
    np.savez(path, x=np.random.default_rng(0).uniform(-1, 1, (7, 1, 8, 8)).astype(np.float32))
    return path


def test_class_and_probability_by_row(run: hw.Run, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run.directory), str(rows), "--quiet"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    probabilities = run.predict_proba(rows)
    assert [row["class"] for row in table] == [str(number) for number in run.predict(rows)]
    assert [float(row["probability"]) for row in table] == pytest.approx(probabilities.max(1).tolist(), abs=1e-6)
    assert main(["predict", str(run.directory), str(rows), "--quiet", "--json", "--all", "--batch", "2"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in answers] == list(range(1, 8))
    assert answers[3]["p(4)"] == pytest.approx(float(probabilities[3, 4]), abs=1e-6)


def test_answers_go_to_a_file(run: hw.Run, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run.directory), str(rows), "--out", str(tmp_path / "a" / "b.json"), "--quiet"]) == 0
    assert len(json.loads((tmp_path / "a" / "b.json").read_text())) == 7
    assert capsys.readouterr().out == ""


def test_all_models_of_fedeed_together(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"clients": 4, "sectors": 1, "rounds": 1, "cohorts": 2, "local__epochs": 1, "server__steps": 1}
    run = hw.run("fedeed", out=tmp_path / "run", data__test_fraction=0.2, **options)
    assert main(["predict", str(run.directory), str(rows), "--ensemble", "--json", "--quiet"]) == 0
    answers = [row["probability"] for row in json.loads(capsys.readouterr().out)]
    assert answers == pytest.approx(run.trained.as_ensemble().predict_proba(rows).max(1).tolist(), abs=1e-6)
    assert main(["export", str(run.directory), "--to", "torchscript", "--ensemble", "--quiet"]) == 0
    assert "model-ensemble.pt: the same class for 72 of 72 rows" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("to", ["onnx", "torchscript"])
def test_an_exported_model_gives_the_same_classes(
    run: hw.Run, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    file = tmp_path / "model.out"
    assert main(["export", str(run.directory), "--to", to, "--out", str(file), "--quiet"]) == 0
    assert "the same class for 359 of 359 rows of the test set" in capsys.readouterr().out
    assert file.stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["predict", "{run}", "nowhere.csv"], "there is no file nowhere.csv"),
        (["predict", "{rows}", "{rows}"], "damaged"),
        (["predict", "nowhere", "{rows}"], "there is no 'nowhere'"),
        (["predict", "{run}", "{rows}", "--member", "c1"], "has no member 'c1'"),
        (["predict", "{run}", "{rows}", "--ensemble"], "has no ensemble"),
        (["predict", "{run}", "{rows}", "--ensemble", "--member", "c1"], "give one of the two"),
        (["predict", "{run}", "{rows}", "--batch", "0"], "batch must be at least 1"),
        (["predict", "{run}", "{rows}", "--out", "{folder}"], "is a directory"),
        (["export", "{run}", "--to", "caffe"], "onnx or torchscript"),
    ],
)
def test_mistakes_are_sentences(
    run: hw.Run, rows: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word.format(run=run.directory, rows=rows, folder=rows.parent) for word in words]
    assert main(named) == 2
    assert sentence in capsys.readouterr().err
