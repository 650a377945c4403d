"""FedNova: a round by hand, when it is FedAvg, where it stays, what it refuses, and the bytes that it sends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bowls
import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fednova import FedNova, effective_steps
from headwater.errors import ConfigError
from headwater.specs import LocalSpec

# ½(w−b)ᵀA(w−b) has the gradient A(w−b). With batches of two rows, c0 takes two steps an epoch and c1 one.
CLIENTS = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
EPOCH = LocalSpec(epochs=1, batch=2, lr=0.5)
SIZES, MAP = (5, 1, 3, 8, 2, 4), (0, 1, 0, 1, 1, 2)
NETS = [toys.blobs(n, seed=i) for i, n in enumerate(SIZES)]


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize(
    ("by", "momentum", "expected"),
    [("samples", 0.0, (0.0546875, 1.09375)), ("uniform", 0.0, (-0.46875, 1.125)), ("samples", 0.5, (0.10625, 1.4875))],
)
def test_by_hand(by: Any, momentum: float, expected: tuple[float, float], through: bool) -> None:
    """Both start at (0, 0).

    c0: gradient (−1, −2), so (0.5, 1); then (−0.5, 0), so (0.75, 1): in two steps, (0.375, 0.5) per step.
    c1: gradient (2, −2), so (−1, 1) in its only step.
    By 3 and 1 samples: ¾·(0.375, 0.5) + ¼·(−1, 1) = (0.03125, 0.625), times ¾·2 + ¼·1 = 1.75.
    Alike: ½·(0.375, 0.5) + ½·(−1, 1) = (−0.3125, 0.75), times 1.5.
    With momentum ½ the second velocity of c0 is ½·(−1, −2) + (−0.5, 0) = (−1, −1), so (1, 1.5). Its gradients count
    1 + 1.5 = 2.5 times: (0.4, 0.6). ¾·(0.4, 0.6) + ¼·(−1, 1) = (0.05, 0.7), times ¾·2.5 + ¼ = 2.125.
    """
    spec = LocalSpec(epochs=1, batch=2, lr=0.5, momentum=momentum)
    found = toys.play(FedNova(spec, by=by, through_sectors=through), CLIENTS, (0, 1), toys.Bowl)
    assert tuple(found.vector.tolist()) == pytest.approx(expected, abs=1e-12)
    assert found.weight == (4 if by == "samples" else 2)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_effective_steps_are_the_papers_closed_form(momentum: float) -> None:
    for steps in (0, 1, 2, 7, 40):
        closed = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        assert effective_steps(steps, momentum) == pytest.approx(closed, abs=1e-9)


@pytest.mark.parametrize("by", ["samples", "uniform"])
@pytest.mark.parametrize("through", [False, True])
def test_is_fedavg_to_the_bit_if_all_take_the_same_steps(by: Any, through: bool) -> None:
    equal, unequal = LocalSpec(steps=3, batch=2, lr=0.05, momentum=0.9), LocalSpec(epochs=1, batch=2, lr=0.05)
    for spec, same in ((equal, True), (unequal, False)):
        nova, avg = (
            toys.play(kind(spec, by=by, through_sectors=through), NETS, MAP, toys.net, 3, classes=3)
            for kind in (FedNova, FedAvg)
        )
        assert torch.equal(nova.vector, avg.vector) is same


def test_tells_whether_it_is_fedavg() -> None:
    assert FedNova(EPOCH).same_as([[3, 1], [4, 0]]) == ("fedavg", "all clients take the same number of local steps")
    assert FedNova(EPOCH).same_as([[3, 2], [4, 0]]) is None


def test_stays_at_the_optimum_of_the_weighted_loss() -> None:
    """FedAvg leaves it, because its clients count by samples times steps. What is left to FedNova is of order lr²."""
    rows = (2, 1, 6, 12)  # 1, 1, 3 and 6 steps
    clients, losses = bowls.bowls(4, 2, rows=rows)
    spec, target = LocalSpec(epochs=1, batch=2, lr=1e-4), bowls.optimum(losses, rows)
    at_target = lambda: toys.Bowl(tuple(target))  # noqa: E731
    nova, avg = (
        bowls.error(toys.play(kind(spec), clients, (0, 0, 1, 1), at_target), target) for kind in (FedNova, FedAvg)
    )
    assert nova < 1e-6
    assert avg > 100 * nova


def test_a_client_without_a_step_changes_only_the_weights() -> None:
    """Without the smaller last batch, c1 takes no step: half an update of c0, in two steps, times ½·2."""
    clients = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=4), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
    spec = LocalSpec(epochs=1, batch=2, lr=0.5, drop_last=True)
    found = toys.play(FedNova(spec, by="uniform"), clients, (0, 1), toys.Bowl)
    assert tuple(found.vector.tolist()) == pytest.approx((0.1875, 0.25), abs=1e-12)
    nobody = toys.play(FedNova(spec), clients[1:], (0,), toys.Bowl)
    assert nobody.vector.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("optimizer", "adam"), ("lr_time_decay", 0.1), ("low_bit", "feedback")],
)
def test_refuses_steps_that_it_cannot_count(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"local\.{key} = {value!r} .* use optimizer = 'sgd'"):
        FedNova(LocalSpec(epochs=1, **{key: value}))


@pytest.mark.parametrize(("through", "long"), [(False, 5), (True, 2)])
def test_bytes(through: bool, long: int) -> None:
    """A model each way per client, and on the long link one per client or one per sector: as FedAvg's."""
    run = toys.tiny_run("fednova", rounds=1, algorithm={"through_sectors": through})
    model = next(iter(run.params.values())).nbytes
    assert run.ledger.of_round(1) == {
        "server_sector": {"up": long * model, "down": long * model},
        "sector_client": {"up": 5 * model, "down": 5 * model},
    }
