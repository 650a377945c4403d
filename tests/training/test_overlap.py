"""A round begins while the one before is still being worked on. That changes when things happen and nothing else."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import chosen
import toys
from headwater.algorithms.base import Method
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import Params
from headwater.engines.base import Engine
from headwater.engines.inline import Inline
from headwater.engines.pool import Pool
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.average import average, initial
from headwater.tasks.distill import distill
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train
from headwater.training.result import Run

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test by its name


@task("train")
def train_and_tell(site: TaskContext, start: Params, spec: LocalSpec, mark: str) -> Params | None:
    """Leaves a file as soon as it has begun."""
    Path(mark).touch()
    return local_train(site, start, spec)


@task("distill")
def distill_and_wait(
    site: TaskContext, start: Params, teachers: Mapping[str, Params], spec: DistillSpec, mark: str
) -> Params | None:
    """Goes on until there is such a file, but not for ever."""
    end = time.monotonic() + 300
    while not Path(mark).exists() and time.monotonic() < end:
        time.sleep(0.01)
    return distill(site, start, teachers, spec)


@dataclass(frozen=True)
class Pair:
    """Two models; the first is taught by both."""

    models: dict[int, Located]

    @property
    def model(self) -> Located:
        return self.models[0]


@dataclass(frozen=True)
class Cohorts(Method):
    """As in FedEED: each half of the clients trains a model of its own, and only the first is distilled. With a
    directory for `marks` the first distillation goes on until the second round's training has begun."""

    local: LocalSpec
    server: DistillSpec
    asks: bool = False
    marks: str = ""

    def init(self, fed: Federation, model: Located) -> Pair:
        return Pair({0: model, 1: fed.run(initial, at=SERVER, arch=fed.tree.archs[0], number=1)})

    def round(self, fed: Federation, state: Pair) -> Pair:
        merged = {}
        for k, old in state.models.items():
            half = fed.among(fed.clients[k::2])
            begin: Any = train_and_tell if self.marks else local_train
            told = {"mark": f"{self.marks}/{fed.round}"} if self.marks else {}
            local = half.run(begin, at=CLIENTS, start=half.down(old, to=CLIENTS), spec=self.local, **told)
            merged[k] = half.run(average, at=SERVER, models=half.up(local, to=SERVER))
        if self.asks:
            assert fed.missing(merged[1]) == ()
        teachers = {f"g{k}": model for k, model in merged.items()}
        teach: Any = distill_and_wait if self.marks and fed.round == 1 else distill
        told = {"mark": f"{self.marks}/2"} if teach is distill_and_wait else {}
        taught = fed.run(teach, at=SERVER, start=merged[0], teachers=teachers, spec=self.server, **told)
        return Pair(merged | {0: taught})


@pytest.fixture
def pool(two_workers: Pool) -> Pool:
    return two_workers


@pytest.fixture
def inline() -> Iterator[Inline]:
    made = Inline()
    yield made
    made.close()


def experiment(method: str, **sections: Any) -> Experiment:
    if method != "cohorts":
        return toys.tiny(method, **({"rounds": 3} | sections))
    made = toys.tiny("fedavg", **({"rounds": 3} | sections))
    return replace(made, method=Cohorts(LocalSpec(epochs=1, batch=8), DistillSpec(steps=150, batch=32)))


def with_overlap(made: Experiment, overlap: bool) -> Experiment:
    return replace(made, config=made.config.merged({"engine": {"overlap": overlap}}))


def all_but_times(run: Run) -> dict[str, Any]:
    result, rows = dict(run.result), [dict(row) for row in run.history]
    for found in (result, *rows):
        del found["seconds"]
    return {"result": result, "rows": rows, "ledger": run.ledger.state()}


LOSSY = {"faults": {"dropout": 0.3}, "partition": {"participation": 0.6}}


@pytest.mark.parametrize("sections", [{}, LOSSY], ids=["whole", "lossy"])
@pytest.mark.parametrize(
    "method", chosen.first(["fedavg", "fedhead", "hfedavg", "local", "cohorts"], ["fedhead", "local"])
)
def test_overlap_and_engine_change_nothing_but_times(
    method: str, sections: dict[str, Any], pool: Pool, inline: Inline
) -> None:
    made = experiment(method, **sections)
    expected = all_but_times(train(with_overlap(made, False), engine=inline))
    assert {row["round"] for row in expected["rows"]} == {1, 2, 3}
    for engine, overlap in ((inline, True), (pool, False), (pool, True)):
        assert all_but_times(train(with_overlap(made, overlap), engine=engine)) == expected, (engine, overlap)


