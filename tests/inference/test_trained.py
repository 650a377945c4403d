"""A trained model gives the same answers from the run, from its folder and from its file, for data in any form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headwater as hw
from headwater.config import Config
from headwater.core.params import digest
from headwater.inference.several_models import Ensemble
from headwater.specs import Mix, Weights
from headwater.tasks.ensemble import Fold
from headwater.training.experiment import prepare

SMALL: dict[str, Any] = {"clients": 4, "sectors": 2, "rounds": 1, "local__epochs": 1, "local__lr": 0.05}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[hw.Run, torch.Tensor]:
    run = hw.run("fedavg", out=tmp_path_factory.mktemp("runs") / "digits", **SMALL)
    test = prepare(Config.from_toml(run.config)).split.test
    return run, test.x


def table(path: Path, rows: int = 240) -> Path:
    rng = np.random.default_rng(0)
    kind = np.arange(rows) % 3
    frame = pd.DataFrame(
        {
            "age": 30 + 10 * kind + rng.normal(0, 2, rows),
            "colour": np.array(["red", "blue", "green"])[kind],
            "label": np.array(["young", "older", "old"])[kind],
        }
    )
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[hw.Run, Path]:
    folder = tmp_path_factory.mktemp("people")
    file = table(folder / "people.csv")
    return hw.run("fedavg", data=file, out=folder / "run", **SMALL | {"rounds": 4, "alpha": 100.0}), file


def test_run_folder_and_file_give_the_module_s_own_answers(digits: tuple[hw.Run, torch.Tensor]) -> None:
    run, x = digits
    assert run.directory is not None
    with torch.no_grad():
        expected = torch.softmax(run.model(x), 1).numpy()
    for model in (run.trained, hw.load(run.directory), hw.load(run.directory / "model.safetensors")):
        np.testing.assert_allclose(model.predict_proba(x), expected, rtol=0, atol=1e-6)
        assert model.predict(x).tolist() == expected.argmax(1).tolist()
        assert model.classes_.tolist() == list(range(10))
    accuracy = np.mean(run.predict(x) == prepare(Config.from_toml(run.config)).split.test.y.numpy())
    assert accuracy == pytest.approx(run.accuracy)


def test_arrays_tensors_and_loaders_are_the_same_rows(digits: tuple[hw.Run, torch.Tensor], tmp_path: Path) -> None:
    run, x = digits
    expected = run.predict_proba(x)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    loader = DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=50)
    for data in (x.numpy(), loader, tmp_path / "x.npz", x.flatten(1)):
        np.testing.assert_allclose(run.predict_proba(data), expected, rtol=0, atol=1e-6)


def test_images_are_scaled_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    files = []
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 128, (12, 12), dtype=np.uint8) + (100 if label == "dog" else 0)
            files.append(tmp_path / "data" / label / f"{number}.png")
            Image.fromarray(pixels.astype(np.uint8)).save(files[-1])
    run = hw.run("fedavg", data=tmp_path / "data", **SMALL | {"clients": 2, "rounds": 3})
    stack = np.stack([np.asarray(Image.open(file)) for file in files])
    by_array, by_file = run.predict_proba(stack), run.predict_proba(files)
    np.testing.assert_allclose(by_array, by_file, atol=1e-6)
    np.testing.assert_allclose(run.predict_proba(tmp_path / "data"), by_file, atol=1e-6)
    assert set(run.predict(files)) <= {"cat", "dog"}
    with pytest.raises(hw.DataError, match=r"12 x 12 px"):
        run.predict(np.zeros((2, 9, 9), dtype=np.uint8))


def test_a_table_is_matched_by_column_name(people: tuple[hw.Run, Path]) -> None:
    run, file = people
    frame = pd.read_csv(file)
    expected = run.predict(file)
    assert set(expected) <= {"young", "older", "old"}
    assert np.mean(expected == frame["label"]) > 0.9
    shuffled = frame[["label", "colour", "age"]]
    assert run.predict(shuffled).tolist() == expected.tolist()
    assert run.predict(frame[["age", "colour"]].to_numpy()).tolist() == expected.tolist()
    with pytest.raises(hw.DataError, match=r"no column 'colour'.*did you mean 'color'"):
        run.predict(frame.rename(columns={"colour": "color"}))
    with pytest.raises(hw.DataError, match=r"2 columns \(age, colour\)"):
        run.predict(np.zeros((3, 5)))
    with pytest.warns(UserWarning, match="'pink'"):
        run.predict(frame.assign(colour="pink"))


def test_a_missing_number_counts_as_the_mean(people: tuple[hw.Run, Path]) -> None:
    run, file = people
    frame = pd.read_csv(file)
    settled = run.trained.reading.settled
    mean = float(settled[0][0])
    given, left_out = frame.assign(age=mean), frame.assign(age=np.nan)
    np.testing.assert_allclose(run.predict_proba(left_out), run.predict_proba(given), atol=1e-6)


def test_texts_get_the_token_numbers_of_training(tmp_path: Path) -> None:
    rows = [("good fine lovely", "pos"), ("bad awful poor", "neg")] * 60
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(tmp_path / "t.csv", index=False)
    options = {"text": "text", "length": 8, "data__words": 50, "alpha": 100.0, "rounds": 2}
    for vocabulary in ("hashed", "counted"):
        run = hw.run("fedavg", data=tmp_path / "t.csv", **SMALL | options | {"vocabulary": vocabulary})
        split = prepare(Config.from_toml(run.config)).split
        by_text = run.predict_proba(["good fine lovely", "bad awful poor"])
        with torch.no_grad():
            by_number = torch.softmax(run.model(split.test.x), 1).numpy()
        known = {tuple(row) for row in np.round(by_number, 5).tolist()}
        assert {tuple(row) for row in np.round(by_text, 5).tolist()} == known


def test_personal_models_are_members(tmp_path: Path) -> None:
    run = hw.run("local", out=tmp_path / "run", **SMALL)
    model = hw.load(tmp_path / "run")
    x = np.random.default_rng(0).uniform(-1, 1, (5, 1, 8, 8)).astype(np.float32)
    assert set(model.members) == set(run.params)
    each = [model.member(name).predict_proba(x) for name in model.members]
    np.testing.assert_allclose(model.predict_proba(x), np.mean(each, axis=0), atol=1e-6)
    assert not np.allclose(each[0], each[1])
    with pytest.raises(hw.ConfigError, match=r"no member 'c9'"):
        model.member("c9")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> hw.Run:
    """FedEED with three models and the averages of two rounds."""
    options = {"cohorts": 3, "kept": 2, "rounds": 2, "clients": 6, "server__steps": 2}
    options |= {"model__name": "mlp", "data__test_fraction": 0.3}
    return hw.run("fedeed", out=tmp_path_factory.mktemp("runs") / "fedeed", **SMALL | options)


def test_fedeed_leaves_all_its_models_and_predicts_with_their_ensemble(taught: hw.Run, tmp_path: Path) -> None:
    """From the folder, from memory and from a saved copy: the ensemble gets the accuracy that the run reports."""
    test = prepare(Config.from_toml(taught.config)).split.test
    assert taught.directory is not None
    kept = [hw.load(taught.directory), taught.trained, hw.load(taught.save(tmp_path / "copy"))]
    for model in kept:
        assert list(model.members) == ["0_0", "0_1", "0_2", "1_0", "1_1", "1_2"]
        assert list(model.others) == ["mlp_1", "mlp_2"]
        right = float((model.as_ensemble().predict(test.x) == test.y.numpy()).mean())
        assert right == pytest.approx(taught.result["ensemble_accuracy"])
        assert float((model.predict(test.x) == test.y.numpy()).mean()) == pytest.approx(taught.accuracy)
    logits = [kept[0].members[name](test.x).detach() for name in kept[0].members]
    together = torch.softmax(torch.stack(logits).mean(0), 1).numpy()
    np.testing.assert_allclose(kept[0].as_ensemble().predict_proba(test.x), together, atol=1e-6)
    alone = hw.load(taught.directory / "members.safetensors")  # the file is a model of its own
    np.testing.assert_array_equal(alone.predict(test.x), kept[0].as_ensemble().predict(test.x))


def test_the_file_of_the_designated_model_is_as_before(taught: hw.Run) -> None:
    """The others are beside it; models that nobody distilled are the newest averages and are stored once."""
    assert taught.directory is not None
    single = load_file(taught.directory / "model.safetensors")
    assert digest(single) == taught.result["model_sha256"]
    beside = load_file(taught.directory / "members.safetensors")
    assert digest(beside) == taught.result["members_sha256"]
    assert len(beside) == 6 * len(single)
    model = hw.load(taught.directory)
    for number, (name, other) in enumerate(model.others.items(), 1):
        newest = model.members[f"0_{number}"].state_dict()
        assert all(torch.equal(value, newest[key]) for key, value in other.state_dict().items())
        assert model.member(name).predict_proba(np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10)


def test_prototypes_of_feddf_are_left_too(tmp_path: Path) -> None:
    options = {"model__name": "mlp", "model__also": ["linear"], "server__steps": 1, "out": tmp_path / "run"}
    run = hw.run("feddf", **SMALL | options)
    model, x = hw.load(tmp_path / "run"), np.zeros((2, 1, 8, 8), dtype=np.float32)
    assert list(model.others) == ["linear"]
    assert model.members == {}
    assert model.member("linear").predict(x).shape == model.predict(x).shape == (2,)
    with pytest.raises(hw.ConfigError, match="has no ensemble"):
        model.as_ensemble()
    assert "members_sha256" in run.result


def test_clients_that_teach_are_not_left(tmp_path: Path) -> None:
    """An ensemble of single clients' models is tested, not written."""
    options = {"ensemble": "clients", "cohorts": 1, "server__steps": 1, "out": tmp_path / "run"}
    run = hw.run("fedeed", **SMALL | options)
    assert "ensemble_accuracy" in run.result
    assert not (tmp_path / "run" / "members.safetensors").exists()
    assert hw.load(tmp_path / "run").ensemble is None


