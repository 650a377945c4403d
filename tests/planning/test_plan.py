"""A plan says what a run then does: its bytes to the last one, its steps and passes to the last sample."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import State
from headwater.algorithms.fedavg import FedAvg
from headwater.config import Config
from headwater.core import submission
from headwater.core.federation import CLIENTS, SERVER
from headwater.core.params import Params
from headwater.models.base import Net
from headwater.planning import plan, rehearsal, steps_of
from headwater.planning.planned_traffic import PlannedTraffic
from headwater.planning.rehearsal import Rehearsal, rehearse
from headwater.planning.resources import TimedWork, makespan, model_sizes
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.cost import Cost, training_cost
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import samples_read
from headwater.tasks.task import TaskContext, task
from headwater.tasks.teacher_outputs import held_out
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train

DATA = toys.tiny_data()
UNEQUAL = ([9, 0, 4, 1, 6, 3, 0], [0, 0, 0, 1, 0, 1, 2])  # sector 2 holds nobody with data
TO_THE_END = {"patience": None, "restore": "last"}


def of_nets(method: str, model: dict[str, Any], **algorithm: Any) -> Experiment:
    """With listed models, which `toys.tiny` chooses itself."""
    partition = {"clients": 7, "sectors": 3, "scheme": "iid"}
    config = Config(
        rounds=2,
        data={"name": "arrays"},
        partition=partition,
        model=model,
        engine={"name": "inline"},
        local={"epochs": 1},
        algorithm={"name": method, **algorithm},
    )
    return toys.arranged(prepare(config, data=DATA), *UNEQUAL)


def unequal(method: str, **sections: Any) -> Experiment:
    return toys.tiny(method, arrays=DATA, sizes=UNEQUAL, **sections)


def rehearsed(experiment: Experiment) -> Rehearsal:
    found = rehearse(experiment)
    assert found is not None
    return found


def traffic(experiment: Experiment) -> PlannedTraffic:
    found = rehearsed(experiment).traffic
    assert found is not None
    return found


class TestBytes:
    @pytest.mark.parametrize("method", chosen.methods())
    def test_are_those_of_the_ledger(self, method: str) -> None:
        """With clients that take part in some rounds only, leaders and cohorts that are drawn, and empty sectors."""
        experiment = unequal(method, partition={"participation": 0.5}, rounds=3)
        found, run = traffic(experiment), train(experiment)
        assert found.exact
        told, ledger = found.to_dict(), run.ledger.summary()
        assert {key: told[key] for key in ("server_sector", "sector_client", "setup")} == {
            key: ledger[key] for key in ("server_sector", "sector_client", "setup")
        }
        for row, each in zip(run.history, found.rounds, strict=True):
            assert row["bytes"] == {t: {"up": x["up_bytes"], "down": x["down_bytes"]} for t, x in each.items()}

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("feddf", {}),
            ("fedeed", {"cohorts": 2}),
            ("fedmd", {}),
            ("fedmd", {"through_sectors": True}),
            ("fedproto", {}),
        ],
    )
    def test_of_unequal_architectures(self, method: str, options: dict[str, Any]) -> None:
        experiment = of_nets(method, {"name": "mlp", "hidden": [4], "projection": 3, "also": ["linear"]}, **options)
        assert len({size.bytes for size in model_sizes(experiment).values()}) == 2
        found, ledger = traffic(experiment), train(experiment).ledger.summary()
        assert found.exact
        told = found.to_dict()
        for tier in ("server_sector", "sector_client", "setup"):
            assert told[tier] == ledger[tier]

    def test_of_several_matched_layers(self) -> None:
        experiment = of_nets("fedma", {"name": "mlp", "hidden": [5, 4, 3]})
        assert traffic(experiment).total["sector_client"] == train(experiment).ledger.summary()["sector_client"]

    def test_a_long_run_is_judged_by_its_first_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        experiment = unequal("fedavg", rounds=40)
        whole = traffic(experiment)
        monkeypatch.setattr(rehearsal, "JOBS", 20)
        part = traffic(experiment)
        assert (len(whole.rounds), len(part.rounds)) == (40, 4)
        assert (whole.exact, part.exact) == (True, False)
        assert whole.total == part.total  # everybody takes part, so every round is alike

    def test_what_accidents_may_change_is_not_called_exact(self) -> None:
        experiment = unequal("fedavg", faults={"dropout": 0.2})
        calm = unequal("fedavg")
        assert not traffic(experiment).exact
        assert traffic(experiment).total == traffic(calm).total


def test_sizes_of_models() -> None:
    """Linear 4 × 4 + 4, batch norm 2 · 4 with 2 · 4 statistics and a counter of 8 bytes, linear 4 × 3 + 3."""
    (size,) = model_sizes(unequal("fedavg", model=lambda: toys.normed(4, 3))).values()
    assert (size.numbers, size.bytes, size.clients) == (43, 4 * (43 + 8) + 8, 5)


class Tally(nn.Module):
    """Lets everything through and counts it: samples in passes, and batches and samples that get a gradient."""

    seen: ClassVar[dict[str, int]] = {"steps": 0, "samples": 0, "passes": 0}  # a model is also called to be looked at

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen["steps"] += 1
            self.seen["samples"] += len(x)
        else:
            self.seen["passes"] += len(x)
        return x


def counting() -> Net:
    return Net(nn.Sequential(Tally(), nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3))


FANNED = ["feddf", "fedbe", "fedeed", "fed-ensemble", "fedhead+", "frame"]  # ask many models


class TestWork:
    """Also with passes as jobs of their own. FedMA and FedAlign look inside the net: they cannot be counted there."""

    @pytest.mark.parametrize(
        ("method", "fanned"),
        [
            (name, fanned) if name in chosen.CHOSEN else chosen.further(name, fanned)
            for fanned, names in ((False, [*ALGORITHMS]), (True, FANNED))
            for name in names
            if name not in ("fedma", "fedalign")
        ],
    )
    def test_is_what_a_run_does(self, method: str, fanned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(submission, "LEAST", 0.0 if fanned else 1e30)
        stages = {"sector": TO_THE_END, "server": {**TO_THE_END, "swa_from": None} if method == "fedbe" else TO_THE_END}
        partition = {"participation": 0.7, "local_test": 0.0}
        experiment = unequal(method, model=counting, partition=partition, **stages)
        found = rehearsed(experiment)
        Tally.seen |= {"steps": 0, "samples": 0, "passes": 0}
        train(experiment)
        # a generator is no model of a client, and what it draws does not go through the extractor
        costs = [work.cost for work in found.works if work.job.title != "teach_generator"]
        assert {"steps": sum(c.steps + c.gradients for c in costs), "samples": sum(c.samples for c in costs)} == {
            name: Tally.seen[name] for name in ("steps", "samples")
        }
        assert sum(sum(cost.passes.values()) for cost in costs) == Tally.seen["passes"]

    @pytest.mark.parametrize(
        ("method", "sections"),
        [
            ("scaffold", {"algorithm": {"variates": "gradient"}}),
            ("mtgc", {"algorithm": {"z_init": "gradient", "leader": "rotating"}}),
            ("feddf", {"algorithm": {"swag": 2, "outlier_rule": True}}),
            ("fedhead", {"algorithm": {"val_source": "leader"}}),
            ("fedhead", {"sector": {**TO_THE_END, "weights": "learned"}}),
            ("fedhead+", {"sector": {**TO_THE_END, "epochs": None, "steps": 7, "restore": "best", "eval_every": 3}}),
            ("fedmd", {"algorithm": {"flavour": "fedhead", "pretrain_epochs": 2, "digest_batch": 4}}),
            ("fedproto", {"algorithm": {"collect": "during"}}),
            ("moon", {"algorithm": {"remembered": 2}, "rounds": 3}),
            ("fedeed", {"algorithm": {"kept": 2, "consolidate": "basic"}, "rounds": 3}),
            ("fedavg", {"local": {"epochs": None, "steps": 5, "batch": 4}}),
            ("fedavg", {"local": {"drop_last": True, "batch": 3}, "eval_every": 2, "rounds": 3}),
            ("local", {"partition": {"local_test": 0.3}}),
        ],
    )
    def test_of_options_too(self, method: str, sections: dict[str, Any]) -> None:
        stages = {"sector": TO_THE_END, "server": TO_THE_END}
        experiment = toys.tiny(method, arrays=DATA, model=counting, **(stages | sections))
        found = rehearsed(experiment)
        Tally.seen |= {"steps": 0, "samples": 0, "passes": 0}
        train(experiment)
        assert sum(work.cost.steps + work.cost.gradients for work in found.works) == Tally.seen["steps"]
        assert sum(work.cost.samples for work in found.works) == Tally.seen["samples"]
        assert sum(sum(work.cost.passes.values()) for work in found.works) == Tally.seen["passes"]

    def test_of_a_term_with_batches_of_its_own(self) -> None:
        """FedMD's third flavour reads a public batch with every one of its own, from the second round on."""
        experiment = unequal("fedmd", model=counting, algorithm={"flavour": "fedhkd", "align": 10})
        found = rehearsed(experiment)
        Tally.seen |= {"steps": 0, "samples": 0, "passes": 0}
        train(experiment)
        assert sum(work.cost.steps for work in found.works) == 2 * 6
        assert sum(work.cost.samples for work in found.works) == Tally.seen["samples"]

    def test_is_the_steps_that_a_run_notes(self) -> None:
        experiment = unequal("fedhead+", sector=TO_THE_END, server=TO_THE_END, rounds=3)
        found = rehearsed(experiment)
        steps = {each.at: each for each in steps_of(experiment, found)}
        noted = [row["distill"] for row in train(experiment).history]
        by_leaders = [sum(n["distill_steps"] for node, n in row.items() if node != "server") for row in noted]
        assert steps["leaders"].total == sum(by_leaders)
        assert (steps["leaders"].least, steps["leaders"].most) == (min(by_leaders), max(by_leaders))
        assert steps["server"].total == sum(row["server"]["distill_steps"] for row in noted)

    def test_by_hand(self) -> None:
        """Clients of 9, 4, 1, 6 and 3 rows in batches of 8 for one epoch; 9 validation rows."""
        experiment = unequal("fedhead", algorithm={"leader": "fixed"}, sector={"epochs": 2, "batch": 4})
        found = rehearsed(experiment)
        local, leaders = steps_of(experiment, found)
        assert (local.task, local.at, local.most, local.total) == ("local_train", "clients", 2 + 1 + 1 + 1 + 1, 12)
        # leaders are c0 with 9 rows, which 3 members teach, and c5 with 3, which 2 teach
        assert (leaders.at, leaders.most, leaders.teachers) == ("leaders", 2 * (3 + 1), 3)
        assert leaders.asked == 2 * (3 * (9 + 9) + 2 * (3 + 9))
        assert leaders.stops

    def test_before_the_first_round(self) -> None:
        """FedMD's clients learn from 18 public rows and then from their own."""
        experiment = unequal("fedmd", algorithm={"pretrain_epochs": 2})
        found = rehearsed(experiment)
        local = next(each for each in steps_of(experiment, found) if each.task == "local_train")
        assert local.before == 5 * 2 * 3 + 6
        assert local.total == local.before + 2 * 6

    def test_of_a_long_run_is_judged_by_its_first_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        experiment = unequal("hfedavg", rounds=50)
        monkeypatch.setattr(rehearsal, "JOBS", 20)
        found = rehearsed(experiment)
        (local,) = steps_of(experiment, found)
        assert (found.rounds, local.total, local.exact) == (4, 50 * 6, False)