def test_training_goes_on_beside_the_distillation_before(pool: Pool, tmp_path: Path) -> None:
    """The cohort that is not distilled need not wait for it; without overlap a round waits for all of the last."""

    def early(overlap: bool) -> list[str]:
        made = experiment("cohorts")
        method = replace(made.method, marks=str(tmp_path) if overlap else "")
        run = train(with_overlap(replace(made, method=method), overlap), engine=pool)
        taught = next(s["end"] for s in run.timeline if (s["round"], s["phase"]) == (1, "distill"))
        return [s["node"] for s in run.timeline if (s["round"], s["phase"]) == (2, "train") and s["start"] < taught]

    assert early(False) == []
    clients = experiment("cohorts").tree.clients
    beside = early(True)
    assert beside
    assert set(beside) <= set(clients[1::2])


@pytest.mark.parametrize("kind", chosen.first(["inline", "pool"], ["pool"]))
def test_a_method_may_still_wait_for_what_it_needs(kind: str, pool: Pool, inline: Inline) -> None:
    made = experiment("cohorts")
    asking = replace(made, method=replace(made.method, asks=True))
    engine: Engine = pool if kind == "pool" else inline
    assert all_but_times(train(asking, engine=engine)) == all_but_times(train(made, engine=inline))


def test_inline_closes_a_round_with_its_own_jobs_only(inline: Inline) -> None:
    """When a round's row is told, no task of a later round has been begun."""
    seen: dict[int, set[int]] = {}
    finished: set[int] = set()

    def note(event: Event) -> None:
        if event.kind == "task":
            finished.add(event.round)
        if event.kind == "round":
            seen[event.round] = set(finished)

    train(experiment("fedhead"), engine=inline, watch=note)
    assert seen == {1: {1}, 2: {1, 2}, 3: {1, 2, 3}}


@pytest.mark.parametrize("kind", chosen.first(["inline", "pool"], ["pool"]))
def test_stopped_after_any_round_and_carried_on(kind: str, pool: Pool, inline: Inline, tmp_path: Path) -> None:
    """A checkpoint belongs to the round that was closed, though the next was under way already."""
    engine: Engine = pool if kind == "pool" else inline
    made = experiment("cohorts", rounds=4)
    whole = all_but_times(train(made, engine=inline))
    rows = []

    def stop_at(number: int) -> Any:
        def stop(event: Event) -> None:
            if event.kind == "round" and event.round == number:
                raise KeyboardInterrupt

        return stop

    for number in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            train(made, engine=engine, out=tmp_path, watch=stop_at(number))
        rows.append(len((tmp_path / "rounds.jsonl").read_text().splitlines()))
        heads = sorted((tmp_path / "checkpoints").glob("round-*.json"))
        assert heads[-1].name == f"round-{number:06d}.json"
    assert rows == [1, 2, 3]
    run = train(made, engine=engine, out=tmp_path)
    assert all_but_times(run) == whole
    spans = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert spans == run.timeline


def test_every_task_is_on_the_time_line_once(pool: Pool, tmp_path: Path) -> None:
    run = train(experiment("fedhead"), engine=pool, out=tmp_path)
    by_round = [[s for s in run.timeline if s["round"] == number] for number in range(4)]
    assert {s["task"] for s in by_round[0]} == {"initial", "validation"}
    for spans in by_round[1:]:
        assert sum(s.get("nodes", 1) for s in spans if s["phase"] == "train") == 5
        assert sum(s["phase"] == "distill" for s in spans) == 2
        assert {s["worker"] for s in spans} <= {0, 1}
    for span in run.timeline:
        assert set(span) - {"nodes"} == {"round", "task", "phase", "node", "start", "end", "worker"}
        assert span.get("nodes", 2) > 1
        assert 0 <= span["start"] <= span["end"]


def test_a_run_may_be_carried_on_with_the_other_setting(inline: Inline, tmp_path: Path) -> None:
    made = experiment("fedavg", faults={"availability": 0.9, "period": 0.01})

    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(with_overlap(made, True), engine=inline, out=tmp_path, watch=stop)
    always = replace(made, config=made.config.merged({"faults": {"availability": 1.0, "period": 10.0}}))
    run = train(with_overlap(always, False), engine=inline, out=tmp_path)
    assert all_but_times(run) == all_but_times(train(made, engine=inline))
