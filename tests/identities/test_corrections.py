"""B1, B2, A6 and what else pulls, momentum and sector rounds amount to; then all these methods on quadratics.

On quadratics with full batches the biased methods come to rest where a linear map says, which is solved for here; the
correcting ones come to rest at the optimum. `experiments/quadratics` does the same in ten larger settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bowls
import toys
from chosen import further
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedavgm import FedAvgM
from headwater.algorithms.feddyn import FedDyn
from headwater.algorithms.fedprox import FedProx
from headwater.algorithms.hfedavg import HFedAvg
from headwater.algorithms.hfeddyn import HFedDyn
from headwater.algorithms.hfedprox import HFedProx
from headwater.algorithms.hscaffold import HScaffold
from headwater.algorithms.mtgc import Mtgc
from headwater.algorithms.scaffold import Scaffold
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec

SIZES = (5, 1, 3, 8, 2, 4)
MAP = (0, 1, 0, 1, 1, 2)
BATCHES = LocalSpec(epochs=2, batch=2, lr=0.2)
NETS = [toys.blobs(n, seed=i) for i, n in enumerate(SIZES)]


def net(method: object, rounds: int = 3, **options: Any) -> torch.Tensor:
    """The model after some rounds with mini-batches on a net."""
    return toys.play(method, NETS, MAP, toys.net, rounds, classes=3, **options).vector


# -- FedProx


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_b1_fedprox(by: str) -> None:
    """B1: no pull is FedAvg; a strong one holds every client where it started."""
    assert toys.gap(net(FedProx(BATCHES, mu=0.0, by=by)), net(FedAvg(BATCHES, by=by))) <= 1e-12
    short = replace(BATCHES, lr=1e-4)
    start = toys.context(NETS, toys.net, classes=3).initial(toys.ARCH, 0).vector
    free, held = net(FedProx(short, mu=0.0, by=by), 1), net(FedProx(short, mu=9000.0, by=by), 1)
    # every step but the first goes back to 1/10 of the way out: 1 − 1e-4·9000
    assert toys.gap(held, start) < 0.5 * toys.gap(free, start)


def test_b1_in_the_limit() -> None:
    """With mu · lr = 1 the pull undoes all former steps: a client ends one step from its start."""
    clients, losses = bowls.bowls(3, 1)
    found = bowls.run(FedProx(LocalSpec(steps=9, batch=9, lr=1e-6), mu=1e6), clients, (0, 0, 0), 1)
    once = -1e-6 * np.mean([loss.gradient(np.zeros(2)) for loss in losses], axis=0)
    assert np.abs(found.vector.numpy() - once).max() <= 1e-10


def test_hierarchical_fedprox_without_pull_is_hfedavg() -> None:
    for by in ("samples", "uniform"):
        plain = net(HFedAvg(BATCHES, sector_rounds=3, by=by))
        assert toys.gap(net(HFedProx(BATCHES, sector_rounds=3, mu=0.0, by=by)), plain) <= 1e-12
        assert toys.gap(net(HFedProx(BATCHES, sector_rounds=3, mu=1.0, by=by)), plain) > 1e-3


def test_hierarchical_fedprox_once_is_fedprox() -> None:
    assert toys.gap(net(HFedProx(BATCHES, sector_rounds=1, mu=0.7)), net(FedProx(BATCHES, mu=0.7))) <= 1e-10


class TestStragglers:
    """Who is one and for how long follows from seed, round and client alone."""

    def work(self, share: float, length: dict[str, int], rounds: int = 40) -> dict[tuple[int, str], int]:
        method = FedProx(LocalSpec(**length), stragglers=share)
        with toys.lab(method, NETS, MAP, toys.net, classes=3) as lab:
            views = {number: lab.fed.begin(number, lab.tree.holders) for number in range(1, rounds + 1)}
            works = {(n, c): method._work(fed, c) for n, fed in views.items() for c in fed.clients}
        return {key: getattr(spec, next(iter(length))) for key, spec in works.items()}

    @pytest.mark.parametrize("unit", ["epochs", "steps"])
    def test_lengths(self, unit: str) -> None:
        found = self.work(0.5, {unit: 5})
        short = [n for n in found.values() if n < 5]
        assert set(short) == {1, 2, 3, 4}
        assert 0.4 < len(short) / len(found) < 0.6  # 240 draws: four standard deviations are 0.13
        assert found == self.work(0.5, {unit: 5})

    def test_none_and_all(self) -> None:
        assert set(self.work(0.0, {"epochs": 5}).values()) == {5}
        assert set(self.work(1.0, {"epochs": 5}).values()) == {1, 2, 3, 4}
        assert set(self.work(1.0, {"epochs": 1}).values()) == {1}

    def test_they_are_used(self) -> None:
        """A round with stragglers is one in which each client trains for so many epochs."""
        method = FedProx(replace(BATCHES, epochs=4), mu=0.1, stragglers=0.6)
        with toys.lab(method, NETS, MAP, toys.net, classes=3) as lab:
            fed = lab.fed.begin(1, lab.tree.holders)
            lengths = {c: method._work(fed, c).epochs for c in fed.clients}
            slow = next(c for c, n in lengths.items() if n is not None and n < 4)
            alone = lab.round(1, (slow,)).vector
        steady = FedProx(replace(BATCHES, epochs=lengths[slow]), mu=0.1)
        with toys.lab(steady, NETS, MAP, toys.net, classes=3) as lab:
            assert torch.equal(alone, lab.round(1, (slow,)).vector)


# -- FedAvgM


def test_b2_without_momentum() -> None:
    """B2: beta = 0 is FedAvg in every form."""
    plain = net(FedAvg(BATCHES))
    for form in ("A", "B", "C"):
        assert toys.gap(net(FedAvgM(BATCHES, beta=0.0, form=form)), plain) <= 1e-12
        assert toys.gap(net(FedAvgM(BATCHES, beta=0.5, form=form)), plain) > 1e-3


@pytest.mark.parametrize(("form", "damping"), [("A", 1.0), ("B", 0.4)])
def test_b2_closed_form(form: str, damping: float) -> None:
    """B2: v_t = Σ_s beta^(t−s) Δ_s (times 1 − beta in form B), Δ being the model less FedAvg's mean."""
    clients, _ = bowls.bowls(4, 2, rows=SIZES[:4])
    spec, beta, slopes = LocalSpec(steps=2, batch=99, lr=0.1), 0.6, []
    with toys.lab(FedAvgM(spec, beta=beta, form=form), clients, (0, 0, 1, 1), toys.Bowl) as lab:
        for number in range(1, 6):
            before = lab.vector.clone()
            mean = toys.play(FedAvg(spec), clients, (0, 0, 1, 1), lambda w=before: toys.Bowl(tuple(w.tolist())))
            slopes.append(before - mean.vector)
            after = lab.round(number).vector
            velocity = sum(damping * beta ** (len(slopes) - 1 - s) * slope for s, slope in enumerate(slopes))
            found = bowls.values(lab, lab.state.velocity)["server"]
            assert np.abs(found - np.asarray(velocity)).max() <= 1e-10
            assert toys.gap(after, before - velocity) <= 1e-10