@pytest.mark.parametrize("n", [1, 3, 8, 9, 20])
@pytest.mark.parametrize(
    "spec",
    [
        LocalSpec(epochs=3, batch=8),
        LocalSpec(steps=7, batch=4),
        LocalSpec(epochs=2, batch=3, drop_last=True),
        LocalSpec(epochs=0),
    ],
)
def test_samples_read_are_those_of_the_batches(n: int, spec: LocalSpec) -> None:
    from headwater.tasks.optimizers import batches

    assert samples_read(n, spec) == sum(len(batch) for batch in batches(n, spec, np.random.default_rng(0)))


def test_rows_held_out_by_a_leader() -> None:
    assert [held_out(n, 0.2) for n in (1, 2, 4, 10)] == [1, 1, 1, 2]
    assert held_out(10, 0.0) == 0


# -- methods and tasks of somebody else


@dataclass(frozen=True)
class Own(FedAvg):
    """A method that nobody here has heard of."""


@task("train")
def sparse(ctx: TaskContext, start: Params, spec: LocalSpec, share: float) -> dict[str, Tensor]:
    """Declares nothing: trains, and sends the largest changes, more of them from clients with more rows."""
    change = (local_train(ctx, start, spec) - start).trainable
    count = max(1, round(share * len(change))) + ctx.samples
    order = change.abs().argsort(descending=True)[:count]
    return {"values": change[order], "order": order}


