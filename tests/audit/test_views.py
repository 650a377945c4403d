"""Who held which models, as the engine that looks on has it, and what the probe makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headwater.algorithms.fedavg import FedAvg
from headwater.audit.attacker import ANALYTIC, MEMBERSHIP
from headwater.audit.probe import Probe, probe
from headwater.audit.views import SeenModel, seen_models
from headwater.audit.watching import Watching
from headwater.core.federation import CLIENTS, SERVER, Federation
from headwater.core.params import Params
from headwater.data.base import Data
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment
from headwater.training.loop import train
from toys import blobs, tiny, tiny_run

ONE_ROW = {"epochs": None, "steps": 1, "batch": 1, "optimizer": "sgd", "lr": 0.1}


def seen_in(experiment: Experiment) -> list[SeenModel]:
    """All models that anybody held in the last round."""
    last = experiment.config.rounds
    engine = Watching([last - 1, last], experiment.tree.holders)
    try:
        train(experiment, engine=engine)
        engine.finished()
        return seen_models(engine, experiment.tree.sector_of, last, experiment.tree.archs)
    finally:
        engine.close()


def whose(seen: list[SeenModel]) -> dict[str, set[str]]:
    """Role → whose models it held."""
    found: dict[str, set[str]] = {}
    for each in seen:
        found.setdefault(each.role, set()).add(each.subject)
    return found


def wide_data() -> Data:
    """Rows of so many numbers that none resembles another."""
    made, test = (blobs(rows, seed, features=24, dtype=torch.float32) for rows, seed in ((120, 0), (60, 1)))
    return Data(made.x, made.y, test.x, test.y)


def by_role(found: Probe, role: str, subject: str) -> Any:
    return next(each for each in found.findings if (each.role, each.subject) == (role, subject))


def test_leaders_and_hosts_hold_single_models_of_their_sector_and_the_server_those_of_leaders() -> None:
    experiment = tiny("fedhead")
    seen, sector_of = seen_in(experiment), experiment.tree.sector_of
    assert "client" not in whose(seen)["server"]
    for role in ("leader", "sector"):
        mine = [each for each in seen if (each.role, each.subject) == (role, "client")]
        assert mine
        for each in mine:
            sector = each.who if role == "sector" else sector_of[each.who]
            assert {sector_of[client] for client in each.clients} == {sector}
    hosts = {each.clients for each in seen if (each.role, each.subject) == ("sector", "client")}
    leaders = {each.who for each in seen if each.role == "leader"}
    assert hosts == {(client,) for client in experiment.tree.holders if client not in leaders}


@pytest.mark.parametrize("method", ["fedavg", "hfedavg"])
def test_secure_sums_leave_no_single_model(method: str) -> None:
    settings: dict[str, Any] = {"rounds": 1, "partition": {"clients": 6}}
    assert "client" in whose(seen_in(tiny(method, **settings)))["sector"]
    hidden = seen_in(tiny(method, **settings, privacy={"secure": "both"}))
    assert hidden
    assert all(each.subject != "client" for each in hidden)


def test_sealed_models_are_the_servers_only() -> None:
    """The server opens what hosts pass on sealed; which client's it is stays known."""
    seen = seen_in(tiny("feddf", rounds=1, partition={"clients": 6}, privacy={"secure": "sectors"}))
    assert "client" in whose(seen)["server"]
    assert "client" not in whose(seen).get("sector", set())


def test_what_is_held_is_what_was_released() -> None:
    plain, noisy = (
        {each.clients: each for each in seen_in(tiny("fedavg", rounds=1, privacy=privacy)) if each.subject == "client"}
        for privacy in ({"clip": 1.0}, {"clip": 1.0, "noise": 5.0})
    )
    for clients, each in noisy.items():
        away = (each.model.vector - plain[clients].model.vector).std()
        assert 4 < float(away) < 6  # noise times clip


def test_a_run_that_is_looked_at_has_the_same_bits() -> None:
    found = probe(tiny("fedhead"), attacks=())
    assert found.model_sha256 == tiny_run("fedhead").result["model_sha256"]


def test_one_row_is_rebuilt_from_one_model_and_not_through_noise() -> None:
    settings: dict[str, Any] = {"arrays": wide_data(), "rounds": 1, "local": ONE_ROW, "net": {"hidden": [32]}}
    shown = probe(tiny("fedavg", **settings), attacks=(ANALYTIC,))
    for role in ("server", "sector"):
        found = by_role(shown, role, "client").analytic
        assert found.similarity > 0.999
        assert found.gain.low > 0.1
    hidden = probe(tiny("fedavg", **settings, privacy={"clip": 1.0, "noise": 5.0}), attacks=(ANALYTIC,))
    lost = by_role(hidden, "server", "client").analytic
    assert lost.similarity < 0.9
    assert lost.gain.low < 0.05
    assert lost.similarity < lost.baseline + 0.1  # a public row does as well


def test_a_method_without_models_in_its_rounds_shows_them_at_the_end_only() -> None:
    found = probe(tiny("fedproto"), attacks=(MEMBERSHIP,), resamples=0)
    assert {each.purpose for each in found.findings} == {"export"}
    assert all(each.started == 0 for each in found.findings)  # nobody held what a client began with
    assert "client" in found.without


@task("train")
def own_training(ctx: TaskContext, model: Params, spec: LocalSpec) -> dict[str, Params]:
    """Training as a user may write it, who declares nothing."""
    return {"mine": local_train(ctx, model, spec)}


class Own(FedAvg):
    """A method of a user's own."""

    def round(self, fed: Federation, state: Any) -> Any:
        start = fed.down(state.model, to=CLIENTS)
        sent = fed.up(fed.run(own_training, at=CLIENTS, model=start, spec=self.local), to=SERVER)
        return replace(state, model=fed.run(first_of, at=SERVER, sent=sent))


@task("average")
def first_of(ctx: TaskContext, sent: dict[str, dict[str, Params]]) -> Params:
    return next(iter(sent.values()))["mine"]


def test_a_users_own_method_is_looked_at_too() -> None:
    experiment = tiny("fedavg", arrays=wide_data(), rounds=1, local=ONE_ROW, net={"hidden": [32]})
    found = probe(replace(experiment, method=Own(local=experiment.method.local)), attacks=(ANALYTIC,))
    mine = by_role(found, "server", "client")
    assert (mine.part, mine.analytic.similarity > 0.999) == ("mine", True)
