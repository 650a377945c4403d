"""One round of every method that keeps or samples several models, worked out by hand on a model of two numbers."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

import toys
from headwater.algorithms.fed_ensemble import FedEnsemble
from headwater.algorithms.fedbe import FedBe
from headwater.algorithms.fedeed import FedEed
from headwater.core.sampling import deal, turns
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.task import TaskContext

LN2 = log(2)
REFERENCE = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
# P(class 0 | x) = odds(e) where e · ln 2 is the difference of the logits. From (0, 0), one step of 4 ln 2 takes c0 to
# 2 ln 2 · (1, −1) and c1 to −4 ln 2 · (1, −1).
TWO = [toys.points(*[(1, 0)] * 3), toys.points((2, 1))]
STEP = LocalSpec(steps=1, batch=4, lr=4 * LN2)


def odds(e: float) -> float:
    return 2**e / (1 + 2**e)


def near(*numbers: float) -> object:
    return pytest.approx(numbers, abs=1e-12)


def test_fedeed() -> None:
    """Two cohorts of one client each, T = 2 and the loss times T².

    The mean of the two logits is −ln 2·x·(1, −1), over T: odds(−x), ⅓ at x = 1 and ⅕ at 2. The designated model is
    c0's: odds(2x), ⅘ and 16/17. The gradient is ½·T·[1·(⅘ − ⅓) + 2·(16/17 − ⅕)] = 497/255, and the step 0.1.
    """
    server = DistillSpec(
        steps=1, batch=2, optimizer="sgd", lr=0.1, temperature=2.0, t2=True, mix="logits", weights="uniform"
    )
    with toys.lab(FedEed(STEP, server, 2), TWO, (0, 1), toys.Slopes, reference=REFERENCE) as lab:
        lab.round()
        assert deal(("c0", "c1"), 2, lab.fed.rng("cohorts")) == {0: ("c0",), 1: ("c1",)}
        found = {k: tuple(lab.fed.read(model).vector.tolist()) for k, model in lab.state.models.items()}
    taught = 2 * LN2 - 0.1 * 497 / 255
    assert found == {0: near(taught, -taught), 1: near(-4 * LN2, 4 * LN2)}


def test_fedeed_with_the_round_before() -> None:
    """R = 2 and one cohort: this round's average and the last one's teach.

    Bowls ½(w−b)ᵀA(w−b) tell what is averaged: after two rounds of one step of 0.5 the ring holds the averages of both
    rounds, the newer first. c0 (A = diag(1, 2), b = (1, 1), 3 rows), c1 (A = diag(2, 1), b = (−1, 2), 1 row):
    first (0.5, 1) and (−1, 1), mean (0.125, 1); then from there (0.5625, 1) and (−1, 1.5), mean (0.171875, 1.125).
    """
    clients = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
    method = FedEed(LocalSpec(steps=1, batch=8, lr=0.5), DistillSpec(epochs=0), 1, 2, consolidate="none")
    with toys.lab(method, clients, (0, 1), toys.Bowl) as lab:
        lab.round(1).round(2)
        ring = [tuple(lab.fed.read(models[0]).vector.tolist()) for models in lab.state.ring]
    assert ring == [near(0.171875, 1.125), near(0.125, 1.0)]


def test_fedbe() -> None:
    """Without samples: the average (½ ln 2 by 3 and 1 samples), c0 and c1 teach.

    Their probabilities at x are odds(x), odds(4x) and odds(−8x); the mean m is sharpened to m²/(m² + (1 − m)²). The
    student is the average; the gradient is ½·Σ_x x·(odds(x) − teacher), and the step 0.5.
    """
    server = DistillSpec(steps=1, batch=2, optimizer="sgd", lr=0.5, weights="uniform", sharpen=0.5)
    found = toys.play(FedBe(STEP, server, samples=0), TWO, (0, 1), toys.Slopes, reference=REFERENCE)
    gradient = 0.0
    for x in (1, 2):
        m = (odds(x) + odds(4 * x) + odds(-8 * x)) / 3
        gradient += 0.5 * x * (odds(x) - m**2 / (m**2 + (1 - m) ** 2))
    expected = 0.5 * LN2 - 0.5 * gradient
    assert tuple(found.vector.tolist()) == near(expected, -expected)
    assert abs(gradient) > 0.05


def test_fedbe_with_samples() -> None:
    """Gaussian: mean ½ ln 2, variance ¾·(3/2 ln 2)² + ¼·(9/2 ln 2)² = 27/4·ln²2 of each number.

    Only the one sample teaches: its difference of logits is x·[ln 2 + √(27/4)·ln 2·(z_0 − z_1)] for its noise z, which
    the task's stream gives again.
    """
    server = DistillSpec(steps=1, batch=2, optimizer="sgd", lr=0.5)
    method = FedBe(STEP, server, samples=1, with_average=False, with_clients=False)
    with toys.lab(method, TWO, (0, 1), toys.Slopes, reference=REFERENCE) as lab:
        lab.round()
        z = TaskContext(lab.context, "server", (1, "sample_models", 0, "server")).rng.standard_normal(2)
        found = lab.vector.tolist()
    apart = 1 + np.sqrt(27 / 4) * (z[0] - z[1])
    gradient = sum(0.5 * x * (odds(x) - odds(apart * x)) for x in (1, 2))
    expected = 0.5 * LN2 - 0.5 * gradient
    assert tuple(found) == near(expected, -expected)


def test_fed_ensemble() -> None:
    """Two rounds with two models: c0 takes w to w − ½·diag(1, 2)(w − (1, 1)), c1 to w − ½·diag(2, 1)(w − (−1, 2)).

    From (0, 0): c0 then c1 gives (0.5, 1), then (−1, 1.5); c1 then c0 gives (−1, 1), then (0, 1); both at once
    (0.125, 1), by 3 and 1 samples. A model that nobody trains stays.
    """
    clients = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
    after = {"c0": lambda w: (0.5 * w[0] + 0.5, 1.0), "c1": lambda w: (-1.0, 0.5 * w[1] + 1)}
    seen = set()
    for seed in range(4):
        expected = {0: (0.0, 0.0), 1: (0.0, 0.0)}
        for number in (1, 2):
            for k, team in turns(("c0", "c1"), 2, seed, number).items():
                went = [after[client](expected[k]) for client in team]
                share = [0.75, 0.25] if len(team) == 2 else [1.0]
                expected[k] = tuple(float(np.dot(share, column)) for column in zip(*went, strict=True))
                seen.add((number, team))
        method = FedEnsemble(LocalSpec(steps=1, batch=8, lr=0.5), 2)
        with toys.lab(method, clients, (0, 1), toys.Bowl, seed=seed) as lab:
            lab.round(1).round(2)
            found = {k: tuple(lab.fed.read(model).vector.tolist()) for k, model in lab.state.members.items()}
        assert found == {k: near(*w) for k, w in expected.items()}
        assert set(expected.values()) <= {(-1.0, 1.5), (0.0, 1.0), (0.125, 1.0), (0.171875, 1.125)}
    assert {team for _, team in seen} == {("c0",), ("c1",), ("c0", "c1")}