@task("average")
def patched(ctx: TaskContext, model: Params, changes: Mapping[str, dict[str, Tensor]]) -> Params:
    vector = model.vector.clone()
    for change in changes.values():
        vector[change["order"]] += change["values"] / len(changes)
    return replace(model, vector=vector)


@dataclass(frozen=True)
class Sparse(FedAvg):
    """Has tasks of its own that declare nothing."""

    def round(self, fed: Any, state: State) -> State:
        start = fed.down(state.model, to=CLIENTS)
        changes = fed.up(fed.run(sparse, at=CLIENTS, start=start, spec=self.local, share=0.1), to=SERVER)
        return State(fed.run(patched, at=SERVER, model=state.model, changes=changes))


@task("train", cost=lambda ctx, start, spec: training_cost(start, ctx.samples, spec), returns="start")
def update(ctx: TaskContext, start: Params, spec: LocalSpec) -> Params:
    raise AssertionError("a task that declares what it returns is not run")


@dataclass(frozen=True)
class Declared(FedAvg):
    """Has a task of its own that declares its cost and its result."""

    def round(self, fed: Any, state: State) -> State:
        trained = fed.run(update, at=CLIENTS, start=fed.down(state.model, to=CLIENTS), spec=self.local)
        return State(fed.run(average, at=SERVER, models=fed.up(trained, to=SERVER)))


