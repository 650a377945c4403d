"""When a checkpoint is written: as often as that costs little, and always when a run ends, however it does."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from headwater.core.ledger import Ledger
from headwater.engines.inline import Inline
from headwater.engines.pool import Pool
from headwater.errors import TaskError
from headwater.training import checkpoint
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train
from headwater.training.result import Run

ROUNDS = 6
Watch = Callable[[Event], None]


@pytest.fixture(scope="module")
def made() -> Experiment:
    return toys.tiny("scaffold", rounds=ROUNDS, partition={"participation": 0.6})


@pytest.fixture(scope="module")
def whole(made: Experiment) -> dict[str, Any]:
    return all_but_times(train(made))


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if writing took so long that no second checkpoint is due before the run is over."""
    monkeypatch.setattr(checkpoint, "PAUSE", 1e12)


def all_but_times(run: Run) -> dict[str, Any]:
    result, rows = dict(run.result), [dict(row) for row in run.history]
    for found in (result, *rows):
        del found["seconds"]
    return {"result": result, "rows": rows, "ledger": run.ledger.state()}


def written(out: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("round-*.json"))


def noting(out: Path, then: Watch = lambda event: None) -> tuple[dict[int, list[int]], Watch]:
    """The checkpoints that were there when each round was told."""
    seen: dict[int, list[int]] = {}

    def note(event: Event) -> None:
        if event.kind == "round":
            seen[event.round] = written(out)
        then(event)

    return seen, note


def at_round(number: int, act: Callable[[], None]) -> Watch:
    def note(event: Event) -> None:
        if event.kind == "round" and event.round == number:
            act()

    return note


def raise_(error: BaseException) -> None:
    raise error


# -- when


def test_one_a_round_where_they_cost_nothing(
    made: Experiment, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PAUSE", 0)
    seen, note = noting(tmp_path)
    assert all_but_times(train(made, out=tmp_path, watch=note)) == whole
    assert seen == {1: [1]} | {number: [number - 1, number] for number in range(2, ROUNDS + 1)}
    heads = [json.loads(path.read_text()) for path in (tmp_path / "checkpoints").glob("round-*.json")]
    named = {file for head in heads for file in head["files"].values()}
    assert {path.name for path in (tmp_path / "checkpoints/values").iterdir()} == named


@pytest.mark.usefixtures("rarely")
def test_the_first_and_the_last_round_where_they_cost_much(
    made: Experiment, whole: dict[str, Any], tmp_path: Path
) -> None:
    seen, note = noting(tmp_path)
    assert all_but_times(train(made, out=tmp_path, watch=note)) == whole
    assert seen == {number: [1] for number in range(1, ROUNDS)} | {ROUNDS: [1, ROUNDS]}


def test_the_pause_is_in_proportion_to_what_writing_took(made: Experiment, tmp_path: Path) -> None:
    """On a clock on which a round takes 10 s and writing 1 s: the next is due 33 s later, so after the fifth."""
    now = [0.0]

    def write_for_a_second() -> None:
        now[0] += 1.0

    engine = Inline()
    engine.start(made.context())
    keeper = checkpoint.Keeper(tmp_path / "checkpoints", engine, write_for_a_second, clock=lambda: now[0])
    seen = {}
    for number in range(1, 11):
        now[0] += 10.0
        (tmp_path / "checkpoints/values").mkdir(parents=True, exist_ok=True)
        keeper.keep(number, ("a state", number), Ledger(), now[0])
        seen[number] = written(tmp_path)
    assert [seen[number] for number in range(1, 11)] == 4 * [[1]] + 4 * [[1, 5]] + 2 * [[5, 9]]
    assert keeper.state == ("a state", 10)
    keeper.write()
    assert written(tmp_path) == [9, 10]
    assert keeper.state is None
    engine.close()


# -- a run that is broken off


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), TaskError("something broke")], ids=["ctrl-c", "error"])
def test_no_finished_round_is_lost(
    number: int, error: BaseException, made: Experiment, whole: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        train(made, out=tmp_path, watch=at_round(number, lambda: raise_(error)))
    assert written(tmp_path)[-1] == number
    assert all_but_times(train(made, out=tmp_path)) == whole


@pytest.mark.usefixtures("rarely")
def test_broken_off_in_the_middle_of_a_round(made: Experiment, whole: dict[str, Any], tmp_path: Path) -> None:
    """The round before is saved: what it left is kept until the next one is over."""

    def stop(event: Event) -> None:
        if event.kind == "task" and event.round == 4 and event.phase == "train" and event.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(made, out=tmp_path, watch=stop)
    assert written(tmp_path) == [1, 3]
    assert all_but_times(train(made, out=tmp_path)) == whole


@pytest.mark.usefixtures("rarely")
def test_asked_to_end(made: Experiment, whole: dict[str, Any], tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        train(made, out=tmp_path, watch=at_round(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert signal.getsignal(signal.SIGTERM) is before
    assert written(tmp_path) == [1, 3]
    assert all_but_times(train(made, out=tmp_path)) == whole


def test_whoever_heeds_requests_to_end_goes_on_doing_so(made: Experiment, tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        train(made, out=tmp_path, watch=at_round(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_run_in_a_thread_leaves_signals_alone(made: Experiment, whole: dict[str, Any], tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(all_but_times(train(made, out=tmp_path))))
    thread.start()
    thread.join()
    assert found == [whole]


@pytest.mark.thorough
@pytest.mark.usefixtures("rarely")
def test_processes_save_what_is_there_after_a_task_has_failed(
    made: Experiment, whole: dict[str, Any], tmp_path: Path
) -> None:
    """The values of the last round outlive the error of a later one."""
    pool = Pool(2)

    def fail() -> None:
        with pool._changed:
            pool._fail(TaskError("something broke"))
            pool._changed.notify_all()

    try:
        with pytest.raises(TaskError, match="something broke"):
            train(made, out=tmp_path, engine=pool, watch=at_round(3, fail))
        assert written(tmp_path) == [1, 3]
        assert all_but_times(train(made, out=tmp_path, engine=pool)) == whole
    finally:
        pool.close()


def test_a_run_that_version_0_1_began_can_be_resumed(made: Experiment, whole: dict[str, Any], tmp_path: Path) -> None:
    """Its checkpoints name the class of their content by the module where it was then, and have no hash."""
    with pytest.raises(KeyboardInterrupt):
        train(made, out=tmp_path, watch=at_round(3, lambda: raise_(KeyboardInterrupt())))
    for path in (tmp_path / "checkpoints").glob("round-*.json"):
        text = path.read_text(encoding="utf-8")
        assert "headwater.training.loop:Saved" in text
        row = json.loads(text.replace("headwater.training.loop:Saved", "headwater.training:Held"))
        del row["sha256"]
        path.write_text(json.dumps(row | {"version": 1}), encoding="utf-8")
    assert all_but_times(train(made, out=tmp_path)) == whole
