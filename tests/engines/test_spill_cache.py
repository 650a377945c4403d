"""Values beyond a budget of memory are on disk: with the same bits, and gone when nobody needs them any more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.config import Config
from headwater.core.params import Layout, Params
from headwater.engines.inline import Inline
from headwater.engines.jobs import Job, Ref
from headwater.engines.pool import Pool
from headwater.engines.workers.spill_cache import MEGABYTE, SMALL, Budget, SpillCache, budget_of
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train
from headwater.training.result import Run

LITTLE = 0.05  # MB: less than two models of the run below


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files go; it is empty before and after every test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def numbers(first: float, count: int = 2000) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.float32)


# -- the cache


@pytest.fixture
def cache() -> Iterator[SpillCache]:
    made = SpillCache(3 * 8000)  # three of `numbers`
    yield made
    made.close()


def test_the_least_recently_used_goes_to_disk(cache: SpillCache, disk: Path) -> None:
    for at in range(3):
        cache[f"v{at}"] = numbers(at)
    assert (cache.bytes_in_memory, cache.files, list(disk.iterdir())) == (24000, [], [])
    assert torch.equal(cache["v0"], numbers(0))  # used, so that it is v1's turn
    cache["v3"] = numbers(3)
    assert cache.bytes_in_memory == 24000
    assert len(cache.files) == 1
    assert cache.files[0].is_relative_to(disk)
    cache.discard("v1")
    assert cache.files == []
    assert cache.bytes_in_memory == 24000
    assert "v1" not in cache
    assert sorted(cache) == ["v0", "v2", "v3"]
    cache.discard("v0")
    assert cache.bytes_in_memory == 16000


def test_what_comes_back_is_what_went_away(disk: Path) -> None:
    cache = SpillCache(0)
    layout = Layout("net", (("w", (5, 400)),), (), (("n", (2,)),))
    model = Params(torch.randn(2000), torch.tensor([3, 4]), layout, 7.0)
    values = {"model": model, "tree": {"a": (numbers(1), [None, "x"]), ("k", 2): torch.ones(3000, dtype=torch.bool)}}
    for name, value in values.items():
        cache[name] = value
    assert len(cache.files) == 2
    assert cache.bytes_in_memory == 0
    found = cache["model"]
    assert torch.equal(found.vector, model.vector)
    assert torch.equal(found.counters, model.counters)
    assert (found.layout, found.weight) == (layout, 7.0)
    tree = cache["tree"]
    assert torch.equal(tree["a"][0], numbers(1))
    assert tree["a"][1] == [None, "x"]
    assert tree["k", 2].dtype == torch.bool
    found.vector.zero_()  # whoever spoils what he was given spoils it for himself only
    assert torch.equal(cache["model"].vector, model.vector)
    cache.close()
    cache.close()
    assert list(disk.iterdir()) == []
    assert len(cache) == 0


def test_a_name_that_is_given_again_holds_the_new_value(disk: Path) -> None:
    cache = SpillCache(10_000)
    cache["a"] = numbers(0)
    cache["b"] = numbers(1)
    assert len(cache.files) == 1
    cache["a"] = numbers(5)
    assert torch.equal(cache["a"], numbers(5))
    assert torch.equal(cache["b"], numbers(1))
    assert cache.bytes_in_memory == 8000
    assert len(cache.files) == 1
    cache["b"] = 2.5
    assert cache["b"] == 2.5
    assert cache.files == []
    cache.close()


def test_what_is_small_stays() -> None:
    cache = SpillCache(0)
    cache["a"], cache["b"] = 1.0, torch.zeros(SMALL // 4 - 1)
    assert cache.files == []
    cache["c"] = torch.zeros(SMALL // 4)
    assert len(cache.files) == 1
    cache.close()


def test_a_value_that_goes_on_waiting_lets_go_of_what_it_was_part_of() -> None:
    cache = SpillCache(10 * MEGABYTE)
    rows = torch.randn(50, 2000)
    model = Params(rows[7, :1990], torch.zeros(0, dtype=torch.int64), Layout("net", (("w", (1990,)),), (), ()))
    cache["row"], cache["whole"] = model, rows
    for name in ("row", "whole"):
        cache.detach(name)
    assert torch.equal(cache["row"].vector, rows[7, :1990])
    assert cache["row"].vector.untyped_storage().nbytes() == 1990 * 4
    assert cache["whole"] is rows
    assert cache.bytes_in_memory == 1990 * 4 + rows.nbytes
    cache.close()


def test_without_a_budget_it_is_a_part_of_the_memory() -> None:
    assert budget_of(2.5) == 2.5 * MEGABYTE
    with open("/proc/meminfo", encoding="ascii") as told:
        kilobytes = int(told.readline().split()[1])
    assert 0 < budget_of(0) <= kilobytes * 1024 // 4 + MEGABYTE


def test_a_budget_is_never_promised_twice() -> None:
    budget = Budget(1000, used=100)
    assert budget.reserve("first", 3) == 300
    assert budget.reserve("second", 2) == 300
    assert budget.reserve("third", 1) == 300
    assert budget.free == 0
    budget.release("second")
    budget.used += 250
    assert budget.free == 50
    assert budget.reserve("second", 1) == 50
    budget.used = 2000
    budget.release("first")
    assert budget.free == 0


# -- runs


@task("train")
def many(ctx: TaskContext, count: int) -> torch.Tensor:
    return torch.full((count,), float(ctx.rng.random()))


@pytest.fixture(scope="module")
def scaffold() -> Experiment:
    tables: dict[str, Any] = {"algorithm": {"name": "scaffold"}, "data": {"fraction": 0.3}, "local": {"epochs": 1}}
    partition = {"clients": 20, "participation": 0.5}
    return prepare(Config(rounds=4, partition=partition, model={"name": "mlp", "hidden": [100]}, **tables))


def all_but_times(run: Run) -> dict[str, Any]:
    result, rows = dict(run.result), [dict(row) for row in run.history]
    for found in (result, *rows):
        del found["seconds"]
    return {"result": result, "rows": rows, "ledger": run.ledger.state()}


@pytest.fixture(scope="module")
def expected(scaffold: Experiment) -> dict[str, Any]:
    engine = Inline()
    seen: list[int] = []
    found = all_but_times(train(scaffold, engine=engine, watch=lambda event: seen.append(len(engine._values.files))))
    assert set(seen) == {0}
    engine.close()
    return found


def stop_after(round: int, error: type[BaseException], then: Callable[[], None]) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == round:
            then()
            raise error

    return stop


def with_little(made: Experiment, name: str) -> Experiment:
    return replace(made, config=made.config.merged({"engine": {"name": name, "workers": 2, "memory": LITTLE}}))


def test_a_run_with_almost_no_memory_gives_the_same_bits(
    scaffold: Experiment, expected: dict[str, Any], disk: Path
) -> None:
    engine = Inline(memory=LITTLE)
    held: list[int] = []
    files: list[int] = []

    def look(event: Event) -> None:
        held.append(engine._values.bytes_in_memory)
        files.append(len(engine._values.files))
        assert len(list(disk.glob("*/value-*"))) == files[-1]

    assert all_but_times(train(scaffold, engine=engine, watch=look)) == expected
    assert max(held) <= budget_of(LITTLE)
    assert max(files) >= 10  # variates of those who took part, at least
    engine.close()
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_by_a_run_that_is_broken_off(
    error: type[BaseException], scaffold: Experiment, expected: dict[str, Any], disk: Path, tmp_path: Path
) -> None:
    seen: list[int] = []
    made = with_little(scaffold, "inline")
    stop = stop_after(2, error, lambda: seen.append(len(list(disk.glob("*/value-*")))))
    with pytest.raises(error):
        train(made, watch=stop, out=tmp_path / "run")
    assert seen[0] > 0
    assert list(disk.iterdir()) == []
    again = train(made, out=tmp_path / "run", watch=lambda event: seen.append(len(list(disk.glob("*/value-*")))))
    assert all_but_times(again) == expected
    assert max(seen[1:]) > 0
    assert list(disk.iterdir()) == []


@pytest.mark.thorough
def test_worker_processes_with_almost_no_memory(
    scaffold: Experiment, expected: dict[str, Any], disk: Path, tmp_path: Path
) -> None:
    """The same bits, though a worker is killed and the run is broken off; files are where they may be, then gone."""
    pool = Pool(2, memory=LITTLE)
    killed: list[int] = []
    broken_off: list[bool] = []
    held: list[int] = []
    away: list[int] = []

    def look(event: Event) -> None:
        assert pool._files is not None
        *memory, last = pool._files.folders
        away.append(len(list(last.glob("value-*"))))
        total = 0
        for path in [path for folder in memory for path in folder.glob("value-*")]:
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        held.append(total)
        if event.round == 2 and not killed:
            killed.append(pool._workers[0].process.pid)
            pool._workers[0].process.kill()
        if event.kind == "round" and event.round == 3 and not broken_off:
            broken_off.append(True)
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            train(scaffold, engine=pool, watch=look, out=tmp_path / "run")
        assert all_but_times(train(scaffold, engine=pool, watch=look, out=tmp_path / "run")) == expected
        assert killed
        assert pool._files is not None
        assert all(folder.is_relative_to(disk) for folder in pool._files.folders[1:])
    finally:
        pool.close()
    assert max(held) <= budget_of(LITTLE)
    assert max(away) >= 10
    assert list(disk.iterdir()) == []


def test_what_is_let_go_makes_room_again(scaffold: Experiment) -> None:
    """Of four values of 40 KB two have room in 100 KB of shared memory, time after time."""
    pool = Pool(1, memory=0.1)
    try:
        pool.start(scaffold.context())
        assert pool._files is not None
        shared = len(pool._files.folders) > 1
        for turn in range(3):
            for at in range(4):
                key = (1, "many", at, "server")
                pool.submit(Job(f"{turn}.{at}", many, "server", "server", {"count": 10_000}, key))
                assert float(pool.read(Ref(f"{turn}.{at}", "server"))[-1]) < 1
            inside = [pool._names[f"{turn}.{at}"].slot.stored.bytes > 0 for at in range(4)]
            assert inside == [shared, shared, False, False]
            pool.drop([f"{turn}.{at}" for at in range(4)])
            assert pool._budget.used == 0
    finally:
        pool.close()
