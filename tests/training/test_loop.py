"""The loop: what a run leaves, what a row says, and that it carries on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import toys
from headwater.config import Config
from headwater.config.stage_defaults import batch_for
from headwater.core.params import digest
from headwater.data.base import Data
from headwater.errors import ConfigError, OutputError
from headwater.training.experiment import prepare
from headwater.training.loop import Event, train


@pytest.fixture(scope="module")
def blobs() -> Data:
    """Three Gaussian clouds: easy enough to be learnt in a round or two."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = rng.normal(size=(240, 4)).astype(np.float32) + 2.0 * np.eye(3, 4, dtype=np.float32)[y]
    return Data(x[:180], y[:180], x[180:], y[180:])


def small(**changes: Any) -> Config:
    base = {"partition__clients": 6, "partition__alpha": 1.0, "rounds": 3, "engine__name": "inline", "local__epochs": 2}
    return Config.load(None, [], **(base | changes))


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_run_learns_and_leaves_its_files(blobs: Data, tmp_path: Path) -> None:
    run = train(prepare(small(), data=blobs), out=tmp_path)
    assert run.accuracy > 0.6
    names = {"config.toml", "rounds.jsonl", "result.json", "model.safetensors", "partition.json", "checkpoints"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == run.history
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == run.result
    tensors = load_file(tmp_path / "model.safetensors")
    assert digest(tensors) == result["model_sha256"]
    assert set(tensors) == set(run.model.state_dict())
    heads = sorted(path.name for path in (tmp_path / "checkpoints").glob("round-*.json"))
    assert len(heads) == 2  # which other one than the last depends on the time that writing takes
    assert heads[-1] == "round-000003.json"


def test_the_reported_accuracy_is_the_models(blobs: Data) -> None:
    run = train(prepare(small(), data=blobs))
    with torch.no_grad():
        guess = run.model(blobs.test.x).argmax(1)
    assert run.accuracy == pytest.approx(float((guess == blobs.test.y).double().mean()))
    low, high = run.accuracy_ci95 or (1.0, 0.0)
    assert low < run.accuracy < high
    assert np.array(run.result["confusion"]).sum() == len(blobs.test)


def test_a_finished_run_is_not_run_again(blobs: Data, tmp_path: Path) -> None:
    first = train(prepare(small(), data=blobs), out=tmp_path)
    events: list[Event] = []
    again = train(prepare(small(), data=blobs), out=tmp_path, watch=events.append)
    assert not [event for event in events if event.kind == "round"]
    assert again.result["model_sha256"] == first.result["model_sha256"]
    assert again.result["ledger"] == first.result["ledger"]


@pytest.mark.parametrize("method", ["fedhead", "local"])
def test_more_rounds_are_not_another_beginning(method: str, blobs: Data, tmp_path: Path) -> None:
    """Stopping after a round and carrying on gives what never stopping gives."""
    whole = train(prepare(small(algorithm__name=method), data=blobs))

    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(prepare(small(algorithm__name=method), data=blobs), out=tmp_path, watch=stop)
    resumed = train(prepare(small(algorithm__name=method), data=blobs), out=tmp_path)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert comparable(resumed.history) == comparable(whole.history)
    assert resumed.result["ledger"] == whole.result["ledger"]


def test_rounds_between_evaluations_have_no_accuracy(blobs: Data) -> None:
    run = train(prepare(small(eval_every=2), data=blobs))
    assert [row["accuracy"] is None for row in run.history] == [True, False, False]  # the last round always counts


def test_evaluating_less_often_changes_nothing_else(blobs: Data) -> None:
    shas = {train(prepare(small(eval_every=n), data=blobs)).result["model_sha256"] for n in (1, 3)}
    assert len(shas) == 1


def test_own_test_rows_are_kept_out_of_training(blobs: Data) -> None:
    ready = prepare(small(partition__local_test=0.25), data=blobs)
    for client, rows in ready.rows.items():
        assert not set(rows) & set(ready.test_rows[client])
    run = train(ready)
    assert 0 <= run.result["local_accuracy"] <= 1
    assert run.result["ledger"]["evaluate"]["sector_client"]["down_models"] > 0
    plain = train(prepare(small(), data=blobs))
    assert run.result["partition_sha256"] == plain.result["partition_sha256"]


def test_sector_accuracy_is_its_clients_by_size(blobs: Data) -> None:
    run = train(prepare(small(), data=blobs))
    tree = prepare(small(), data=blobs).tree
    row = run.history[-1]
    for sector, value in row["sector_accuracy"].items():
        team = [c for c in tree.team(sector) if tree.sizes[c]]
        mean = sum(row["client_accuracy"][c] * tree.sizes[c] for c in team) / sum(tree.sizes[c] for c in team)
        assert value == pytest.approx(mean)


def test_distillation_is_judged_in_every_round(blobs: Data) -> None:
    run = train(prepare(small(algorithm__name="fedhead+"), data=blobs))
    for row in run.history:
        assert {"teacher_accuracy", "student_before", "student_after"} <= set(row)
        assert {"s0", "s1", "server"} == set(row["distill"])
        for notes in row["distill"].values():  # the validation set guards the student
            assert notes["student_after"] >= 0


def test_everybody_lost_leaves_the_model_as_it_was(blobs: Data) -> None:
    run = train(prepare(small(faults__dropout=0.999, rounds=2), data=blobs))
    assert run.history[0]["accuracy"] == run.history[1]["accuracy"]
    assert run.ledger.bytes("server_sector", "up") == 0  # a lost sender is not charged
    assert run.ledger.bytes("server_sector", "down") > 0


def test_a_directory_of_another_run_is_refused_and_left_whole(blobs: Data, tmp_path: Path) -> None:
    train(prepare(small(), data=blobs), out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(OutputError, match="seed is 0 there and 1 now"):
        train(prepare(small(seed=1), data=blobs), out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm__name": "feddf", "data__validation": 0}, "drop_worst needs a validation set"),
        ({"algorithm__name": "fedhead", "data__validation": 0, "sector__restore": "best"}, "need a validation set"),
        (
            {"algorithm__name": "fedhead", "data__validation": 0, "sector__when": "better-teacher"},
            "on a validation set",
        ),
        ({"algorithm__name": "feddf", "data__reference_size": 0}, "needs a reference set"),
    ],
)
def test_what_could_only_fail_later_is_refused_first(changes: dict[str, Any], words: str, blobs: Data) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(small(**changes), data=blobs)


def test_defaults_follow_the_data() -> None:
    assert [batch_for(n) for n in (1, 50, 200, 250, 5000)] == [8, 16, 64, 64, 64]


def test_learning_rate_follows_the_optimiser(blobs: Data) -> None:
    assert prepare(small(), data=blobs).config.local["lr"] == 1e-3
    assert prepare(small(local__optimizer="sgd"), data=blobs).config.local["lr"] == 0.1
    assert prepare(small(local__optimizer="sgd", local__lr=0.3), data=blobs).config.local["lr"] == 0.3


def test_without_out_nothing_is_written(blobs: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(prepare(small(rounds=1), data=blobs))
    assert not list(tmp_path.iterdir())


def test_progress_counts_each_phase_of_each_round(blobs: Data) -> None:
    """Rounds overlap, and still every task is told once, with its number among those of its round and phase."""
    told: dict[tuple[int, str], list[tuple[int, int]]] = {}

    def note(event: Event) -> None:
        if event.kind == "task":
            told.setdefault((event.round, event.phase), []).append((event.done, event.total))

    train(prepare(small(algorithm__name="fedhead"), data=blobs), watch=note)
    assert {round for round, _ in told} == {1, 2, 3}
    assert {"train", "distill", "evaluate"} <= {phase for _, phase in told}
    for (_, phase), counts in told.items():
        done = [number for number, _ in counts]
        assert done == sorted(set(done))  # those that are done together count at once
        assert counts[-1][0] == counts[-1][1], phase
    assert told[1, "train"][-1] == (6, 6)


def test_clients_that_never_trained_share_one_model_and_are_saved_all_the_same(tmp_path: Path) -> None:
    made = toys.tiny("local", rounds=1, partition={"participation": 0.4})
    run = train(made, out=tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    tensors = {f"{name}.{key}": tensor for name, p in run.params.items() for key, tensor in p.named().items()}
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    assert len({p.vector.data_ptr() for p in run.params.values()}) < len(run.params) == 5


def test_a_client_that_is_left_over_from_groups_counts_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five clients with few rows each, the second to fifth train in pairs and the first one alone."""
    monkeypatch.setattr("headwater.training.opening.SMALL", 2.5e8)  # as outside of tests
    flat, tree = (
        train(prepare(Config.load(name, [], partition__clients=5, rounds=1, local__epochs=1, engine__name="inline")))
        for name in ("fedavg", "hfedavg")
    )
    assert flat.result["ledger"]["sector_client"]["up_models"] == 5
    assert flat.accuracy == pytest.approx(tree.accuracy, abs=0.02)
