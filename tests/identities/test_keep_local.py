"""`keep_local`: clients' models as trained are judged on their own rows, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import chosen
import toys

METHODS = ("fedavg", "fedprox", "moon", "fedalign", "fedgen")
every_method = pytest.mark.parametrize("method", chosen.first(METHODS, ["fedavg", "moon"]))


def experiment(method: str, keep: bool) -> Any:
    return toys.tiny(method, rounds=2, partition={"local_test": 0.5}, algorithm={"keep_local": keep})


@every_method
def test_training_and_traffic_are_the_same(method: str) -> None:
    options: dict[str, Any] = {"rounds": 2, "partition": {"local_test": 0.5}}
    plain, keeping = (toys.tiny_run(method, algorithm={"keep_local": keep}, **options) for keep in (False, True))
    assert plain.result["accuracy"] == keeping.result["accuracy"]
    assert plain.result["loss"] == keeping.result["loss"]
    for link in ("server_sector", "sector_client"):
        for way in ("up", "down"):
            assert plain.ledger.bytes(link, way) == keeping.ledger.bytes(link, way)


@every_method
def test_local_accuracy_is_of_the_models_before_averaging(method: str) -> None:
    """Their mean by samples is the global model, and they are what is tried on clients' own rows."""
    made = experiment(method, True)
    with toys.lab_of(made) as lab:
        models = lab.round(1).round(2).personal()
        sizes = made.tree.sizes
        mean = sum(sizes[c] * m.vector.double() for c, m in models.items()) / sum(sizes[c] for c in models)
        assert toys.gap(mean, lab.vector.double()) <= 1e-6
        assert all(toys.gap(model, lab.vector) > 1e-4 for model in models.values())
        right = []
        for client, model in models.items():
            rows = made.split.train.take(made.test_rows[client])
            module = model.load_into(made.model.build()).eval()
            with torch.no_grad():
                right.append(float((module(rows.x).argmax(1) == rows.y).double().mean()))
    found = toys.tiny_run(method, rounds=2, partition={"local_test": 0.5}, algorithm={"keep_local": True})
    assert found.result["local_accuracy"] == pytest.approx(sum(right) / len(right), abs=1e-9)


@every_method
def test_who_sits_out_keeps_its_last_model(method: str) -> None:
    with toys.lab_of(experiment(method, True)) as lab:
        first = lab.round(1).personal()
        someone, *others = sorted(first)
        second = lab.round(2, tuple(others)).personal()
    assert torch.equal(second[someone].vector, first[someone].vector)
    assert not torch.equal(second[others[0]].vector, first[others[0]].vector)
    with toys.lab_of(experiment(method, False)) as lab:
        assert lab.round(1).state.personal is None
