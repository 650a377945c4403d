"""Many runs at once: each in its directory, finished ones left alone, failed ones told, interrupted ones carried on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.config import Config
from headwater.errors import OutputError
from headwater.sweep import Cell, CellFile, CellOutcome, finished, identity, unfinished
from headwater.sweep.processes import SweepWorkers
from headwater.training.experiment import prepare
from headwater.training.loop import train

SMALL = ("partition.clients=3", "partition.sectors=1", "local.epochs=1", "engine.name=inline", "model.name=linear")


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = (rng.normal(size=(150, 4)) * 0.3 + np.eye(3, 4)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    return str(path)


def cell(out: Path, npz: str, name: str, *sets: str, method: str = "fedavg") -> Cell:
    config = Config.load(method, [f"data.name={npz}", *SMALL, "rounds=3", *sets])
    return Cell(name, out / name, config)


class Log:
    """Records what `SweepWorkers.train` reports."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, Any]] = []

    def __call__(self, which: Cell, kind: str, what: Any) -> None:
        self.told.append((which.name, kind, what))

    def ended(self) -> list[str]:
        return [name for name, kind, _ in self.told if kind == "end"]


@pytest.fixture(scope="module")
def sweep_worker() -> Iterator[SweepWorkers]:
    """A worker that stays: starting one takes longer than a test's runs."""
    with SweepWorkers(1) as made:
        yield made


@pytest.fixture(scope="module")
def sweep_workers() -> Iterator[SweepWorkers]:
    with SweepWorkers(2) as made:
        yield made


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.thorough
def test_cells_are_runs_like_any_other(sweep_workers: SweepWorkers, npz: str, tmp_path: Path, log: Log) -> None:
    cells = [cell(tmp_path, npz, name, method=name) for name in ("fedavg", "fedhead", "local")]
    assert sweep_workers.train(cells, log) == [CellOutcome()] * 3
    assert sorted(log.ended()) == ["fedavg", "fedhead", "local"]
    for each in cells:
        alone = train(prepare(each.config))
        told = json.loads((each.path / "result.json").read_text())
        assert told["model_sha256"] == alone.result["model_sha256"]
        assert (each.path / "model.safetensors").exists()
    assert unfinished(cells) == []


@pytest.mark.thorough
def test_one_that_fails_does_not_end_the_others(
    sweep_workers: SweepWorkers, npz: str, tmp_path: Path, log: Log
) -> None:
    stop = ("local.lr=1e38", "local.optimizer=sgd", "local.epochs=3", "model.name=mlp", "faults.bad_update=stop")
    cells = [
        cell(tmp_path, npz, "diverges", *stop),
        cell(tmp_path, npz, "refused", "model.name=resnet8"),
        cell(tmp_path, npz, "good"),
    ]
    first, second, third = sweep_workers.train(cells, log)
    assert "gave numbers that are not finite" in first.failed
    assert not first.ours
    assert "resnet8" in second.failed
    assert third == CellOutcome()
    assert [each.name for each in unfinished(cells)] == ["diverges", "refused"]


def test_another_run_in_a_directory_is_refused_before_anything_is_trained(
    sweep_worker: SweepWorkers, npz: str, tmp_path: Path, log: Log
) -> None:
    before = cell(tmp_path, npz, "a")
    sweep_worker.train([before], log)
    other = Cell("a", before.path, before.config.merged({"local": {"lr": 0.5}}))
    with pytest.raises(OutputError, match=r"holds another run \(local.lr is None there and 0.5 now\)"):
        unfinished([other])
    # Without the note that tells cells apart, the run's own configuration still does.
    (before.path / "cell.json").unlink()
    assert not finished(other)
    assert "holds another run" in sweep_worker.train([other], log)[0].failed
    stamp = (before.path / "result.json").stat().st_mtime_ns
    assert sweep_worker.train([before], log) == [CellOutcome()]
    assert (before.path / "result.json").stat().st_mtime_ns == stamp  # the same run, found finished
    assert finished(before)


def test_where_it_is_computed_makes_no_other_cell(npz: str, tmp_path: Path) -> None:
    one = cell(tmp_path, npz, "a").config
    assert identity(one) == identity(one.merged({"engine": {"workers": 7}, "data": {"dir": "/elsewhere"}}))
    assert identity(one) != identity(one.merged({"seed": 1}))
    assert identity(one) != identity(one.merged({"local": {"epochs": 2}}))


