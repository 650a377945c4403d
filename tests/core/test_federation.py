"""Ways round the law, each closed by a sentence; and sentences that name what was wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import headwater as hw
import toys
from headwater.core.federation import CLIENTS, SERVER, each
from headwater.errors import PlaceError
from headwater.tasks.distill import validation
from headwater.tasks.evaluate import label_share
from headwater.tasks.task import TaskContext, task
from headwater.training.loop import train


@task("train")
def takes(site: TaskContext, given: Any) -> float:
    return float(label_share(site).sum())


@dataclass(frozen=True)
class Smuggler:
    inside: torch.Tensor


def test_what_was_read_at_the_server_cannot_be_passed_on_as_a_plain_input() -> None:
    with toys.lab_of(toys.tiny("fedavg")) as lab:
        rows = lab.fed.read(lab.fed.run(validation, at=SERVER))
        with pytest.raises(PlaceError, match="plain Examples"):
            lab.fed.run(takes, at=CLIENTS, given=rows)
        with pytest.raises(PlaceError, match=r"given\.inside.* plain Tensor"):
            lab.fed.run(takes, at=CLIENTS, given=Smuggler(rows.x))


def test_each_must_have_a_value_for_every_node() -> None:
    with toys.lab_of(toys.tiny("fedavg")) as lab, pytest.raises(PlaceError, match=r"each.*has no value for it"):
        lab.fed.run(takes, at=CLIENTS, given=each({lab.fed.clients[0]: 1}))


@pytest.mark.parametrize("nodes", [("c0", "c99"), ("c0", "s0"), ("server",)])
def test_values_go_down_to_nodes_of_one_tier_only(nodes: tuple[str, ...]) -> None:
    with toys.lab_of(toys.tiny("fedavg")) as lab, pytest.raises(PlaceError, match="all of one tier"):
        lab.fed.down(dict.fromkeys(nodes, lab.state.model))


def test_seeds_train_with_the_same_settings_and_are_pooled() -> None:
    """Defaults follow the data's size and the number of clients, not the split that a seed happens to draw."""
    found = hw.compare(["fedavg"], data=toys.tiny_data(), seeds=[0, 1, 2, 3], clients=9, alpha=0.05, rounds=1)
    assert [row["seeds"] for row in found.rows()] == [4]


def test_a_method_built_by_hand_follows_the_data_where_it_was_left_alone() -> None:
    data = toys.tiny_data()
    by_name = hw.run("fedhead", data=data, clients=4, sectors=2, rounds=1, leader="fixed")
    by_hand = hw.run(hw.FedHead(leader="fixed"), data=data, clients=4, sectors=2, rounds=1)
    assert by_hand.result["model_sha256"] == by_name.result["model_sha256"]


def test_a_run_that_diverges_leaves_json_that_every_reader_accepts(tmp_path: Any) -> None:
    made = toys.tiny("fedavg", local={"optimizer": "sgd", "lr": 1e30, "epochs": 3})
    train(made, out=tmp_path)
    for name in ("rounds.jsonl", "result.json"):
        assert "NaN" not in (tmp_path / name).read_text()
        assert "Infinity" not in (tmp_path / name).read_text()


def test_a_mask_stays_a_mask() -> None:
    class Masked(nn.Module):
        def __init__(self, inputs: int, classes: int) -> None:
            super().__init__()
            self.layer = nn.Linear(inputs, classes)
            self.register_buffer("mask", torch.tensor([True] + [False] * (inputs - 1)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.masked_fill(self.mask, 0.0))

    data = toys.tiny_data()
    width, classes = data.shape[0], data.classes
    run = hw.run("fedavg", data=data, model=lambda: Masked(width, classes), clients=3, sectors=1, rounds=1)
    assert run.model.mask.dtype == torch.bool
    assert 0 <= run.accuracy <= 1


def test_personal_models_have_an_interval_over_clients() -> None:
    run = hw.run("local", data=toys.tiny_data(), clients=5, sectors=2, rounds=1, alpha=10.0)
    low, high = run.accuracy_ci95 or (1.0, 0.0)
    assert low <= run.accuracy <= high