@pytest.mark.parametrize("mix", ["probs", "logits"])
@pytest.mark.parametrize("weights", ["uniform", "samples", "confidence"])
def test_an_ensemble_averages_as_the_teachers_do(mix: Mix, weights: Weights) -> None:
    torch.manual_seed(0)
    members = {name: nn.Linear(4, 3) for name in "abc"}
    samples, x, fold = {"a": 1.0, "b": 3.0, "c": 6.0}, torch.randn(20, 4), Fold(mix=mix, weights=weights)
    with torch.no_grad():
        for name, member in members.items():
            fold.add(name, samples[name], member(x))
        ours = torch.softmax(Ensemble(members, mix, weights, samples)(x), 1)
    torch.testing.assert_close(ours, fold.target().probs, atol=1e-6, rtol=1e-5)


def test_a_model_given_as_a_function_is_given_again(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    run = hw.run("fedavg", model=net, out=tmp_path / "run", **SMALL)
    x = np.zeros((1, 1, 8, 8), dtype=np.float32)
    with pytest.raises(hw.ConfigError, match="given as a function"):
        hw.load(tmp_path / "run")
    np.testing.assert_array_equal(hw.load(tmp_path / "run", model=net).predict_proba(x), run.predict_proba(x))
    with pytest.raises(hw.OutputError, match="do not fit"):
        hw.load(tmp_path / "run", model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12))).predict(x)


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hw.OutputError, match="there is no"):
        hw.load(tmp_path)
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense" * 9)
    with pytest.raises(hw.OutputError, match="damaged"):
        hw.load(tmp_path / "broken.safetensors")
    save_file({"w": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(hw.OutputError, match="not written by a run"):
        hw.load(tmp_path / "other.safetensors")
    for about in ("[]", "{", json.dumps({"name": "mlp", "class_names": 3})):
        save_file({"w": torch.zeros(1)}, tmp_path / "odd.safetensors", metadata={"headwater": about})
        with pytest.raises(hw.OutputError, match="does not say which model"):
            hw.load(tmp_path / "odd.safetensors")


def test_a_saved_run_is_a_run_s_folder(digits: tuple[hw.Run, torch.Tensor], tmp_path: Path) -> None:
    run, x = digits
    alone = hw.run("fedavg", **SMALL)
    folder = alone.save(tmp_path / "kept")
    assert hw.load(folder).predict(x).tolist() == run.predict(x).tolist()
    written, kept = load_file(run.directory / "model.safetensors"), load_file(folder / "model.safetensors")  # type: ignore[operator]
    assert all(torch.equal(written[name], kept[name]) for name in written)
    assert json.loads((folder / "result.json").read_text())["model_sha256"] == run.result["model_sha256"]
    with pytest.raises(hw.OutputError, match="not an empty folder"):
        alone.save(folder)


def test_the_card_tells_what_result_and_method_say(digits: tuple[hw.Run, torch.Tensor]) -> None:
    run, _ = digits
    assert run.directory is not None
    text = (run.directory / "model.md").read_text(encoding="utf-8")
    assert text == run.card
    assert run.result["model_sha256"] in text
    assert f"{run.accuracy:.2%}" in text
    assert "every client's model" in text
    assert "4 clients in 2 sectors, dirichlet" in text


def test_a_run_is_shown_in_three_lines(digits: tuple[hw.Run, torch.Tensor]) -> None:
    run, _ = digits
    lines = repr(run).splitlines()
    assert len(lines) <= 3
    assert max(map(len, lines)) < 100
    assert f"{run.accuracy:.2%}" in lines[0]
    assert str(run.directory) in lines[-1]


def test_a_folder_that_vanishes_while_it_is_searched_is_no_error_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    scandir = os.scandir

    def gone(path=".", *rest):
        if str(path).endswith("a"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path, *rest)

    monkeypatch.setattr(os, "scandir", gone)
    with pytest.raises(hw.OutputError, match=r"there is no .*model\.safetensors"):
        hw.load(tmp_path / "runs")
