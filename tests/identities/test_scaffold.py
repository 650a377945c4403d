"""B3: SCAFFOLD's variates are gradients, their mean is the server's whoever takes part, and it reaches the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bowls
import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.scaffold import Scaffold
from headwater.errors import ConfigError
from headwater.specs import LocalSpec

SIZES = (5, 1, 3, 8, 2, 4)
MAP = (0, 1, 0, 1, 1, 2)
EPOCHS = LocalSpec(epochs=2, batch=2, lr=0.05)  # 6, 2, 4, 8, 2 and 4 steps
NETS = [toys.blobs(n, seed=i) for i, n in enumerate(SIZES)]


def mean_of_variates(lab: toys.Lab, by: str = "uniform") -> np.ndarray:
    found = bowls.values(lab, lab.state.own)
    sizes = {c: lab.tree.sizes[c] if by == "samples" else 1.0 for c in lab.tree.holders}
    zero = np.zeros_like(lab.vector.numpy())
    return sum((sizes[c] * found.get(c, zero) for c in sizes), zero) / sum(sizes.values())


@pytest.mark.parametrize("by", ["uniform", "samples"])
@pytest.mark.parametrize(
    "options", [{}, {"reconstruct": True}, {"through_sectors": True}, {"variates": "gradient"}], ids=str
)
def test_b3_common_is_the_mean_of_own(options: dict[str, Any], by: str) -> None:
    """B3, with mini-batches on a net, unequal sizes, others in every round, and some lost in the middle of one."""
    method = Scaffold(EPOCHS, by=by, **options)
    for dropout in (0.0, 0.15):
        with toys.lab(method, NETS, MAP, toys.net, classes=3, dropout=dropout) as lab:
            for number in range(1, 4):
                lab.round(number, None if dropout else bowls.half(lab, number))
                common = bowls.values(lab, lab.state.common)["server"]
                assert np.abs(common - mean_of_variates(lab, by)).max() <= 1e-10
            assert np.abs(common).max() > 1e-3
            assert not dropout or any(not notes for notes in lab.notes("local_train").values())


def test_only_those_who_took_part_hold_a_variate() -> None:
    with toys.lab(Scaffold(EPOCHS), NETS, MAP, toys.net, classes=3) as lab:
        assert not lab.state.own.nodes
        lab.round(1, ("c0", "c3")).round(2, ("c3", "c5"))
        assert set(lab.state.own.nodes) == {"c0", "c3", "c5"}


@pytest.mark.parametrize("spec", [EPOCHS, LocalSpec(steps=3, batch=99, lr=0.1)], ids=["epochs", "steps"])
def test_b3_variates_of_option_ii_are_mean_gradients(spec: LocalSpec) -> None:
    """B3: after a round c_i is the mean of the gradients that this client used, over its own number of steps.

    With epochs clients of unequal sizes take unequally many; dividing all by one number is the usual slip.
    """
    clients, losses = bowls.bowls(6, 1, rows=SIZES)
    with toys.lab(Scaffold(spec), clients, MAP, toys.Bowl) as lab:
        own = {f"c{i}": np.zeros(2) for i in range(6)}
        for number in range(1, 4):
            start, common = lab.vector.numpy().copy(), bowls.values(lab, lab.state.common)["server"]
            lab.round(number)
            found = bowls.values(lab, lab.state.own)
            for i, loss in enumerate(losses):
                steps = spec.steps or 2 * -(-SIZES[i] // 2)
                w, used = start, []
                for _ in range(steps):
                    used.append(loss.gradient(w))
                    w = w - spec.lr * (used[-1] - own[f"c{i}"] + common)
                assert np.abs(found[f"c{i}"] - np.mean(used, axis=0)).max() <= 1e-10
            own = found


FEW = (2, 1, 3, 4)
PAIRS = (0, 0, 1, 1)
FAST = LocalSpec(epochs=1, batch=2, lr=0.2)  # 1, 1, 2 and 2 steps


@pytest.mark.parametrize(
    ("options", "who", "rounds"),
    [
        ({}, None, 60),
        ({"reconstruct": True}, bowls.half, 120),
        pytest.param({"variates": "gradient"}, bowls.half, 120, marks=pytest.mark.thorough),
        pytest.param({"server_lr": 0.7}, None, 100, marks=pytest.mark.thorough),
    ],
)
def test_b3_reaches_the_optimum(options: dict[str, Any], who: Any, rounds: int) -> None:
    """B3: also with unequal steps and half of the clients a round."""
    clients, losses = bowls.bowls(4, 2, rows=FEW)
    assert bowls.error(bowls.run(Scaffold(FAST, **options), clients, PAIRS, rounds, who), bowls.optimum(losses)) <= 1e-9


def test_by_samples_reaches_the_weighted_optimum() -> None:
    clients, losses = bowls.bowls(4, 3, rows=FEW)
    found = bowls.run(Scaffold(FAST, by="samples"), clients, PAIRS, 60)
    assert bowls.error(found, bowls.optimum(losses, FEW)) <= 1e-9


@pytest.mark.parametrize("other", [{"reconstruct": True}, {"through_sectors": True}], ids=str)
@pytest.mark.parametrize("by", ["uniform", "samples"])
def test_other_ways_to_the_same_end(other: dict[str, Any], by: str) -> None:
    plain, also = (
        toys.play(Scaffold(EPOCHS, by=by, **options), NETS, MAP, toys.net, 3, classes=3) for options in ({}, other)
    )
    assert toys.gap(plain, also) <= 1e-10
    assert toys.gap(plain, toys.play(FedAvg(EPOCHS, by=by), NETS, MAP, toys.net, 3, classes=3)) > 1e-4


def test_first_round_is_fedavgs() -> None:
    """There is nothing to correct with yet."""
    first = toys.play(Scaffold(EPOCHS), NETS, MAP, toys.net, classes=3)
    assert toys.gap(first, toys.play(FedAvg(EPOCHS, by="uniform"), NETS, MAP, toys.net, classes=3)) <= 1e-12


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"momentum": 0.5}, {"lr_time_decay": 0.1}], ids=str)
def test_option_i_takes_any_optimiser(options: dict[str, Any]) -> None:
    local = LocalSpec(epochs=1, **options)
    with pytest.raises(ConfigError, match="variates = 'gradient'"):
        Scaffold(local)
    assert Scaffold(local, variates="gradient").local is local


@pytest.mark.parametrize("options", [{"variates": "gradient"}, {"through_sectors": True}], ids=str)
def test_what_cannot_be_reconstructed(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reconstruct"):
        Scaffold(EPOCHS, reconstruct=True, **options)
