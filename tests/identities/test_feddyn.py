"""B4: with exact local solves FedDyn's own vectors are gradients, h is their mean, and all settles at the optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bowls
import toys
from headwater.algorithms.feddyn import FedDyn
from headwater.algorithms.hfeddyn import HFedDyn
from headwater.specs import LocalSpec

SIZES = (5, 1, 3, 8, 2, 4)
MAP = (0, 1, 0, 1, 1, 2)
# Two steps solve exactly: with alpha = 1 curvatures are 2 and 4, which steps of 1/2 and of 1/4 take out one each.
EXACT = LocalSpec(steps=2, batch=99, lr=0.5, lr_time_decay=1.0)
SHORT = LocalSpec(steps=3, batch=99, lr=0.1)
NETS = [toys.blobs(n, seed=i) for i, n in enumerate(SIZES)]


@pytest.mark.parametrize("who", [None, bowls.half], ids=["everybody", "half"])
def test_b4_exact_solves(who: Any) -> None:
    """B4: own_i = ∇F_i(θ_i) for those who came, h = mean of own over all, and own and h stay so for the others."""
    clients, losses = bowls.bowls(6, 1)
    with toys.lab(FedDyn(EXACT, dyn_alpha=1.0), clients, MAP, toys.Bowl) as lab:
        own = {f"c{i}": np.zeros(2) for i in range(6)}
        for number in range(1, 7):
            start, came = lab.vector.numpy().copy(), who(lab, number) if who else lab.tree.holders
            lab.round(number, came)
            found = bowls.values(lab, lab.state.own)
            for client in came:
                theta = start - (found[client] - own[client])  # own ← own − alpha (θ − start), alpha = 1
                assert np.abs(losses[int(client[1:])].gradient(theta) - found[client]).max() <= 1e-10
            own |= found
            h = bowls.values(lab, lab.state.h)["server"]
            assert np.abs(h - np.mean(list(own.values()), axis=0)).max() <= 1e-10
        assert np.abs(h).max() > 1e-6


@pytest.mark.parametrize("who", [None, pytest.param(bowls.half, marks=pytest.mark.thorough)], ids=["everybody", "half"])
def test_b4_reaches_the_optimum(who: Any) -> None:
    """B4: the model that is sent and the averaged one both, and h vanishes."""
    clients, losses = bowls.bowls(6, 2)
    target = bowls.optimum(losses)
    with toys.lab(FedDyn(EXACT, dyn_alpha=1.0), clients, MAP, toys.Bowl) as lab:
        for number in range(1, 181 if who else 61):
            lab.round(number, who(lab, number) if who else None)
        assert bowls.error(lab.model, target) <= 1e-9
        assert bowls.error(bowls.values(lab, lab.state.also["averaged"])["server"], target) <= 1e-9
        assert np.abs(bowls.values(lab, lab.state.h)["server"]).max() <= 1e-9


@pytest.mark.thorough
def test_alpha_by_size_reaches_the_weighted_optimum() -> None:
    """Everything comes to rest where Σ n_i ∇F_i = 0, or Σ ∇F_i = 0 with equal alphas; solves need not be exact."""
    sizes = (4, 2, 2)
    clients, losses = bowls.bowls(3, 3, rows=sizes)
    method = FedDyn(replace(EXACT, steps=4), dyn_alpha=1.0, alpha_by="size")
    assert bowls.error(bowls.run(method, clients, (0, 0, 1), 80), bowls.optimum(losses, sizes)) <= 1e-9
    alike = replace(method, alpha_by="equal")
    assert bowls.error(bowls.run(alike, clients, (0, 0, 1), 80), bowls.optimum(losses)) <= 1e-9


def memory_form(losses: list[Any], alphas: list[float], alpha: float, rounds: list[list[int]]) -> np.ndarray:
    """The official program's variables: m_i += θ_i − x, x = mean of those who came + mean of all m, and a penalty
    α⟨θ, m_i − x⟩ with α added to the weight decay."""
    x, memory = np.zeros(2), np.zeros((len(losses), 2))
    for came in rounds:
        after = []
        for i in came:
            theta = x
            for _ in range(SHORT.steps or 0):
                slope = losses[i].gradient(theta) + alphas[i] * (memory[i] - x) + alphas[i] * theta
                theta = theta - SHORT.lr * slope
            after.append((i, theta))
        for i, theta in after:
            memory[i] += theta - x
        x = np.mean([theta for _, theta in after], axis=0) + memory.mean(axis=0)
    return x


@pytest.mark.parametrize("alpha_by", ["equal", "size"])
def test_b4_memory_form(alpha_by: str) -> None:
    """B4: the same numbers as in the official program's form, with few local steps and half of the clients."""
    clients, losses = bowls.bowls(6, 4, rows=SIZES)
    mean = sum(SIZES) / 6
    alphas = [0.3 * mean / n if alpha_by == "size" else 0.3 for n in SIZES]
    with toys.lab(FedDyn(SHORT, dyn_alpha=0.3, alpha_by=alpha_by), clients, MAP, toys.Bowl) as lab:
        rounds = [bowls.half(lab, number) for number in range(1, 6)]
        for number, came in enumerate(rounds, 1):
            lab.round(number, came)
        expected = memory_form(losses, alphas, 0.3, [[int(c[1:]) for c in came] for came in rounds])
        assert np.abs(lab.vector.numpy() - expected).max() <= 1e-10


