"""Runs with many more clients than take part: what is registered costs its numbers only."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chosen
import toys
from headwater.config import Config
from headwater.core.federation import Federation
from headwater.core.ledger import Ledger
from headwater.core.session import Session
from headwater.core.tree import CLIENTS, Tree
from headwater.engines.pool import Pool
from headwater.training.evaluation import MOST_EXPECTED, MOST_OWN, judged
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train

MANY = 100_000


def crowd(method: str, clients: int = MANY, taking_part: int = 4, **sections: Any) -> Experiment:
    split = {"scheme": "drawn", "size": 6, "clients": clients, "participation": taking_part / clients}
    split |= sections.pop("partition", {})
    return toys.tiny(method, partition=split, **sections)


def asked(fed: Federation, most: int) -> tuple[str, ...]:
    return tuple(judged(fed, most).nodes(CLIENTS))


# -- who is asked


def view(clients: int, seed: int = 0) -> Federation:
    tree = Tree.of([1 + at % 3 for at in range(clients)], [at % 2 for at in range(clients)])
    return Federation(tree, Session(None, Ledger(), seed), tree.holders[:2])  # type: ignore[arg-type]  # nothing is run


def test_everybody_is_asked_while_they_are_few() -> None:
    fed = view(MOST_EXPECTED)
    assert asked(fed, MOST_EXPECTED) == fed.tree.holders
    assert asked(view(MOST_OWN), MOST_OWN) == view(MOST_OWN).tree.holders


def test_beyond_that_a_fixed_draw_is_asked() -> None:
    fed = view(5000)
    few, more = asked(fed, MOST_EXPECTED), asked(fed, MOST_OWN)
    assert (len(few), len(more)) == (MOST_EXPECTED, MOST_OWN)
    assert set(few) < set(more)
    assert few == asked(fed.begin(7, fed.tree.holders[3:5]), MOST_EXPECTED)  # in every round
    assert few == tuple(client for client in fed.tree.holders if client in few)  # in tree order
    assert set(few) != set(asked(view(5000, seed=1), MOST_EXPECTED))


def test_the_draw_is_uniform() -> None:
    """Over 400 seeds each of 200 clients is drawn in half of them, give or take five standard deviations of ten."""
    seen = np.zeros(200)
    for seed in range(400):
        seen[[int(client[1:]) for client in asked(view(200, seed), MOST_EXPECTED)]] += 1
    assert np.abs(seen - 200).max() < 50


def test_the_accuracy_of_those_who_are_asked_is_worked_out_from_their_labels() -> None:
    made = crowd("fedavg", 500, rounds=2)
    run = train(made)
    found = run.result["client_accuracy"]
    assert len(found) == MOST_EXPECTED
    assert all(set(row["client_accuracy"]) == set(found) for row in run.history)
    cells = torch.tensor(run.result["confusion"]).double()
    by_class = cells.diagonal() / cells.sum(1)
    for client, value in found.items():
        labels = made.split.train.y[made.rows[client]]
        assert value == pytest.approx(float(by_class[labels].mean()))
    for sector, value in run.history[-1]["sector_accuracy"].items():  # all hold alike many
        inside = [found[client] for client in found if made.tree.sector_of[client] == sector]
        assert value == pytest.approx(sum(inside) / len(inside))


# -- what it costs


def test_a_run_costs_the_same_however_many_are_registered(tmp_path: Path) -> None:
    """In memory, in messages and on disk."""
    peaks, sizes, moves = {}, {}, {}
    for clients in (1000, MANY):
        made = crowd("fedavg", clients, rounds=3)

        def begin(event: Event) -> None:
            if event.kind == "round" and event.round == 1:
                tracemalloc.start()

        try:
            run = train(made, out=tmp_path / str(clients), watch=begin)
            peaks[clients] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        files = [path for path in (tmp_path / str(clients)).rglob("*") if path.is_file()]
        sizes[clients] = sum(path.stat().st_size for path in files)
        moves[clients] = run.result["ledger"]["moves"]
    assert moves[MANY] == moves[1000]
    assert peaks[MANY] < peaks[1000] + 1e6
    assert sizes[MANY] < sizes[1000] + 40_000  # the sectors of all, packed
    told = json.loads((tmp_path / str(MANY) / "partition.json").read_text())
    assert told["counted"] == {"first": 1000, "of": MANY}


@pytest.mark.parametrize(
    ("method", "clients"),
    [
        ("scaffold", MANY),
        ("fedhead+", 10_000),
        *(chosen.further(method, MANY) for method in ("mtgc", "fedprox", "fedeed")),
    ],
)
def test_methods_run_among_many(method: str, clients: int) -> None:
    run = train(crowd(method, clients))
    assert run.result["clients"] == clients
    assert len(run.history) == 2
    assert 0 < run.accuracy <= 1


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_rows_that_are_found_when_asked_for_are_as_good_as_rows_that_are_there(own: float) -> None:
    made = crowd("fedhead", 12, partition={"local_test": own, "participation": 0.5})
    written = replace(made, rows=dict(made.rows), test_rows=dict(made.test_rows))
    lazy, plain = train(made), train(written)
    assert lazy.result["model_sha256"] == plain.result["model_sha256"]
    assert lazy.result.get("local_accuracy") == plain.result.get("local_accuracy")


@pytest.mark.thorough
def test_workers_find_the_same_rows() -> None:
    made = crowd("fedavg", 150, partition={"alpha": 0.5, "local_test": 0.2})
    with_workers = Pool(1)
    try:
        assert train(made, engine=with_workers).result["model_sha256"] == train(made).result["model_sha256"]
    finally:
        with_workers.close()


def test_what_is_left_open_suits_the_size_of_a_client() -> None:
    """And not the share of the pool that each of so many could have for itself."""
    data = toys.tiny_data(rows=900)
    split = {"scheme": "drawn", "size": 200}
    local = [
        prepare(Config(data={"name": "arrays"}, partition=split | {"clients": clients}), data=data).config.local
        for clients in (10, MANY)
    ]
    assert local[0] == local[1]
    assert local[0]["batch"] == 64  # about a quarter of 200, as a power of two
