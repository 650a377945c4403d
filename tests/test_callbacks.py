"""Ready callbacks: what TensorBoard, MLflow and Weights & Biases read from the files that they leave."""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.callbacks import scalars, texts

Y = np.arange(90) % 3
X = (np.random.default_rng(0).normal(size=(90, 4)) * 0.5 + np.eye(3, 4)[Y]).astype(np.float32)
QUICK: dict[str, Any] = {"data": (X, Y), "clients": 3, "sectors": 1, "rounds": 2, "local__epochs": 1}
QUICK |= {"engine": "inline"}


def test_numbers_of_inner_tables_have_names_with_slashes() -> None:
    row = {"round": 1, "accuracy": 0.5, "bytes": {"server_sector": {"up": 3}}, "clients": [1, 2], "x": None, "y": True}
    assert scalars(row) == {"round": 1.0, "accuracy": 0.5, "bytes/server_sector/up": 3.0}
    assert texts({"local": {"lr": 0.1}, "rounds": 2}) == {"local.lr": "0.1", "rounds": "2"}


@pytest.mark.filterwarnings("default")  # of the libraries
def test_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'headwater[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = hw.compare(["fedavg", "local"], callbacks=[hw.callbacks.TensorBoard(tmp_path)], **QUICK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedavg-arrays-seed0", "local-arrays-seed0"]
    events = EventAccumulator(str(tmp_path / "fedavg-arrays-seed0"))
    events.Reload()
    run = found.runs[0]
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2]
    np.testing.assert_allclose(
        [event.value for event in events.Scalars("accuracy")], [row["accuracy"] for row in run.history], rtol=1e-6
    )
    sent = [row["bytes"]["server_sector"]["up"] for row in run.history]
    assert [event.value for event in events.Scalars("bytes/server_sector/up")] == sent


@pytest.mark.filterwarnings("default")
def test_mlflow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'headwater[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    run = hw.run("fedavg", callbacks=[hw.callbacks.MLflow("digits", uri)], **QUICK)
    client = mlflow.MlflowClient(uri)
    [stored] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.data.params["algorithm.name"] == "fedavg"
    assert stored.data.params["rounds"] == "2"
    history = client.get_metric_history(stored.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in history] == [(row["round"], row["accuracy"]) for row in run.history]
    assert stored.data.metrics["final_accuracy"] == run.accuracy


class Faulty(hw.Callback):
    def round_end(self, row: dict[str, Any]) -> None:
        raise ValueError("no")


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_mlflow_knows_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'headwater[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with pytest.raises(hw.CallbackError, match="Faulty"):
        hw.run("fedavg", callbacks=[hw.callbacks.MLflow("digits", uri), Faulty()], **QUICK)
    client = mlflow.MlflowClient(uri)
    [stored] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert stored.info.status == "FAILED"


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a run's file: LevelDB's log format after a header of 7 bytes, in blocks of 32 KiB."""
    at, whole, block = 7, b"", 1 << 15
    while at < len(content):
        if block - at % block < 7:  # too little is left of the block for a piece
            at += block - at % block
            continue
        if at + 7 > len(content):
            return
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if at + 7 + length > len(content):  # it is still being written
            return
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


def wandb_content(folder: Path) -> tuple[list[float], str]:
    """Accuracies by round, and the configuration, in the file of the one run."""
    from wandb.proto import wandb_internal_pb2

    [file] = folder.rglob("run-*.wandb")
    accuracies, config = [], ""
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        accuracies += [float(items["accuracy"])] if "accuracy" in items else []
        config += "".join(item.value_json for item in record.run.config.update)
    return accuracies, config


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_wandb_offline_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'headwater[wandb]'")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    run = hw.run("fedavg", callbacks=[hw.callbacks.WandB("digits", folder=tmp_path)], **QUICK)
    wanted, until = [row["accuracy"] for row in run.history], time.monotonic() + 60
    accuracies, config = wandb_content(tmp_path)
    while accuracies != wanted and time.monotonic() < until:  # a process of wandb's own writes the file
        time.sleep(0.2)
        accuracies, config = wandb_content(tmp_path)
    assert accuracies == wanted
    assert '"fedavg"' in config


@pytest.mark.parametrize(
    ("name", "module"), [("TensorBoard", "torch.utils.tensorboard"), ("MLflow", "mlflow"), ("WandB", "wandb")]
)
def test_a_library_that_is_not_installed_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(wanted: str, *rest: Any) -> Any:
        if wanted == module:
            raise ImportError(wanted)
        return real(wanted, *rest)

    monkeypatch.setattr("headwater.callbacks.importlib.import_module", absent)
    with pytest.raises(hw.MissingExtra, match=rf"pip install 'headwater\[{name.lower()}\]'"):
        getattr(hw.callbacks, name)()