def test_h_is_the_mean_of_own_when_clients_are_lost() -> None:
    """A client lost before it has both trained and updated its own vector counts in neither."""
    clients, _ = bowls.bowls(6, 5, rows=SIZES)
    lost = 0
    for seed in range(4):
        with toys.lab(FedDyn(SHORT, dyn_alpha=0.3), clients, MAP, toys.Bowl, dropout=0.2, seed=seed) as lab:
            lab.round(1)
            h, own = bowls.values(lab, lab.state.h)["server"], bowls.values(lab, lab.state.own)
            lost += 6 - len(own)
            assert np.abs(h - sum(own.values()) / 6).max() <= 1e-12
    assert lost > 4


def test_through_sectors_is_the_same() -> None:
    spec = LocalSpec(epochs=1, batch=4, lr=0.2)
    flat, staged = (
        toys.play(FedDyn(spec, dyn_alpha=0.1, through_sectors=through), NETS, MAP, toys.net, 3, classes=3)
        for through in (False, True)
    )
    assert toys.gap(flat, staged) <= 1e-10


def test_hierarchical_in_one_sector_is_flat() -> None:
    """One sector that is averaged once a round is all there is, so HFedDyn is FedDyn."""
    spec = LocalSpec(epochs=1, batch=4, lr=0.2)
    for alpha_by in ("equal", "size"):
        flat = toys.play(FedDyn(spec, dyn_alpha=0.1, alpha_by=alpha_by), NETS, (0,) * 6, toys.net, 3, classes=3)
        paced = HFedDyn(spec, sector_rounds=1, dyn_alpha=0.1, alpha_by=alpha_by)
        assert toys.gap(flat, toys.play(paced, NETS, (0,) * 6, toys.net, 3, classes=3)) <= 1e-12


def test_hierarchical_once_a_round_in_equal_sectors_is_flat() -> None:
    """Means over sectors of equal size are means over all, also of h; with unequal sectors they are not."""
    clients, _ = bowls.bowls(6, 7)
    paced = HFedDyn(SHORT, sector_rounds=1, dyn_alpha=0.3, alpha_by="equal")
    flat = bowls.run(FedDyn(SHORT, dyn_alpha=0.3), clients, MAP, 4)
    assert toys.gap(bowls.run(paced, clients, (0, 0, 1, 1, 2, 2), 4), flat) <= 1e-10
    assert toys.gap(bowls.run(paced, clients, MAP, 4), flat) > 1e-4


def test_hierarchical_sectors_settle_each_at_its_own_optimum() -> None:
    """In one long round a sector's model goes to the optimum of its own clients; the server takes the mean."""
    clients, losses = bowls.bowls(6, 6)
    found = bowls.run(HFedDyn(EXACT, sector_rounds=60, dyn_alpha=1.0, alpha_by="equal"), clients, MAP, 1)
    teams = [[losses[i] for i in range(6) if MAP[i] == sector] for sector in range(3)]
    assert bowls.error(found, np.mean([bowls.optimum(team) for team in teams], axis=0)) <= 1e-9