def test_fedavgm_takes_statistics_from_the_mean() -> None:
    clients = [toys.blobs(n, seed=n, dtype=torch.float32) for n in (24, 8)]
    spec = LocalSpec(epochs=1, batch=8, lr=0.1)
    found = [toys.play(m, clients, (0, 1), toys.normed, 1, classes=3) for m in (FedAvg(spec), FedAvgM(spec, form="C"))]
    size = found[0].layout.size
    assert torch.equal(found[0].vector[size:], found[1].vector[size:])
    assert torch.equal(found[0].counters, found[1].counters)
    assert toys.gap(found[0].trainable, found[1].trainable) > 1e-3


@pytest.mark.parametrize(
    "method",
    [
        FedProx(BATCHES, mu=0.3, stragglers=0.5),
        FedAvgM(BATCHES),
        FedProx(BATCHES, by="uniform"),
        FedAvgM(BATCHES, by="uniform"),
    ],
    ids=lambda m: f"{type(m).__name__}-{m.by}",
)
def test_through_sectors_is_the_same(method: Any) -> None:
    assert toys.gap(net(method), net(replace(method, through_sectors=True))) <= 1e-10


# -- quadratics


COUNT, SECTORS = 4, (0, 0, 1, 1)
CLIENTS_Q, LOSSES = bowls.bowls(COUNT, 21)
TARGET = bowls.optimum(LOSSES)
STEPS, LR = 3, 0.2
SPEC = LocalSpec(steps=STEPS, batch=9, lr=LR)


