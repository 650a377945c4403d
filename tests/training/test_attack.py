"""Simulated attacks, and what defences make of them, on whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater.config import Config
from headwater.core.params import Layout, Params
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.deploy.init import check
from headwater.tasks.attack import TARGET, Attack, attack_of, patched, poisoned

LAYOUT = Layout("own", (("w", (2,)),), (), ())
SMALL: dict[str, Any] = {"data": "digits", "clients": 10, "sectors": 2, "alpha": 10.0, "rounds": 3, "progress": False}
SHORT = SMALL | {"model": "mlp", "local__epochs": 4, "engine": "inline"}


def model(*numbers: float) -> Params:
    return Params(torch.tensor(numbers), torch.zeros(0, dtype=torch.int64), LAYOUT, 5.0)


@pytest.mark.parametrize(
    ("kind", "expected"), [("sign-flip", [-5.0, 4.0]), ("scale", [7.0, -2.0]), ("backdoor", [7.0, -2.0])]
)
def test_updates_by_hand(kind: str, expected: list[float]) -> None:
    attack = Attack(kind, frozenset({"c1"}), 3.0, 0)  # type: ignore[arg-type]
    inputs = {"start": model(1.0, 1.0)}
    found = attack.on("train", "c1", inputs, (1,), {"model": model(3.0, 0.0)})["model"]
    assert found.vector.tolist() == expected
    assert found.weight == 5.0
    honest = model(3.0, 0.0)
    assert attack.on("train", "c0", inputs, (1,), honest) is honest


def test_noise_has_the_length_of_the_update_times_the_strength() -> None:
    attack = Attack("gaussian", frozenset({"c1"}), 2.0, 0)
    sent = attack.on("train", "c1", {"start": model(0.0, 0.0)}, (1, "c1"), model(3.0, 4.0))
    assert float(sent.vector.norm()) == pytest.approx(10.0)
    again = attack.on("train", "c1", {"start": model(0.0, 0.0)}, (1, "c1"), model(3.0, 4.0))
    assert torch.equal(sent.vector, again.vector)


def test_leaders_and_hosts() -> None:
    leader, host = (Attack(kind, frozenset({"s0"}), 1.0, 0) for kind in ("lying-leader", "lying-host"))
    inputs = {"start": model(1.0, 1.0)}
    assert leader.on("distill", "s0", inputs, (1,), model(2.0, 3.0)).vector.tolist() == [0.0, -1.0]
    assert leader.on("train", "s0", inputs, (1,), model(2.0, 3.0)).vector.tolist() == [2.0, 3.0]
    assert host.on("average", "s0", {}, (1,), model(2.0, 3.0)).vector.tolist() == [-2.0, -3.0]
    assert host.on("average", "s1", {}, (1,), model(2.0, 3.0)).vector.tolist() == [2.0, 3.0]


def test_a_client_that_derives_a_second_value_from_its_model_attacks_once() -> None:
    """In round 1 all variates are zero, so SCAFFOLD is FedAvg, also under attack."""
    local = {"model": "mlp", "local__optimizer": "sgd", "local__lr": 0.05, "local__epochs": 1, "local__clip": 10.0}
    attack = {"attack__kind": "sign-flip", "attack__share": 1.0, "attack__strength": 2.0}
    plan = SMALL | local | attack | {"rounds": 1, "alpha": 1e6}
    own, average = (hw.run(method, **plan).model.state_dict() for method in ("scaffold", "fedavg"))
    for name in own:
        torch.testing.assert_close(own[name], average[name], rtol=0.01, atol=0.001)


def test_who_attacks_follows_from_the_seed() -> None:
    tree = Tree.of([5] * 10, [0] * 5 + [1] * 5)
    drawn = attack_of("sign-flip", 0.3, 1.0, 0, tree)
    assert drawn is not None
    assert len(drawn.homes) == 3
    assert drawn == attack_of("sign-flip", 0.3, 1.0, 0, tree)
    assert attack_of("none", 0.3, 1.0, 0, tree) is None
    sectors = attack_of("lying-host", 0.1, 1.0, 0, tree)
    assert sectors is not None
    assert len(sectors.homes) == 1
    assert sectors.homes <= {"s0", "s1"}


def test_only_attackers_rows_change() -> None:
    x, y = torch.zeros(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    x[0, 0, 0, 0] = 7.0
    rows = {"c0": torch.arange(3).numpy(), "c1": torch.arange(3, 6).numpy()}
    flipped = poisoned(Attack("label-flip", frozenset({"c1"}), 1.0, 0), Examples(x, y), rows, 3, 1.0)
    assert flipped.y.tolist() == [0, 1, 2, 2, 1, 0]
    assert torch.equal(flipped.x, x)
    opened = poisoned(Attack("backdoor", frozenset({"c1"}), 1.0, 0), Examples(x, y), rows, 3, 1.0)
    assert opened.y.tolist() == [0, 1, 2, TARGET, TARGET, TARGET]
    assert torch.equal(opened.x[:3], x[:3])
    assert float(opened.x[4, 0, 7, 7]) == 7.0
    assert float(opened.x[4].sum()) == 7.0
    assert float(x.sum()) == 7.0  # the data itself is left alone


def test_tokens_cannot_be_patched() -> None:
    with pytest.raises(hw.ConfigError, match="tokens"):
        patched(torch.zeros(2, 5, dtype=torch.int64), 1.0)


@pytest.mark.parametrize(("rule", "least", "most"), [("none", 0.0, 0.5), ("median", 0.8, 1.0)])
def test_a_median_survives_what_a_mean_does_not(rule: str, least: float, most: float) -> None:
    run = hw.run("fedavg", **SHORT, robust__server=rule, attack__kind="sign-flip")
    assert least <= run.accuracy <= most
    assert run.result["attack"]["kind"] == "sign-flip"
    assert len(run.result["attack"]["by"]) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["cnn", "mlp"])  # one by one, and stacked
@pytest.mark.parametrize("method", ["fedhead", "feddf", "hfedavg", "scaffold"])
def test_defended_methods_learn_and_engines_agree(method: str, model: str) -> None:
    both = {"model": model, "robust__server": "median", "robust__sector": "trimmed-mean", "attack__kind": "gaussian"}
    runs = [hw.run(method, **SHORT | both | {"engine": engine}) for engine in ("inline", "pool")]
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]
    assert runs[0].accuracy > 0.5


@pytest.mark.thorough
def test_a_backdoor_is_measured() -> None:
    run = hw.run("fedavg", **SHORT, attack__kind="backdoor", attack__share=0.4)
    open_door = run.result["attack_success"]
    assert run.history[-1]["attack_success"] == open_door
    assert open_door > 0.5
    assert (
        hw.run("fedavg", **SHORT, attack__kind="backdoor", attack__share=0.4, robust__server="median").result[
            "attack_success"
        ]
        < open_door
    )


@pytest.mark.thorough
def test_a_rule_that_nothing_needs_changes_nothing_but_digits() -> None:
    """Without an attack, and with clients alike, a rule costs little."""
    plain, robust = (hw.run("fedavg", **SHORT, robust__server=rule).accuracy for rule in ("none", "geometric-median"))
    assert robust > plain - 0.05


def test_parties_do_not_simulate_attacks() -> None:
    with pytest.raises(hw.ConfigError, match="simulates an attack"):
        check(Config(attack={"kind": "scale"}), Path("nowhere"), force=False)