@task("train")
def picky(ctx: TaskContext, start: Params) -> Params:
    raise ValueError("not with such a model")


@dataclass(frozen=True)
class Picky(FedAvg):
    """Has a task that cannot be tried."""

    def round(self, fed: Any, state: State) -> State:
        fed.up(fed.run(picky, at=CLIENTS, start=fed.down(state.model, to=CLIENTS)), to=SERVER)
        return super().round(fed, state)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Curious(FedAvg):
    """Trains on only if it likes what came out."""

    def round(self, fed: Any, state: State) -> State:
        new = super().round(fed, state)
        return new if float(fed.read(new.model).vector.sum()) > 0 else state


@dataclass(frozen=True)
class Counter(FedAvg):
    """Reads something at the server that needs no training."""

    def init(self, fed: Any, model: Any) -> State:
        assert fed.read(model).vector.numel() > 0
        return State(model)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    made = ModuleType("somebodys")
    for kind in (Own, Sparse, Declared, Picky, Curious, Counter):
        setattr(made, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "somebodys", made)
    return "somebodys"


class TestAMethodOfOnesOwn:
    @pytest.mark.parametrize("method", ["Own", "Sparse"])
    def test_has_the_bytes_of_the_ledger(self, module: str, method: str) -> None:
        experiment = unequal(f"{module}:{method}", partition={"participation": 0.6}, rounds=3)
        found, run = traffic(experiment), train(experiment)
        assert found.exact
        ledger = run.ledger.summary()
        assert found.total == {tier: ledger[tier] for tier in found.total}
        assert found.setup == ledger["setup"]

    def test_has_the_steps_of_tasks_that_declare_them(self, module: str) -> None:
        for name, title in (("Own", "local_train"), ("Declared", "update")):
            found = plan(unequal(f"{module}:{name}"))
            assert found.steps is not None
            assert [(each.task, each.total) for each in found.steps] == [(title, 12)]
            assert found.uncounted == ()

    def test_has_no_steps_that_nobody_declared(self, module: str) -> None:
        found = plan(unequal(f"{module}:Sparse"))
        assert found.steps == ()
        assert found.uncounted == ("sparse",)

    def test_is_tried_at_so_many_homes_and_then_judged_by_these(
        self, module: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headwater.planning.trials.HOMES", 2)
        assert not traffic(unequal(f"{module}:Sparse")).exact

    def test_whose_task_cannot_be_tried_has_no_known_bytes(self, module: str) -> None:
        found = plan(unequal(f"{module}:Picky"))
        assert (found.traffic, found.unknown) == (None, ("picky",))
        assert found.to_dict()["ledger"] is None
        assert found.steps is not None

    def test_may_read_what_is_there_before_training(self, module: str) -> None:
        assert rehearse(unequal(f"{module}:Counter")) is not None

    def test_that_depends_on_training_is_not_foreseen(self, module: str) -> None:
        found = plan(unequal(f"{module}:Curious"))
        assert (found.steps, found.traffic) == (None, None)
        assert found.seconds == {}


def test_every_task_declares_what_it_returns() -> None:
    """So that no task of the library is tried, which takes time."""
    import pkgutil

    import headwater.algorithms
    import headwater.tasks

    parts = (headwater.algorithms, headwater.tasks)
    for info in (found for part in parts for found in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")):
        for name, thing in vars(__import__(info.name, fromlist=["_"])).items():
            if hasattr(thing, "streaming"):
                assert thing.returns is not None, name
                assert thing.phase in ("average", "evaluate") or isinstance(thing.cost, Cost) or callable(thing.cost)


class TestPlan:
    def test_has_one_shape(self) -> None:
        told = plan(unequal("fedhead+", rounds=2)).to_dict()
        assert told["clients"] == {"registered": 7, "holding": 5, "taking_part": 5, "sectors": 3}
        assert told["engine"] == {
            "name": "inline",
            "why": "as configured",
            "workers": 1,
            "threads": 1,
            "server_threads": 1,
        }
        assert told["models"] == [{"name": "mlp", "numbers": 35, "bytes": 140, "clients": 5, "frozen": 0}]
        assert set(told["ledger"]) == {"server_sector", "sector_client", "setup", "a_round", "exact"}
        assert told["memory"]["total"] == sum(n for name, n in told["memory"].items() if name != "total")
        phases = [told["seconds"][phase] for phase in ("train", "distill", "evaluate")]
        assert min(phases) > 0
        assert told["seconds"]["total"] >= sum(phases)
        assert told["measured"]["step"]["mlp"] > 0

    def test_stacks_as_the_run_does(self) -> None:
        experiment = unequal("fedavg")
        assert plan(experiment).stacking == train(experiment).result["stacking"]

    def test_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither chance, threads and files, nor what the same experiment then gives."""
        monkeypatch.chdir(tmp_path)
        untouched, experiment = unequal("moon"), unequal("moon")
        rows = experiment.split.train.x.clone()
        torch.manual_seed(7)
        before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()
        plan(experiment)
        after = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        assert list(tmp_path.iterdir()) == []
        assert torch.equal(rows, experiment.split.train.x)
        assert train(experiment).result["model_sha256"] == train(untouched).result["model_sha256"]

    def test_more_models_at_once_take_more_memory(self) -> None:
        """An average is made of one model after the other; teachers are needed all at the same time."""

        def held(method: str, clients: int) -> int:
            return plan(toys.tiny(method, partition={"clients": clients, "scheme": "iid"})).memory["models"]

        assert held("fedavg", 20) == held("fedavg", 5)
        assert held("feddf", 20) > 2 * held("fedavg", 20)

    def test_cautions_are_those_of_the_run(self) -> None:
        told = plan(unequal("scaffold", model=lambda: toys.normed(4, 3))).cautions
        assert any("batch norm" in sentence for sentence in told)


class TestMakespan:
    def test_one_worker_does_one_after_the_other(self) -> None:
        assert makespan([TimedWork(3), TimedWork(2, (0,)), TimedWork(1)], workers=1) == 6

    def test_nothing_begins_before_what_it_needs(self) -> None:
        """Two of 2 s side by side, then one of 1 s that needs both; another of 4 s fills the gap."""
        units = [TimedWork(2), TimedWork(2), TimedWork(1, (0, 1)), TimedWork(4)]
        assert makespan(units, workers=2) == 6
        assert makespan(units, workers=3) == 4

    def test_rounds_wait_for_each_other_if_told_so(self) -> None:
        units = [TimedWork(1, (), 1), TimedWork(3, (), 1), TimedWork(2, (0,), 2)]
        assert makespan(units, workers=2) == 3
        assert makespan(units, workers=2, overlap=False) == 5

    def test_is_never_shorter_than_the_longest_chain_or_the_work_shared(self) -> None:
        rng = np.random.default_rng(0)
        units: list[TimedWork] = []
        for at in range(60):
            after = tuple(sorted({int(i) for i in rng.integers(0, at, size=2)})) if at else ()
            units.append(TimedWork(float(rng.random()), after))
        ends: list[float] = []
        for unit in units:
            ends.append(unit.seconds + max((ends[at] for at in unit.after), default=0.0))
        whole = sum(unit.seconds for unit in units)
        for workers in (2, 3, 60):
            found = makespan(units, workers)
            assert max(max(ends), whole / workers) - 1e-9 <= found <= whole
        assert makespan(units, 60) == pytest.approx(max(ends))
