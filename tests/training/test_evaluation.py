"""What is measured of a state: one model, personal ones, a team, and others by name; all of it worked out again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import chosen
import toys
from headwater.algorithms.base import Method, PersonalState, State, Team
from headwater.config import Config
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, nothing
from headwater.core.params import Params, digest
from headwater.engines.pool import Pool
from headwater.models.base import ModelSpec, Net
from headwater.specs import LocalSpec, Mix
from headwater.tasks.average import average, initial
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext
from headwater.training.evaluation import best_row
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.model_tensors import named
from headwater.training.result import Run

LOCAL = LocalSpec(epochs=2, batch=8, lr=0.3)


@dataclass(frozen=True)
class BothState(State):
    personal: Located


@dataclass(frozen=True)
class Both(Method):
    """As in FedHKD: a global model, and what each client had trained when it last took part."""

    local: LocalSpec = LOCAL

    def init(self, fed: Federation, model: Located) -> BothState:
        return BothState(model, nothing(CLIENTS))

    def round(self, fed: Federation, state: BothState) -> BothState:
        start = fed.down(state.model, to=CLIENTS)
        mine = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        model = fed.run(average, at=SERVER, models=fed.up(mine, to=SERVER))
        return BothState(model, fed.update(state.personal, mine))


@dataclass(frozen=True)
class TeamState:
    """No global model: members of two architectures."""

    big: Located
    small: Located
    mix: Mix

    @property
    def team(self) -> Team:
        return Team({"big.one": self.big, "items": self.small}, self.mix)


@dataclass(frozen=True)
class Teamed(Method):
    mix: Mix
    local: LocalSpec = LOCAL
    also: bool = False  # the first member as the model, the second as a further one

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        return {"tiny": replace(spec, options={"hidden": [2]})}

    def init(self, fed: Federation, model: Located) -> Any:
        return self._state(model, fed.run(initial, at=SERVER, arch="tiny", number=0))

    def _state(self, big: Located, small: Located) -> Any:
        return Shown(big, small) if self.also else TeamState(big, small, self.mix)

    def round(self, fed: Federation, state: Any) -> Any:
        new = []
        for member in (state.big, state.small) if isinstance(state, TeamState) else (state.model, state.small):
            local = fed.run(local_train, at=CLIENTS, start=fed.down(member, to=CLIENTS), spec=self.local)
            new.append(fed.run(average, at=SERVER, models=fed.up(local, to=SERVER)))
        return self._state(*new)


@dataclass(frozen=True)
class Shown(State):
    small: Located
    team_mix: ClassVar[Mix] = "logits"

    @property
    def also(self) -> dict[str, Located]:
        return {"small": self.small}

    @property
    def team(self) -> Team:
        return Team({"a": self.model, "b": self.small}, self.team_mix)


def experiment(method: Any, **sections: Any) -> Experiment:
    return replace(toys.tiny("fedavg", **({"rounds": 2} | sections)), method=method)


def outputs(run: Run, params: Params, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = params.load_into(run.specs[params.layout.arch].build()).eval()(x)
    return found


def accuracy(guess: torch.Tensor, y: torch.Tensor) -> float:
    return float((guess.argmax(1) == y).double().mean())


def team_probs(run: Run, members: list[Params], x: torch.Tensor, mix: str) -> torch.Tensor:
    made = [outputs(run, member, x) for member in members]
    if mix == "probs":
        return sum(torch.softmax(each, 1) for each in made) / len(made)
    return torch.softmax(sum(made) / len(made), 1)


# -- a global model and personal ones


def personal_of(made: Experiment, rounds: int) -> dict[str, Params]:
    """The personal models after these rounds, by a second way through the method."""
    from headwater.core.sampling import participants

    with toys.lab_of(made) as lab:
        for number in range(1, rounds + 1):
            lab.round(number, participants(made.tree, made.config.partition.participation, made.config.seed, number))
        return lab.personal()


@pytest.mark.parametrize("own", [0.0, 0.3], ids=["mix of labels", "own rows"])
def test_global_and_personal_models_are_told_apart(own: float) -> None:
    made = experiment(Both(), partition={"clients": 6, "participation": 0.34, "local_test": own}, rounds=1)
    run, mine = train(made), personal_of(made, 1)
    assert 0 < len(mine) < 6  # the others never took part, and are left out
    test = made.split.test
    assert run.accuracy == accuracy(outputs(run, run.params[""], test.x), test.y)
    expected = {}
    for client, params in mine.items():
        if own:
            rows = made.split.train.take(made.test_rows[client])
            expected[client] = accuracy(outputs(run, params, rows.x), rows.y)
            continue
        right = outputs(run, params, test.x).argmax(1) == test.y
        labels = made.split.train.y[made.rows[client]]
        by_class = [float(right[test.y == k].double().mean()) for k in range(3)]
        expected[client] = sum(by_class[k] * float((labels == k).double().mean()) for k in range(3))
    mean = sum(expected.values()) / len(expected)
    std = math.sqrt(sum((value - mean) ** 2 for value in expected.values()) / len(expected))
    for found in (run.result, run.history[-1]):
        assert found["local_accuracy"] == pytest.approx(mean)
        spread = {"std": std, "min": min(expected.values()), "max": max(expected.values())}
        assert found["local_accuracy_spread"] == pytest.approx(spread, abs=1e-12)
    assert set(run.params) == {""}  # what is shipped is the one model
    assert set(run.history[-1]["client_accuracy"]) == set(made.tree.holders)


def test_judging_personal_models_sends_numbers_only() -> None:
    """With own test rows they stay where they are, and so does the common test set."""
    made = experiment(Both(), partition={"local_test": 0.3})
    ledger = train(made).result["ledger"]
    assert {(row["from"], row["to"], row["kind"]) for row in ledger["moves"] if row["purpose"] == "evaluate"} == {
        ("server", "client", "array"),  # accuracies by class
        ("client", "server", "number"),
    }
    common = train(experiment(Both())).result["ledger"]
    seen = {row["kind"]: row["count"] for row in common["moves"] if row["purpose"] == "evaluate"}
    assert seen["examples"] == 5  # the common test set, once to each client


def test_personal_models_of_some_clients_only() -> None:
    """Without a global model, accuracy is the mean of those that there are."""

    @dataclass(frozen=True)
    class Some(Method):
        local: LocalSpec = LOCAL

        def init(self, fed: Federation, model: Located) -> PersonalState:
            return PersonalState(nothing(CLIENTS))

        def round(self, fed: Federation, state: PersonalState) -> PersonalState:
            start = fed.run(initial, at=CLIENTS, arch=fed.tree.archs[0], number=0)
            return PersonalState(fed.update(state.personal, fed.run(local_train, at=CLIENTS, start=start, spec=LOCAL)))

    made = experiment(Some(), partition={"clients": 6, "participation": 0.34}, rounds=1)
    run = train(made)
    assert 0 < len(run.params) < 6
    test = made.split.test
    each = [accuracy(outputs(run, params, test.x), test.y) for params in run.params.values()]
    assert run.accuracy == pytest.approx(sum(each) / len(each))
    assert set(run.result["client_accuracy"]) == set(run.params)
    sectors = {made.tree.sector_of[client] for client in run.params}
    assert set(run.history[0]["sector_accuracy"]) == sectors


# -- a team


@pytest.mark.parametrize("mix", chosen.first(["probs", "logits"], ["logits"]))
def test_a_team_is_judged_as_one(mix: Mix, tmp_path: Path, two_workers: Pool) -> None:
    made = experiment(Teamed(mix))
    run = train(made, out=tmp_path)
    assert list(run.params) == ["big_one", "items_"]  # as a module may be called
    test = made.split.test
    probs = team_probs(run, list(run.params.values()), test.x, mix)
    assert run.accuracy == run.result["ensemble_accuracy"] == accuracy(probs, test.y)
    assert run.result["loss"] == pytest.approx(float(-probs.log().gather(1, test.y[:, None]).mean()), rel=1e-5)
    confusion = torch.tensor(run.result["confusion"])
    assert int(confusion.diagonal().sum()) == round(run.accuracy * len(test))
    assert set(run.result["client_accuracy"]) == set(made.tree.holders)
    assert "local_accuracy" not in run.result
    assert run.result["parameters"] == run.params["big_one"].layout.size
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == set(run.model.state_dict())
    assert digest(tensors) == run.result["model_sha256"]
    modules = run.model
    assert modules["big_one"](test.x).shape == modules["items_"](test.x).shape == (len(test), 3)
    assert train(made, engine=two_workers).result["model_sha256"] == run.result["model_sha256"]


def test_probabilities_and_logits_are_not_the_same_team() -> None:
    losses = {train(experiment(Teamed(mix))).result["loss"] for mix in ("probs", "logits")}
    assert len(losses) == 2


def test_further_models_are_reported_by_name(tmp_path: Path) -> None:
    made = experiment(Teamed("probs", also=True))
    run = train(made, out=tmp_path)
    other = train(experiment(Teamed("probs")))  # the same training
    test = made.split.test
    big, small = other.params.values()
    assert torch.equal(run.params[""].vector, big.vector)
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    for found in (run.result, rows[-1]):
        assert found["accuracy"] == accuracy(outputs(other, big, test.x), test.y)
        assert found["small_accuracy"] == accuracy(outputs(other, small, test.x), test.y)
        assert found["ensemble_accuracy"] == accuracy(team_probs(other, [big, small], test.x, "logits"), test.y)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("a", "b"), ["a", "b"]),
        (((0, 1), (0, 2)), ["_0__1_", "_0__2_"]),
        (("a.b", "a_b", "a-b"), ["a_b", "a_b_", "a_b__"]),
        ((0, "", "training", "keys"), ["0", "member", "training_", "keys_"]),
    ],
)
def test_members_have_names_that_modules_may_bear(keys: tuple[Any, ...], names: list[str]) -> None:
    found = named({key: torch.nn.Linear(1, 1) for key in keys})
    assert list(found) == names
    torch.nn.ModuleDict(found)  # or it would be refused


# -- states that have only what they had


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_nothing_is_added_where_there_is_nothing_to_tell(method: str) -> None:
    run = toys.tiny_run(method)
    assert ("local_accuracy_spread" in run.result) == ("local_accuracy" in run.result) == (method == "local")
    assert "ensemble_accuracy" not in run.result


def test_privacy_is_told_for_a_classifier_of_several_layers() -> None:
    def net() -> nn.Module:
        return Net(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))

    assert toys.tiny_run("fedhkd", model=net).result["privacy"]["dimension"] == 6


def test_own_tests_from_the_common_test_set() -> None:
    """Clients train on all of their rows, and are tested on rows of the test set with their own mix of labels."""
    options = {"partition": {"local_test": 0.5, "local_test_source": "test"}}
    made, plain = toys.tiny("fedavg", **options), toys.tiny("fedavg")
    assert made.tree.sizes == plain.tree.sizes
    for client in made.tree.holders:
        ctx = TaskContext(made.context(), client, ("here",))
        assert ctx.own_test is None or torch.equal(ctx.own_test.x, made.split.test.take(made.test_rows[client]).x)
    found, without = (toys.tiny_run("fedavg", **each) for each in (options, {}))
    assert found.result["model_sha256"] == without.result["model_sha256"]
    assert 0 <= found.result["local_accuracy"] <= 1
    assert "local_accuracy" not in without.result


class TestBestRound:
    @staticmethod
    def rows(*pairs: tuple[float | None, float | None, float]) -> list[dict[str, Any]]:
        return [
            {"round": at, "accuracy": test, "validation_accuracy": val, "validation_loss": loss}
            for at, (test, val, loss) in enumerate(pairs, start=1)
        ]

    def test_the_validation_set_chooses_and_the_test_set_does_not(self) -> None:
        best, by = best_row(self.rows((0.9, 0.5, 1.0), (0.4, 0.7, 1.0), (None, None, 1.0), (0.8, 0.6, 1.0)))
        assert (best["round"], best["accuracy"], by) == (2, 0.4, "validation accuracy")

    def test_equal_ones_by_loss_and_then_the_first(self) -> None:
        assert best_row(self.rows((0.1, 0.7, 0.9), (0.2, 0.7, 0.8), (0.3, 0.7, 0.8)))[0]["round"] == 2

    def test_without_validation_it_is_the_last(self) -> None:
        rows = [{"round": at, "accuracy": value} for at, value in ((1, 0.9), (2, 0.5), (3, None))]
        assert best_row(rows) == (rows[1], "last round")


def test_a_run_validates_each_evaluated_round_and_trains_the_same_bits() -> None:
    runs = [
        train(prepare(Config.load("fedavg", [], rounds=2, partition__clients=3, local__epochs=1, eval_every=every)))
        for every in (1, 2)
    ]
    each, last = runs
    assert [row.get("validation_accuracy") is not None for row in last.history] == [False, True]
    assert each.result["model_sha256"] == last.result["model_sha256"]
    best = best_row(each.history)[0]
    assert (each.result["best_round"], each.result["best_accuracy"]) == (best["round"], best["accuracy"])
    rows = prepare(Config.load("fedavg", [], rounds=2, partition__clients=3, local__epochs=1)).split.validation
    with torch.no_grad():
        right = (each.model(rows.x).argmax(1) == rows.y).double().mean()
    assert each.history[-1]["validation_accuracy"] == pytest.approx(float(right))
    alone = train(prepare(Config.load("local", [], rounds=1, partition__clients=3, local__epochs=1)))
    assert (alone.result["best_by"], "validation_accuracy" in alone.history[0]) == ("last round", False)


def test_an_ensemble_is_validated_too() -> None:
    run = train(prepare(Config.load("fed-ensemble", [], rounds=1, partition__clients=4, local__epochs=1)))
    assert run.result["best_by"] == "validation accuracy"
    assert 0 <= run.history[0]["validation_accuracy"] <= 1
