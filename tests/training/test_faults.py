"""Updates that are not numbers, clients that are not always there, and what a lost value leaves behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import toys
from headwater.algorithms.base import Method, State, as_method
from headwater.cli.terminal import RunProgress
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import Layout, ModelRows, Params
from headwater.data.base import Examples
from headwater.engines import availability
from headwater.engines.base import Engine
from headwater.engines.inline import Inline
from headwater.engines.jobs import LOST, Job
from headwater.engines.nan_check import NonFiniteResult, all_finite, is_finite
from headwater.engines.pool import Pool
from headwater.errors import Diverged, UserError
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train

WILD = {"local": {"optimizer": "sgd", "lr": 1e30, "epochs": 3}}


@pytest.fixture(scope="module")
def engines(two_workers: Pool) -> Iterator[dict[str, Engine]]:
    inline = Inline()
    yield {"inline": inline, "pool": two_workers}
    inline.close()


def all_but_times(run: Any) -> dict[str, Any]:
    result, rows = dict(run.result), [dict(row) for row in run.history]
    for found in (result, *rows):
        del found["seconds"]
    return {"result": result, "rows": rows}


def with_one_bad_client(method: str, **sections: Any) -> Experiment:
    """c0 has a gap in its data, so that its training cannot give numbers."""
    sections = {"local": {"optimizer": "sgd", "lr": 0.1, "epochs": 1}} | sections
    made = toys.tiny(method, sizes=((12, 10, 8, 14), (0, 0, 1, 1)), **sections)
    x = made.split.train.x.clone()
    x[made.rows["c0"][0]] = math.nan
    return replace(made, split=replace(made.split, train=Examples(x, made.split.train.y)))


# -- what counts as numbers


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (torch.ones(3), True),
        (torch.tensor([1.0, math.nan]), False),
        (torch.tensor([math.inf, -math.inf]), False),
        (torch.full((4,), 3e38), True),  # the sum overflows, its parts do not
        (torch.tensor([1, 2]), True),
        ({"a": (torch.ones(1), [torch.tensor([math.inf])])}, False),
        (np.array([math.nan]), False),
        (np.array(["text"]), True),
        ((1.0, "text", None), True),
        (toys.params(toys.Slopes((0.0, math.nan))), False),
        (Examples(torch.tensor([[math.inf]]), torch.tensor([0])), False),
    ],
)
def test_is_finite(value: Any, good: bool) -> None:
    assert is_finite(value) is good


# -- leaving bad updates out


@pytest.mark.parametrize("engine", ["inline", pytest.param("pool", marks=pytest.mark.thorough)])
def test_a_bad_update_is_left_out_and_named(engine: str, engines: dict[str, Engine], tmp_path: Path) -> None:
    """One round is the round of all the others: its model, its weights and its traffic."""
    made = with_one_bad_client("fedavg", rounds=1)
    events: list[Event] = []
    run = train(made, engine=engines[engine], watch=events.append, out=tmp_path)
    with toys.lab_of(made) as lab:
        others = lab.round(1, clients=tuple(c for c in made.tree.clients if c != "c0"))
        assert torch.equal(run.params[""].vector, others.vector)
        assert run.params[""].weight == others.model.weight == 10 + 8 + 14
    assert run.history[0]["bad_updates"] == [{"node": "c0", "task": "local_train"}]
    assert math.isfinite(run.history[0]["train_loss"])
    assert run.ledger.models["train", "server_sector", "up"] == 3
    warnings = [event.text for event in events if event.kind == "warning"]
    assert warnings == [
        "fedavg: local_train at c0 in round 1 gave numbers that are not finite, most likely because of local.lr = 0.1; "
        "that update was left out: lower local.lr or set local.clip"
    ]


@pytest.mark.parametrize("engine", ["inline", pytest.param("pool", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("method", ["fedavg", "hfedavg", "fedhead", "local"])
def test_if_every_update_is_bad_the_model_stays(method: str, engine: str, engines: dict[str, Engine]) -> None:
    made = toys.tiny(method, **WILD)
    events: list[Event] = []
    run = train(made, engine=engines[engine], watch=events.append)
    start = made.context().initial(made.model.name, 0)
    assert all(torch.equal(found.vector, start.vector) for found in run.params.values())
    for row in run.history:
        assert {bad["node"] for bad in row["bad_updates"]} == set(made.tree.clients)
    warnings = [event for event in events if event.kind == "warning"]
    assert [event.round for event in warnings] == [1, 2]  # once a round
    first = made.tree.clients[0]
    assert f"{method}: local_train at {first} (and 4 more) in round 2 gave" in warnings[1].text
    assert "local.lr = 1e+30; those updates were left out" in warnings[1].text


@pytest.mark.thorough
def test_rows_are_the_same_on_every_engine(engines: dict[str, Engine]) -> None:
    made = with_one_bad_client("fedhead", rounds=3)
    inline, pool = (all_but_times(train(made, engine=engine)) for engine in engines.values())
    assert inline == pool
    assert inline["rows"][0]["bad_updates"]


def test_a_good_run_says_nothing() -> None:
    events: list[Event] = []
    run = train(toys.tiny("fedavg"), watch=events.append)
    assert not [event for event in events if event.kind == "warning"]
    assert not any("bad_updates" in row for row in run.history)


def test_warnings_go_to_standard_error_unless_it_is_to_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    event = Event("warning", 1, 2, text="something was left out")
    for quiet in (False, True):
        with RunProgress("fedavg", quiet) as watch:
            watch(event)
    assert capsys.readouterr() == ("", "warning: something was left out\n")


def test_likely_causes_are_the_rates_and_pulls_that_a_method_has() -> None:
    @dataclass(frozen=True)
    class Pulling:
        local: LocalSpec
        mu: float
        alpha: float = 0.0
        server: Any = None

        def init(self, fed: Federation, model: Located) -> State:
            return State(model)

        def round(self, fed: Federation, state: State) -> State:
            return state

    made = as_method(Pulling)(LocalSpec(epochs=1, lr=0.5), 20.0)  # type: ignore[call-arg]
    assert made.likely_causes() == {
        "train": "local.lr = 0.5 and mu = 20",
        "distill": "",
    }
    assert toys.tiny("fedhead+").method.likely_causes()["distill"] == "sector.lr = 0.001 and server.lr = 0.001"
    wild = replace(toys.tiny("fedhead+").method, local=LocalSpec(epochs=1, lr=1e8))  # teachers are what is wrong
    assert wild.likely_causes()["distill"] == "local.lr = 1e+08"
    context = SimpleNamespace(method="fedhead+", causes=wild.likely_causes())
    told = NonFiniteResult(cast(Any, context), "distill", "distill", "s0", 1).dropped
    assert told.endswith("because of local.lr = 1e+08; that update was left out: lower local.lr or set local.clip")


# -- ending the run


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_stop_ends_the_run_with_a_sentence(engine: str, engines: dict[str, Engine]) -> None:
    made = with_one_bad_client("fedavg", faults={"bad_update": "stop"})
    with pytest.raises(Diverged) as told:
        train(made, engine=engines[engine])
    assert isinstance(told.value, UserError)
    assert str(told.value) == (
        "fedavg: local_train at c0 in round 1 gave numbers that are not finite, most likely because of local.lr = 0.1; "
        "lower local.lr, set local.clip, or set faults.bad_update = 'drop' to leave such updates out"
    )


def test_a_student_that_diverges_is_told_apart_from_a_client() -> None:
    wild = {"optimizer": "sgd", "lr": 1e38, "epochs": 3, "restore": "last", "patience": "none"}
    made = toys.tiny("fedhead", sector=wild, faults={"bad_update": "stop"})
    with pytest.raises(Diverged, match=r"^fedhead: distill at s. in round 1 .* sector.lr = 1e\+38; lower sector.lr, "):
        train(made)


# -- what a loss leaves behind


@dataclass(frozen=True)
class Memory:
    """A state with values everywhere."""

    model: Located
    byname: dict[str, Located]
    ring: tuple[Located, ...]
    hosts: Located
    mine: Located
    count: int = 0


@task("train")
def give(site: TaskContext, value: float, fine: bool) -> torch.Tensor:
    return torch.tensor([value if fine else math.nan])


@task("train")
def or_zero(site: TaskContext, given: Any) -> torch.Tensor:
    return torch.zeros(1) if given is None else given + 1


def test_after_a_round_the_state_falls_back_by_node() -> None:
    made = toys.tiny("fedavg")
    with toys.lab_of(made) as lab:

        def state(fed: Federation, value: float, fine: bool) -> Memory:
            at = {place: fed.run(give, at=place, value=value, fine=fine) for place in (SERVER, SECTORS, CLIENTS)}
            one = at[SERVER]
            return Memory(one, {"a": one, f"only {value}": one}, (one, one), at[SECTORS], at[CLIENTS], int(value))

        def shown(fed: Federation, found: Located) -> Any:
            if found.place is not SERVER:
                found = fed.up(found, to=SERVER)
            return fed.read(found)

        old = state(lab.fed, 1.0, True)
        fed = lab.fed.begin(1, made.tree.holders)
        new = state(fed, 2.0, False)
        kept = fed.restore_lost(old, new)
        assert shown(fed, kept.model) == shown(fed, kept.byname["a"]) == shown(fed, kept.ring[0]) == 1.0
        assert fed.missing(kept.byname["only 2.0"]) == ("server",)  # there was none before
        assert set(kept.byname) == {"a", "only 2.0"}
        assert list(shown(fed, kept.hosts).values()) == [1.0, 1.0]
        assert fed.missing(kept.mine) == made.tree.holders  # what clients keep is the method's own affair
        assert kept.count == 2
        better = fed.restore_lost(old, state(fed, 3.0, True))
        assert shown(fed, better.model) == shown(fed, better.ring[1]) == 3.0


def test_a_value_that_was_never_made_is_like_one_that_was_never_given() -> None:
    """A client whose first state was lost is not lost for ever."""
    with toys.lab_of(toys.tiny("fedavg")) as lab:
        fed = lab.fed.begin(1, lab.tree.holders)
        mine = fed.update(nothing(CLIENTS), fed.run(give, at=CLIENTS, value=5.0, fine=False))
        after = fed.run(or_zero, at=CLIENTS, given=maybe(mine))
        assert {float(value) for value in fed.read(fed.up(after, to=SERVER)).values()} == {0.0}
        needed = fed.run(or_zero, at=CLIENTS, given=mine)
        assert fed.missing(needed) == fed.clients


# -- clients that come and go


@dataclass(frozen=True)
class Relay(Method):
    """Clients train twice a round, so that there is something to wait for in between."""

    local: LocalSpec

    def init(self, fed: Federation, model: Located) -> Any:
        return State(model)

    def round(self, fed: Federation, state: Any) -> Any:
        local = fed.down(state.model, to=CLIENTS)
        for _ in range(2):
            local = fed.run(local_train, at=CLIENTS, start=local, spec=self.local)
        return replace(state, model=fed.run(average, at=SERVER, models=fed.up(local, to=SERVER)))


@pytest.mark.parametrize("clients", [5, 20])
def test_availability_changes_no_result(clients: int, engines: dict[str, Engine]) -> None:
    """Of twenty that are trained together there is no moment at which all are there; each has come in time."""
    made = toys.tiny("fedavg", partition={"clients": clients})
    made = replace(made, method=Relay(LocalSpec(epochs=1, batch=8)))
    rare = replace(made, config=made.config.merged({"faults": {"availability": 0.4, "period": 0.05}}))
    expected = all_but_times(train(made))
    for engine in engines.values():
        assert all_but_times(train(rare, engine=engine)) == expected


def test_a_client_is_there_for_its_share_of_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(availability.time, "monotonic", lambda: now)
    context = replace(toys.tiny("fedavg").context(), availability=0.25, period=8.0)
    found = availability.Availability(context)

    def job(home: str, function: Any = give) -> Job:
        return Job("n", function, home, home, {}, (1, "give", 0, home))

    starts = set()
    for client in ("c0", "c1", "c2"):
        waits = []
        for step in range(320):
            now = 100.0 + step / 40
            waits.append(found.delay(job(client)))
        assert sum(wait == 0 for wait in waits) == pytest.approx(320 * 0.25, abs=1)
        assert max(waits) == pytest.approx(8.0 * 0.75, abs=1 / 20)
        starts.add(waits.index(max(waits)))
        now = 100.0 + waits.index(max(waits)) / 40
        now += found.delay(job(client)) + 1e-6
        assert found.delay(job(client)) == 0.0
    assert len(starts) == 3  # each at times of its own
    for step in range(32):
        now = step / 4  # the server and hosts are always there, as is whoever only adds up
        assert found.delay(job("server")) == found.delay(job("s0")) == found.delay(job("c0", average)) == 0.0


@pytest.mark.parametrize("flavour", ["original", "fedhead"])
def test_before_the_first_round_there_is_nothing_to_fall_back_to(flavour: str) -> None:
    """FedMD trains in `init`; what is not finite there ends the run whatever the policy."""
    with pytest.raises(Diverged, match=r"fedmd: .* before the first round gave numbers that are not finite"):
        toys.tiny_run("fedmd", algorithm={"flavour": flavour}, local={"optimizer": "sgd", "lr": 1e30})


def test_a_stack_is_looked_through_at_once_and_each_is_judged_for_itself() -> None:
    layout = Layout("model", (("w", (5,)),), (), ())
    none = torch.zeros(0, dtype=torch.int64)

    def stacked(matrix: torch.Tensor) -> ModelRows:
        return ModelRows([Params(row, none, layout) for row in matrix.unbind()], matrix)

    values = [*stacked(torch.ones(3, 5)), LOST, None, Params(torch.ones(5), none, layout)]
    assert all_finite(values) == [True] * 6
    bad = torch.ones(3, 5)
    bad[1, 2] = math.nan
    assert all_finite(stacked(bad)) == [True, False, True]
    assert all_finite([*stacked(bad), *stacked(torch.ones(2, 5))]) == [True, False, True, True, True]
    assert all_finite(stacked(torch.full((3, 5), 3e38))) == [True] * 3  # the sum alone overflows
