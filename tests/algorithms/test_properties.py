"""Properties of a mean that every method which averages must keep, whatever else it does.

Clients train on all their rows in one batch, so that no random draw matters: a client's result then depends on its rows
and its start alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import State, as_method, outputs
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import Params
from headwater.core.tree import Tree
from headwater.errors import TaskError
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment

AVERAGING = [name for name, part in ALGORITHMS.items() if part.info.family == "averaging"]
# Sectors that are led by a client depend on who leads; all others are means of means.
HIERARCHICAL = [
    name for name, part in ALGORITHMS.items() if part.info.family == "tree" and "distil" not in part.info.stages[2]
]
# Neurons are assigned client by client, so the order of clients may decide between two equally good assignments.
ORDERED = ("fedma",)
DATA = toys.tiny_data()
SPEC = LocalSpec(epochs=1)
LOCAL = {"epochs": 3, "batch": 128, "optimizer": "sgd", "lr": 0.1}


def arranged(method: str, rows: Sequence[np.ndarray], sectors: Sequence[int]) -> Experiment:
    """An experiment whose clients hold these rows, which they may share."""
    made = toys.tiny(method, arrays=DATA, local=LOCAL)
    return replace(
        made,
        tree=Tree.of([len(each) for each in rows], sectors, made.tree.archs),
        rows={f"c{i}": each for i, each in enumerate(rows)},
        test_rows={f"c{i}": each[:0] for i, each in enumerate(rows)},
    )


def after_a_round(experiment: Experiment) -> torch.Tensor:
    """The global model after one round in which all take part."""
    with toys.lab_of(experiment) as lab:
        lab.round(1)
        assert outputs(lab.state).model is not None
        return lab.vector.clone()


def check_identical_clients(method: str) -> None:
    """Four clients with the same rows give what one such client gives."""
    rows = np.arange(24)
    alone = after_a_round(arranged(method, [rows], [0]))
    four = after_a_round(arranged(method, [rows] * 4, [0, 0, 1, 1]))
    torch.testing.assert_close(four, alone, rtol=1e-4, atol=1e-5, msg=lambda text: f"{method}: {WRONG}\n{text}")


def check_order_of_clients(method: str) -> None:
    """Clients that exchange their places inside a sector leave the result as it is."""
    # Clients are visited by size, so some must have different sizes and some the same.
    rows = [np.arange(start, end) for start, end in ((0, 22), (22, 35), (35, 49), (49, 63))]
    first = after_a_round(arranged(method, rows, [0, 0, 1, 1]))
    other = after_a_round(arranged(method, [rows[i] for i in (1, 0, 3, 2)], [0, 0, 1, 1]))
    torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5, msg=lambda text: f"{method}: {ORDER}\n{text}")


WRONG = "identical clients do not give the result of one of them; is a sum or a weight not normalised?"
ORDER = "the result depends on the order of clients; does a weight or an index belong to a wrong client?"


@pytest.mark.parametrize("method", chosen.first(AVERAGING + HIERARCHICAL, chosen.CHOSEN))
def test_identical_clients_give_the_result_of_one(method: str) -> None:
    check_identical_clients(method)


@pytest.mark.parametrize(
    "method", chosen.first([name for name in AVERAGING + HIERARCHICAL if name not in ORDERED], chosen.CHOSEN)
)
def test_the_order_of_clients_does_not_matter(method: str) -> None:
    check_order_of_clients(method)


def test_a_plain_average_of_one_client_is_its_own_model() -> None:
    """What the other tests compare with is local training itself."""
    rows = np.arange(24)
    made = arranged("fedavg", [rows], [0])
    with toys.lab_of(made) as lab:
        start = lab.fed.down(lab.state.model, to=CLIENTS)
        local = lab.fed.run(local_train, at=CLIENTS, start=start, spec=made.method.local)  # type: ignore[attr-defined]
        own = lab.fed.read(lab.fed.up(local, to=SERVER))["c0"]
        torch.testing.assert_close(own.vector, after_a_round(made))


# -- the suite notices what it is for


@task("aggregate")
def sum_without_division(ctx: TaskContext, models: dict[str, Params]) -> Params:
    """Weights are shares of the first client's weight: right for one client only."""
    parts = list(models.values())
    vector = sum((part.vector * (part.weight / parts[0].weight) for part in parts[1:]), parts[0].vector)
    assert isinstance(vector, torch.Tensor)
    return replace(parts[0], vector=vector)


@task("aggregate", streaming=("models",))
def read_twice(ctx: TaskContext, models: dict[str, Params]) -> Params:
    """The number of models is counted by reading them, and then they are read again."""
    count = len(list(models.values()))
    first, *others = models.values()
    return replace(first, vector=sum((part.vector for part in others), first.vector) / count)


@task("aggregate")
def last_one_counts_twice(ctx: TaskContext, models: dict[str, Params]) -> Params:
    """Weights by position instead of by client."""
    parts = list(models.values())
    weights = [1.0] * (len(parts) - 1) + [2.0]
    vector = sum((part.vector * w for part, w in zip(parts, weights, strict=True)), torch.zeros_like(parts[0].vector))
    return replace(parts[0], vector=vector / sum(weights))


@dataclass(frozen=True)
class Forgetful:
    """FedAvg that forgets to divide by the sum of weights."""

    local: LocalSpec = SPEC

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def combine(self, fed: Federation, models: Located) -> Located:
        return fed.run(sum_without_division, at=SERVER, models=models)

    def round(self, fed: Federation, state: State) -> State:
        start = fed.down(state.model, to=CLIENTS)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        return State(self.combine(fed, fed.up(local, to=SERVER)))


@dataclass(frozen=True)
class ReadsTwice(Forgetful):
    def combine(self, fed: Federation, models: Located) -> Located:
        return fed.run(read_twice, at=SERVER, models=models)


@dataclass(frozen=True)
class ByPosition(Forgetful):
    def combine(self, fed: Federation, models: Located) -> Located:
        return fed.run(last_one_counts_twice, at=SERVER, models=models)


def own(kind: type) -> str:
    return f"{__name__}:{kind.__name__}"


def test_a_forgotten_division_is_noticed() -> None:
    assert as_method(Forgetful).INFO.name == own(Forgetful)
    with pytest.raises(AssertionError, match=r"Forgetful: identical clients .* not normalised"):
        check_identical_clients(own(Forgetful))


def test_weights_by_position_are_noticed() -> None:
    with pytest.raises(AssertionError, match=r"ByPosition: the result depends on the order of clients"):
        check_order_of_clients(own(ByPosition))


def test_a_streaming_input_that_is_read_twice_is_named() -> None:
    with pytest.raises(TaskError, match=r"read_twice at server .* reads its streaming input 'models' twice"):
        check_identical_clients(own(ReadsTwice))