def after_steps(i: int, mu: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """STEPS full-batch steps of client i from x as (M, c) of x → Mx + c; with a pull of mu to x."""
    a, b = LOSSES[i].curvature, LOSSES[i].centre
    one = np.eye(2) - LR * (a + mu * np.eye(2))
    power, sums = np.eye(2), np.zeros((2, 2))
    for _ in range(STEPS):
        sums, power = sums + power, power @ one
    return power + LR * mu * sums, LR * sums @ a @ b


def averaged_rest(mu: float = 0.0) -> np.ndarray:
    """Where x = mean over clients of their ends, solved exactly."""
    ends = [after_steps(i, mu) for i in range(COUNT)]
    matrix, constant = (np.mean([end[k] for end in ends], axis=0) for k in (0, 1))
    return np.linalg.solve(np.eye(2) - matrix, constant)


def paced_rest(paces: int, mu: float = 0.0) -> np.ndarray:
    """The same of sectors that average several times before the server does."""
    maps = []
    for team in ((0, 1), (2, 3)):
        ends = [after_steps(i, mu) for i in team]
        m, c = (np.mean([end[k] for end in ends], axis=0) for k in (0, 1))
        whole, constant = np.eye(2), np.zeros(2)
        for _ in range(paces):
            whole, constant = m @ whole, m @ constant + c
        maps.append((whole, constant))
    matrix, constant = (np.mean([each[k] for each in maps], axis=0) for k in (0, 1))
    return np.linalg.solve(np.eye(2) - matrix, constant)


@pytest.mark.parametrize(
    ("method", "rounds", "rest"),
    [
        further(FedAvg(SPEC), 40, averaged_rest),
        further(FedAvgM(SPEC, beta=0.3), 60, averaged_rest),  # momentum moves to the same place
        (FedProx(SPEC, mu=0.5), 50, lambda: averaged_rest(0.5)),
        further(HFedAvg(SPEC, sector_rounds=2), 25, lambda: paced_rest(2)),
        (HFedProx(SPEC, sector_rounds=2, mu=0.5), 30, lambda: paced_rest(2, 0.5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_biased_methods_rest_where_theory_says(method: object, rounds: int, rest: Callable[[], np.ndarray]) -> None:
    """A6: not at the optimum, but exactly where the linear map of a round has its fixed point."""
    found = bowls.run(method, CLIENTS_Q, SECTORS, rounds)
    assert bowls.error(found, rest()) <= 1e-8
    assert bowls.error(found, TARGET) > 1e-3


# With alpha = 1 two steps of 1/2 and 1/4 are an exact local solve of these bowls.
EXACT = LocalSpec(steps=2, batch=9, lr=0.5, lr_time_decay=1.0)
PACE = LocalSpec(steps=2, batch=9, lr=0.15)


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (Scaffold(SPEC), 60),
        further(FedDyn(EXACT, dyn_alpha=1.0), 70),
        further(Mtgc(PACE), 30),
        (Mtgc(PACE, z_init="gradient"), 30),
    ],
    ids=["scaffold", "feddyn", "mtgc keep", "mtgc gradient"],
)
def test_correcting_methods_rest_at_the_optimum(method: object, rounds: int) -> None:
    assert bowls.error(bowls.run(method, CLIENTS_Q, SECTORS, rounds), TARGET) <= 1e-9


def test_half_corrected_methods_do_not() -> None:
    """z alone, y alone, z from zero: M4; sectors that nobody corrects leave HScaffold and HFedDyn off as well."""
    methods = (HScaffold(PACE), Mtgc(PACE, use_z=False), Mtgc(PACE, z_init="zero"), HFedDyn(EXACT, dyn_alpha=1.0))
    found = [bowls.error(bowls.run(method, CLIENTS_Q, SECTORS, 10), TARGET) for method in methods]
    assert min(found) > 1e-3


# -- the whole loop


@pytest.mark.parametrize("method", ["scaffold", "mtgc", "hscaffold", "feddyn", "hfeddyn"])
def test_trains_with_what_suits_it(method: str) -> None:
    """With the method's own defaults, well above the third that a guess gets."""
    assert toys.tiny_run(method, rounds=6, local={"epochs": 4, "lr": 0.2}).accuracy > 0.55


@pytest.mark.parametrize("kind", [Scaffold, FedDyn, HFedDyn])
def test_batch_norm_is_spoken_of(kind: type) -> None:
    method = kind()
    assert method.cautions(ModelSpec("mlp", (3,), 3)) == ()
    assert "batch norm" in method.cautions(ModelSpec("custom", (3,), 3, builder=toys.normed))[0]
