"""A client's update costs at most that client: weights are held against announced rows, sizes against the round's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
from headwater.core.params import Params
from headwater.deploy.payload import CARGO, HEAVIEST, PayloadReader, pack
from headwater.deploy.transport import Message, Unanswered
from headwater.deploy.updates import norm
from headwater.errors import TaskError
from headwater.training.experiment import Experiment
from loopback import SIX, loopback, small

BRIEF = SIX | {"data__fraction": 0.3, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 3}
HUGE = 3e38
MORE = ["hfedavg", "scaffold"]


def spoilt(made: Experiment, message: Message, change: Callable[[Params], Params], only: str = "") -> Message:
    """The reply with every model in it changed; with `only`, those whose names contain it."""

    def inside(value: Any) -> Any:
        if isinstance(value, Params):
            return change(value)
        if isinstance(value, dict):
            return {key: inside(item) for key, item in value.items()}
        return value

    values = PayloadReader(made.models, 1 << 30).unpack(message)
    head = {key: item for key, item in message.head.items() if key != CARGO}
    return pack(head, {name: inside(value) if only in name else value for name, value in values.items()})


def heavy(model: Params) -> Params:
    return replace(model, weight=HEAVIEST)


def huge(model: Params) -> Params:
    return replace(model, vector=torch.full_like(model.vector, HUGE))


def hostile(made: Experiment, bad: str, change: Callable[[Params], Params]) -> Callable[[str, Message], Message]:
    def meddle(to: str, message: Message) -> Message:
        return spoilt(made, message, change) if to == bad and message.parts else message

    return meddle


@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("fedhead", *MORE))]
)
@pytest.mark.parametrize("change", chosen.first([heavy, huge], [huge]))
def test_one_client_cannot_ruin_the_model(method: str, change: Callable[[Params], Params], tmp_path: Path) -> None:
    made = small(method, **BRIEF)
    bad = made.tree.holders[0]
    with loopback(made, tmp_path / "hostile", meddle=hostile(made, bad, change)) as federation:
        run = federation.train()
        assert {line.partition(":")[0] for line in federation.said} >= {f"round {n}" for n in (1, 2, 3)}
        assert all(f" {bad} sent" in line and "left out of this round" in line for line in federation.said)

    def absent(to: str, message: Message) -> Message:
        if to == bad and message.parts:
            raise Unanswered("was killed")
        return message

    with loopback(made, tmp_path / "absent", meddle=absent) as federation:
        wanted = federation.train()
    assert torch.equal(run.params[""].vector, wanted.params[""].vector)
    assert run.params[""].weight == wanted.params[""].weight


@pytest.mark.thorough
@pytest.mark.parametrize("sectors", [1, 3])
def test_also_where_few_updates_are_combined(sectors: int, tmp_path: Path) -> None:
    """Of two updates, neither can be the median; the model that they began with is known."""
    made = small("hfedavg", **BRIEF | {"partition__clients": 2 * sectors, "partition__sectors": sectors})
    bad = made.tree.holders[0]
    with loopback(made, tmp_path, meddle=hostile(made, bad, huge)) as federation:
        run = federation.train()
        assert all(f" {bad} sent" in line for line in federation.said)
    assert float(run.params[""].vector.abs().max()) < 1e3


def test_a_sector_weighs_no_more_than_its_clients(tmp_path: Path) -> None:
    made = small("hfedavg", **BRIEF | {"rounds": 1})
    with loopback(made, tmp_path, meddle=hostile(made, "s0", heavy)) as federation:
        run = federation.train()
        (line,) = federation.said
    assert "s0 sent a reply that is refused" in line
    assert run.params[""].weight == made.tree.sizes["s1"]


def test_a_host_that_forwards_a_false_weight_costs_that_client_only(tmp_path: Path) -> None:
    """The server checks again what a host let through."""
    made = small("fedavg", **BRIEF | {"rounds": 1})
    bad = made.tree.holders[0]

    def meddle(to: str, message: Message) -> Message:
        ours = to == made.tree.sector_of[bad] and message.parts
        return spoilt(made, message, heavy, f".{bad}>") if ours else message

    with loopback(made, tmp_path, meddle=meddle) as federation:
        run = federation.train()
        (line,) = federation.said
    assert f"{bad} sent a model of weight" in line
    assert run.params[""].weight == sum(made.tree.sizes[c] for c in made.tree.holders if c != bad)


def test_an_agreed_bound_is_held(tmp_path: Path) -> None:
    made = small("fedavg", **BRIEF | {"rounds": 1, "deploy__max_norm": 1e-3})
    with loopback(made, tmp_path / "tight", meddle=lambda to, message: message) as federation:
        federation.train()
        assert sum("beyond the 0.001 that are accepted" in line for line in federation.said) >= 4
        assert any("counts for nothing" in line for line in federation.said)
    made = small("fedavg", **BRIEF | {"rounds": 1, "deploy__max_norm": 1e3})
    with loopback(made, tmp_path / "wide") as federation:
        federation.train()
        assert federation.said == []


@pytest.mark.thorough
def test_updates_that_are_not_usable_do_not_make_a_quorum(tmp_path: Path) -> None:
    """Clients whose training diverges answer, and give nothing; the server ends instead of finishing in ruins."""
    made = small("fedavg", **BRIEF | {"rounds": 6, "local__lr": 1e30})
    with loopback(made, tmp_path) as federation, pytest.raises(TaskError, match="3 rounds in a row"):
        federation.train()
    assert any("of 3 gave usable answers" in line for line in federation.said)


@pytest.mark.thorough
def test_lost_updates_are_not_compared_with(tmp_path: Path) -> None:
    """They are no updates of size 0, beside which the only one that came would be huge."""
    made = small("fedavg", **BRIEF | {"rounds": 1})
    only = made.tree.holders[0]

    def meddle(to: str, message: Message) -> Message:
        if to.startswith("c") and to != only:
            raise Unanswered("was killed")
        return message

    with loopback(made, tmp_path, meddle=meddle, quorum=0.01) as federation:
        assert federation.train().params[""].weight == made.tree.sizes[only]


def test_norms() -> None:
    assert norm({"a": (torch.tensor([3.0]), 4), "b": "text", "c": None}) == 5.0
    assert norm(torch.full((4,), HUGE)) == pytest.approx(2 * float(torch.tensor(HUGE)))
    assert math.isinf(norm(torch.full((2,), HUGE) - torch.full((2,), -HUGE)))