def test_a_note_of_another_version_is_not_trusted(
    sweep_worker: SweepWorkers, npz: str, tmp_path: Path, log: Log
) -> None:
    only = cell(tmp_path, npz, "a")
    sweep_worker.train([only], log)
    note = only.path / "cell.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"headwater": "0.0.0"}))
    assert not finished(only)
    assert sweep_worker.train([only], log) == [CellOutcome()]  # a worker compares all of it
    assert finished(only)
    note.write_text("{cut sho")
    assert CellFile.read(only.path) is None
    assert not finished(only)


@pytest.mark.thorough
def test_a_worker_that_dies_takes_one_cell_with_it(npz: str, tmp_path: Path) -> None:
    cells = [cell(tmp_path, npz, "dies", "rounds=100000"), cell(tmp_path, npz, "lives")]
    sweep_workers = SweepWorkers(1)

    def kill(which: Cell, kind: str, told: Any) -> None:
        if which.name == "dies" and kind == "round" and told[0] >= 2:
            sweep_workers._workers[0].process.kill()

    with sweep_workers:
        died, lived = sweep_workers.train(cells, kill)
    assert "died by signal SIGKILL" in died.failed
    assert died.ours
    assert lived == CellOutcome()


@pytest.mark.thorough
def test_an_interrupted_cell_goes_on_where_it_was(npz: str, tmp_path: Path, log: Log) -> None:
    rounds = "rounds=120"
    only = cell(tmp_path / "one", npz, "a", rounds)
    pid = 0
    sweep_workers = SweepWorkers(1)

    def interrupt(which: Cell, kind: str, told: Any) -> None:
        nonlocal pid
        if kind == "round" and told[0] >= 5:
            pid = sweep_workers._workers[0].process.pid
            raise KeyboardInterrupt

    with sweep_workers, pytest.raises(KeyboardInterrupt):
        sweep_workers.train([only], interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
    rows = [json.loads(line) for line in (only.path / "rounds.jsonl").read_text().splitlines()]
    assert 5 <= len(rows) < 120
    assert not (only.path / "result.json").exists()
    with SweepWorkers(1) as sweep_workers:
        assert sweep_workers.train(unfinished([only]), log) == [CellOutcome()]
    after = [json.loads(line) for line in (only.path / "rounds.jsonl").read_text().splitlines()]
    assert after[: len(rows)] == rows  # with their times: these rounds were not run again
    assert (
        json.loads((only.path / "result.json").read_text())["model_sha256"]
        == (train(prepare(only.config)).result["model_sha256"])
    )


def test_a_worker_that_does_not_train_yet_is_not_waited_for(npz: str, tmp_path: Path) -> None:
    only = cell(tmp_path, npz, "a", "rounds=100000")
    sweep_workers = SweepWorkers(1)
    workers = []

    def interrupt(which: Cell, kind: str, told: Any) -> None:
        workers.extend(sweep_workers._workers)  # still importing
        raise KeyboardInterrupt

    with sweep_workers, pytest.raises(KeyboardInterrupt):
        sweep_workers.train([only], interrupt)
    assert [worker.process.returncode for worker in workers] == [-signal.SIGKILL]
    assert not only.path.exists()  # what it was given was never begun


def test_sizes_of_data_and_why_there_are_none(sweep_worker: SweepWorkers, npz: str, tmp_path: Path) -> None:
    sections = [{"name": npz}, {"name": "digits"}, {"name": "cifar10", "dir": str(tmp_path)}, {"name": "no/such.npz"}]
    own, digits, absent, wrong = sweep_worker.sizes([(section, False) for section in sections])
    (other,) = sweep_worker.sizes([({"name": "digits", "reference": npz}, True)])
    assert (own.train, own.test, own.shape, own.classes, own.absent) == (120, 30, (4,), 3, "")
    assert (digits.shape, digits.classes) == ((1, 8, 8), 10)
    assert "cifar10 is not in the data directory" in absent.absent
    assert "there is no file no/such.npz" in wrong.wrong  # which a stand-in would only hide
    assert other == own
