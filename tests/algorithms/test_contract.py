"""What every method guarantees. A new method's file puts it under all of these tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import Method, outputs
from headwater.core.federation import SERVER
from headwater.core.params import Params
from headwater.core.tree import Place
from headwater.core.values import located_in
from headwater.data.base import Data
from headwater.engines.base import Done
from headwater.engines.inline import Inline
from headwater.errors import ConfigError
from headwater.training import checkpoint
from headwater.training.loop import Event, train
from headwater.training.result import Run

METHODS = list(ALGORITHMS)
every_method = pytest.mark.parametrize("method", METHODS)
further_methods_thorough = pytest.mark.parametrize("method", chosen.methods())
DATA = toys.tiny_data()


def run(method: str, **options: Any) -> Run:
    return toys.tiny_run(method, **({"arrays": DATA} | options))


@cache
def usual(method: str) -> Run:
    """The run that several tests compare theirs with."""
    return run(method)


def refusal(method: str, **options: Any) -> str:
    """The sentence with which a method refuses a setting before anything runs; empty if it does not."""
    try:
        toys.tiny(method, arrays=DATA, **options)
    except ConfigError as error:
        return str(error)
    return ""


def is_sound(found: Run, rounds: int = 2) -> None:
    """The run went all the way and every number in it is one."""
    assert [row["round"] for row in found.history] == list(range(1, rounds + 1))
    assert all(torch.isfinite(model.vector).all() for model in found.params.values())
    json.dumps([found.result, found.history], allow_nan=False)
    assert 0 <= found.accuracy <= 1
    assert found.result["loss"] < 100


# -- what it gives


@further_methods_thorough
def test_same_seed_same_result(method: str) -> None:
    first, again, other = usual(method), run(method), run(method, seed=1)
    assert first.result["model_sha256"] == again.result["model_sha256"]
    assert [row["accuracy"] for row in first.history] == [row["accuracy"] for row in again.history]
    assert first.ledger.summary() == again.ledger.summary()
    assert first.result["model_sha256"] != other.result["model_sha256"]


@every_method
def test_trains(method: str) -> None:
    """Well above the third that a guess gets, after a few rounds."""
    plain = ALGORITHMS[method].info.defaults.get("local", {}).get("optimizer") == "sgd"
    found = run(method, rounds=4, local={"epochs": 5} | ({"lr": 0.2} if plain else {"optimizer": "adam", "lr": 0.02}))
    is_sound(found, 4)
    assert found.accuracy > 0.45


@every_method
def test_state_survives_writing(method: str) -> None:
    """A state is handles and plain values: as JSON and back it is the same, after `init` and after a round."""
    with toys.lab_of(toys.tiny(method, arrays=DATA)) as lab:
        for state in (lab.state, lab.round(1).state):
            text = json.dumps(checkpoint.encode(state))
            back = checkpoint.decode(json.loads(text))
            assert back == state
            assert type(back) is type(state)
        assert any(x.nodes for x in located_in(state))


@further_methods_thorough
def test_resumes_exactly(method: str, tmp_path: Path) -> None:
    """A run that is stopped after its first round and taken up again ends as one that was not."""

    def stop(event: Event) -> None:
        if event.kind == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toys.tiny(method, arrays=DATA), out=tmp_path, watch=stop)
    whole, resumed = usual(method), train(toys.tiny(method, arrays=DATA), out=tmp_path)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert resumed.ledger.summary() == whole.ledger.summary()


@every_method
def test_inputs_are_left_alone(method: str) -> None:
    """Neither the data nor the values of the state before are written to."""
    experiment = toys.tiny(method, arrays=DATA)
    split = experiment.split
    tensors = [t for s in (split.train, split.validation, split.test) for t in (s.x, s.y)] + [split.reference]
    before = [tensor.clone() for tensor in tensors]

    def values(lab: toys.Lab, state: Any) -> list[Params]:
        if state.model is not None:
            return [lab.fed.read(state.model)]
        if outputs(state).personal is None:
            return [lab.fed.read(member) for member in state.team.members.values()]
        fed = lab.fed.with_purpose("export")
        return list(fed.read(fed.up(state.personal, to=SERVER)).values())

    with toys.lab_of(experiment) as lab:
        start = lab.state
        old = [model.vector.clone() for model in values(lab, start)]
        fed = lab.fed.begin(1, lab.tree.holders)
        after = values(lab, experiment.method.round(fed, start))
        assert all(torch.equal(m.vector, v) for m, v in zip(values(lab, start), old, strict=True))
        assert any(not torch.equal(m.vector, v) for m, v in zip(after, old, strict=True))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))


# -- whom it can work with


@further_methods_thorough
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(([40, 1, 9, 3], [0, 0, 1, 1]), id="unequal sizes"),
        pytest.param(([20], [0]), id="one client", marks=pytest.mark.thorough),
        pytest.param(([1], [0]), id="one client of one sample"),
        pytest.param(([9, 8, 7], [0, 0, 0]), id="one sector", marks=pytest.mark.thorough),
        pytest.param(([9, 8, 7], [0, 1, 2]), id="sectors of one client", marks=pytest.mark.thorough),
        pytest.param(([9, 0, 7, 0], [0, 0, 1, 2]), id="clients and a sector without data"),
    ],
)
def test_any_tree(method: str, sizes: tuple[list[int], list[int]]) -> None:
    found = run(method, sizes=sizes)
    is_sound(found)
    assert set(found.result["client_accuracy"]) == {f"c{i}" for i, n in enumerate(sizes[0]) if n}


@further_methods_thorough
def test_batch_norm_and_a_client_of_one_sample(method: str) -> None:
    given = {"model": lambda: toys.normed(4, 3), "sizes": ([30, 1, 9, 1], [0, 0, 1, 1])}
    if sentence := refusal(method, **given):
        assert method in sentence
        return
    found = run(method, **given)
    is_sound(found)
    assert all(model.counters.dtype == torch.int64 for model in found.params.values())


@every_method
@pytest.mark.thorough
def test_a_class_nobody_has(method: str) -> None:
    found = run(method, arrays=toys.tiny_data(classes=4, absent=1))
    is_sound(found)
    if "confusion" in found.result:
        assert sum(found.result["confusion"][3]) == 0


@every_method
@pytest.mark.thorough
def test_a_class_that_only_one_client_has(method: str) -> None:
    """The last of five clients holds all rows of a class, and nothing else."""
    rows = toys.blobs(60, 3, features=4, classes=3, dtype=torch.float32)
    order = torch.argsort(rows.y == 2, stable=True)
    test = toys.blobs(40, 4, features=4, classes=3, dtype=torch.float32)
    held = int((rows.y == 2).sum())
    made = Data(rows.x[order], rows.y[order], test.x, test.y)
    common = 60 - held
    sizes = [common // 4] * 3 + [common - 3 * (common // 4), held]
    given: dict[str, Any] = {"data": {"validation": 0, "reference": "noise", "reference_size": 12}}
    # Options that would need a validation set are switched off.
    given["algorithm"] = dict.fromkeys(ALGORITHMS.load(method)().validation_options(), False)
    is_sound(run(method, arrays=made, sizes=(sizes, [0, 0, 1, 1, 1]), **given))


@further_methods_thorough
def test_partial_participation(method: str) -> None:
    found = run(method, rounds=4, partition={"participation": 0.4})
    is_sound(found, 4)
    moved = [row["bytes"]["sector_client"]["up"] for row in found.history]
    assert len(set(moved)) <= 3


@further_methods_thorough
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_clients_that_drop_out(method: str, seed: int) -> None:
    """Losses of every kind (members, leaders, whole sectors, everybody) leave a run that ends, with sound numbers."""
    found = run(method, seed=seed, rounds=5, faults={"dropout": 0.3})
    is_sound(found, 5)


@pytest.mark.parametrize("method", ["fedhead", "fedhead+"])
def test_label_counts_may_be_lost_too(method: str) -> None:
    for seed in range(2):
        is_sound(run(method, seed=seed, rounds=3, faults={"dropout": 0.3}, sector={"weights": "labels"}), 3)


@every_method
@pytest.mark.thorough
def test_nearly_everybody_drops_out(method: str) -> None:
    is_sound(run(method, rounds=4, faults={"dropout": 0.9}), 4)


@every_method
@pytest.mark.thorough
def test_without_a_validation_set(method: str) -> None:
    """A method still works, unless it says beforehand that it needs one."""
    if ALGORITHMS.load(method)().validation_options():
        with pytest.raises(ConfigError, match=r"data\.validation above 0"):
            toys.tiny(method, arrays=DATA, data={"validation": 0})
    else:
        is_sound(run(method, data={"validation": 0}))


# -- its shape


@every_method
def test_is_frozen_and_has_the_two_verbs(method: str) -> None:
    kind = ALGORITHMS.load(method)
    made = toys.tiny(method, arrays=DATA).method
    assert type(made) is kind
    assert callable(made.init)
    assert callable(made.round)
    assert issubclass(kind, Method)
    with pytest.raises(AttributeError):
        made.local = None


@every_method
def test_state_is_at_home(method: str) -> None:
    """`model` is at the server; or there is none, and `personal` is at the clients or a team at the server."""
    with toys.lab_of(toys.tiny(method, arrays=DATA)) as lab:
        state = lab.round(1).state
        if state.model is not None:
            assert state.model.place is Place.SERVER
        elif outputs(state).personal is not None:
            assert state.personal.place is Place.CLIENTS
        else:
            assert {member.place for member in state.team.members.values()} == {Place.SERVER}


def test_data_was_never_changed() -> None:
    """After all of the above the shared data is what it was."""
    fresh: Data = toys.tiny_data()
    assert torch.equal(DATA.train.x, fresh.train.x)
    assert torch.equal(DATA.train.y, fresh.train.y)


@further_methods_thorough
def test_clients_are_trained_together_where_it_says_so(method: str) -> None:
    experiment = toys.tiny(method, arrays=DATA)
    engine = Inline()
    seen: list[Done] = []
    found = train(experiment, engine=engine, watch=lambda event: seen.extend(engine.done))
    watched = [done for done in seen if done.title == "local_train" and done.node != "server"]
    together = {"together" in notes for done in watched for notes in done.notes.values()}
    assert together == {experiment.stacking.width > 1} or method == "centralized"
    assert found.result["stacking"] == experiment.stacking.to_dict()
    off = toys.tiny(method, arrays=DATA, engine={"stack": "off"})
    assert off.stacking.way == "loop"
    alone = train(off)
    for name, model in found.params.items():  # the last digits may differ
        torch.testing.assert_close(model.vector, alone.params[name].vector, rtol=1e-3, atol=1e-4)
