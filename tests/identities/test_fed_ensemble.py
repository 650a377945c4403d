"""B9: Fed-ensemble's turns, and its special case."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import toys
from headwater.algorithms.fed_ensemble import FedEnsemble
from headwater.algorithms.fedavg import FedAvg
from headwater.core.params import Params
from headwater.core.sampling import turns
from headwater.specs import LocalSpec

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 4))]
SECTORS = (0, 1, 0, 1)


def members(method: Any, rounds: int) -> list[Params]:
    with toys.lab(method, CLIENTS, SECTORS, toys.net, classes=3) as lab:
        for number in range(1, rounds + 1):
            lab.round(number)
        assert lab.state.model is None
        return [lab.fed.read(member) for member in lab.state.team.members.values()]


@pytest.mark.parametrize("models", [1, 2, 5])
def test_b9_every_client_trains_every_model_once_in_a_block(models: int) -> None:
    names = [f"c{i}" for i in range(7)]
    for block in range(3):
        rounds = range(block * models + 1, (block + 1) * models + 1)
        dealt = [turns(names, models, 0, number) for number in rounds]
        for one in dealt:
            assert sorted(c for team in one.values() for c in team) == names
        seen = Counter((c, k) for one in dealt for k, team in one.items() for c in team)
        assert seen == Counter({(c, k): 1 for c in names for k in range(models)})


def test_orders_differ_by_client_and_block_and_not_by_who_takes_part() -> None:
    names = [f"c{i}" for i in range(20)]
    dealt = [turns(names, 4, 0, number) for number in range(1, 9)]
    assert len({str(one) for one in dealt}) == 8
    of = [{c: k for k, team in one.items() for c in team} for one in dealt]
    assert len({tuple(one[c] for one in of[:4]) for c in names}) > 5
    assert any(tuple(one[c] for one in of[:4]) != tuple(one[c] for one in of[4:]) for c in names)
    half = turns(names[::2], 4, 0, 3)
    assert all(of[2][c] == k for k, team in half.items() for c in team)


def test_b9_one_model_is_fedavg() -> None:
    """B9, straight and through sectors, bit for bit."""
    for through in (False, True):
        (found,) = members(FedEnsemble(LOCAL, 1, through_sectors=through), 3)
        expected = toys.play(FedAvg(LOCAL, through_sectors=through), CLIENTS, SECTORS, toys.net, 3, classes=3)
        assert toys.gap(found, expected) == 0


def test_learning_rate() -> None:
    """`lr_decay` once every so many rounds: rounds 1 and 2 as they were, 3 and 4 with half the rate."""
    slower = FedEnsemble(LOCAL, 1, lr_decay=0.5, lr_decay_every=2)
    assert toys.gap(members(slower, 2)[0], members(FedEnsemble(LOCAL, 1), 2)[0]) == 0
    with toys.lab(
        FedEnsemble(LocalSpec(steps=1, batch=8, lr=0.5), 1, lr_decay=0.5, lr_decay_every=1),
        [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3)],
        (0,),
        toys.Bowl,
    ) as lab:
        lab.round(1).round(2)
        found = lab.fed.read(lab.state.members[0]).vector.tolist()
    assert found == pytest.approx([0.625, 1.0], abs=1e-12)  # (0.5, 1) after the first; then ¼ of the way left


def test_the_accuracy_is_the_teams() -> None:
    run = toys.tiny_run("fed-ensemble", algorithm={"cohorts": 3})
    assert [row["accuracy"] for row in run.history] == [row["ensemble_accuracy"] for row in run.history]
    assert len(run.params) == 3
