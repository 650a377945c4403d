"""One round of every method on a model of two numbers, worked out by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

import toys
from headwater.algorithms.centralized import Centralized
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.algorithms.hfedavg import HFedAvg
from headwater.algorithms.local import Local
from headwater.specs import DistillSpec, LocalSpec

# Two clients of unlike curvature: ½(w−b)ᵀA(w−b) has the gradient A(w−b).
SMALL_FIRST = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
HALF = LocalSpec(steps=1, batch=8, lr=0.5)
TWICE = LocalSpec(epochs=2, batch=8, lr=0.5)


def near(*numbers: float) -> object:
    return pytest.approx(numbers, abs=1e-12)


def numbers(vector: torch.Tensor) -> tuple[float, ...]:
    return tuple(vector.tolist())


@pytest.mark.parametrize(("by", "expected"), [("samples", (0.3125, 1.125)), ("uniform", (-0.125, 1.25))])
@pytest.mark.parametrize("sectors", [(0, 0), (0, 1)])
def test_fedavg(by: str, expected: tuple[float, float], sectors: tuple[int, int]) -> None:
    """Both start at (0, 0) and take two steps of 0.5.

    c0: A = diag(1, 2), b = (1, 1): gradient (−1, −2), so (0.5, 1); then (−0.5, 0), so (0.75, 1).
    c1: A = diag(2, 1), b = (−1, 2): gradient (2, −2), so (−1, 1); then (0, −1), so (−1, 1.5).
    By 3 and 1 samples: ¾·0.75 − ¼ = 0.3125 and ¾ + ¼·1.5 = 1.125. Alike: −0.125 and 1.25. Sectors play no part.
    """
    result = toys.play(FedAvg(TWICE, by=by), SMALL_FIRST, sectors, toys.Bowl)
    assert numbers(result.vector) == near(*expected)
    assert result.weight == (4 if by == "samples" else 2)


def test_fedavg_through_sectors() -> None:
    """The mean of sector means by samples is the mean of clients by samples: the numbers of `test_fedavg`."""
    result = toys.play(FedAvg(TWICE, through_sectors=True), SMALL_FIRST, (0, 1), toys.Bowl)
    assert numbers(result.vector) == near(0.3125, 1.125)


def test_hfedavg() -> None:
    """Two averages at sectors (E = 2), a step of 0.5 each. s0 holds the clients above, s1 one with A = I, b = (2, −2).

    s0, first: c0 (0.5, 1), c1 (−1, 1), mean ¾·0.5 − ¼ = 0.125 and 1.
    s0, second, from (0.125, 1): c0 gradient (−0.875, 0), so (0.5625, 1); c1 gradient (2.25, −1), so (−1, 1.5);
    mean ¾·0.5625 − ¼ = 0.171875 and ¾ + ¼·1.5 = 1.125.
    s1: gradient (−2, 2), so (1, −1); then (−1, 1), so (1.5, −1.5).
    Server, 4 and 2 samples: ⅔·0.171875 + ⅓·1.5 = 0.6145833… and ⅔·1.125 − ⅓·1.5 = 0.25.
    Alike at both tiers: s0 first (−0.25, 1); second c0 (0.375, 1), c1 (−1, 1.5), mean (−0.3125, 1.25); with s1 the mean
    is (0.59375, −0.125).
    """
    clients = [*SMALL_FIRST, toys.bowl([[1, 0], [0, 1]], [2, -2], rows=2)]
    by_samples = toys.play(HFedAvg(HALF, sector_rounds=2), clients, (0, 0, 1), toys.Bowl)
    assert numbers(by_samples.vector) == near(2 / 3 * 0.171875 + 1 / 3 * 1.5, 0.25)
    alike = toys.play(HFedAvg(HALF, sector_rounds=2, by="uniform"), clients, (0, 0, 1), toys.Bowl)
    assert numbers(alike.vector) == near(0.59375, -0.125)


def test_centralized() -> None:
    """Two full-batch steps of 0.5 on all four rows, so on ¾·F_0 + ¼·F_1.

    At (0, 0): ¾·(−1, −2) + ¼·(2, −2) = (−0.25, −2), so (0.125, 1).
    There: ¾·(−0.875, 0) + ¼·(2.25, −1) = (−0.09375, −0.25), so (0.171875, 1.125).
    """
    result = toys.play(Centralized(TWICE), SMALL_FIRST, (0, 1), toys.Bowl)
    assert numbers(result.vector) == near(0.171875, 1.125)


def test_local() -> None:
    """Two rounds of one step each: what FedAvg's clients hold after two steps, never averaged."""
    with toys.lab(Local(HALF), SMALL_FIRST, (0, 1), toys.Bowl) as lab:
        found = lab.round(1).round(2).personal()
    assert numbers(found["c0"].vector) == near(0.75, 1.0)
    assert numbers(found["c1"].vector) == near(-1.0, 1.5)
    assert lab.state.model is None


# Distillation: P(class 0 | x) = 2^e / (1 + 2^e) where e · ln 2 = (w_0 − w_1) · x. Starting at (0, 0), a client whose
# rows are all (x, y) has the gradient x·(½ − 1, ½) for y = 0 and x·(½, −½) for y = 1, so its model is a·(1, −1) with
# a = ½·lr·x or −½·lr·x.


def odds(e: float) -> float:
    return 2**e / (1 + 2**e)


def test_feddf() -> None:
    """c0 has three rows (1, class 0), c1 one row (2, class 1); the local step is 4 ln 2.

    a_0 = 2 ln 2 and a_1 = −4 ln 2. The student starts at ¾·2 ln 2 − ¼·4 ln 2 = ½ ln 2: P = odds(x), ⅔ at x = 1 and ⅘
    at 2. The mean of logits is −ln 2·x·(1, −1): P = odds(−2x), ⅕ at x = 1 and 1/17 at 2.
    On the reference inputs 1 and 2 the gradient is ½·[1·(⅔ − ⅕) + 2·(⅘ − 1/17)] = 497/510, and the step is 0.5.
    """
    clients = [toys.points(*[(1, 0)] * 3), toys.points((2, 1))]
    spec = DistillSpec(steps=1, batch=2, optimizer="sgd", lr=0.5, mix="logits", weights="uniform")
    method = FedDf(LocalSpec(steps=1, batch=4, lr=4 * log(2)), spec, drop_worst=False)
    reference = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    result = toys.play(method, clients, (0, 1), toys.Slopes, reference=reference)
    expected = 0.5 * log(2) - 0.5 * 497 / 510
    assert numbers(result.vector) == near(expected, -expected)
    assert result.weight == 4


def fedhead_numbers() -> tuple[float, float]:
    """The leaders' models of `test_fedhead`, as the factors of (1, −1)."""
    z = 0.5 * log(2)
    teacher_0 = 3 / 4 * odds(7 / 4) + 1 / 4 * odds(-7 / 2)
    teacher_1 = 2 / 3 * odds(7) + 1 / 3 * odds(-7 / 2)
    return z - 0.5 * 1 * (2 / 3 - teacher_0), z - 0.5 * 2 * (4 / 5 - teacher_1)


FOUR = [toys.points(*[(1, 0)] * 3), toys.points((2, 1)), toys.points((2, 0), (2, 0)), toys.points((1, 1))]
SECTORS = (0, 0, 1, 1)
LOCAL = LocalSpec(steps=1, batch=4, lr=7 / 4 * log(2))
ONE_STEP = DistillSpec(steps=1, batch=4, optimizer="sgd", lr=0.5)


def test_fedhead() -> None:
    """s0: c0 three rows (1, class 0), c1 one row (2, class 1). s1: c2 two rows (2, class 0), c3 one row (1, class 1).

    With a local step of l = 7/4·ln 2 the clients' factors are l/2, −l, l and −l/2. Sector means: ¾·l/2 − ¼·l = l/8 and
    ⅔·l − ⅓·l/2 = l/2; of 7 samples, 4 and 3 are theirs, so z = 4/7·l/8 + 3/7·l/2 = 2l/7 = ½ ln 2, which gives odds(x).
    The largest clients lead. c0 sees x = 1: student ⅔, teacher ¾·odds(7/4) + ¼·odds(−7/2). c2 sees x = 2: student ⅘,
    teacher ⅔·odds(7) + ⅓·odds(−7/2). Gradients are x·(student − teacher), the step is 0.5, the mean by 4 and 3.
    """
    result = toys.play(FedHead(LOCAL, ONE_STEP, leader="fixed"), FOUR, SECTORS, toys.Slopes)
    first, second = fedhead_numbers()
    expected = 4 / 7 * first + 3 / 7 * second
    assert numbers(result.vector) == near(expected, -expected)
    assert result.weight == 7


def test_fedhead_plus() -> None:
    """After FedHEAD's round, one step of 0.25 at the server on the inputs 1 and 3.

    The teacher is 4/7 of the first leader's P and 3/7 of the second's; the student starts at the mean w of the two.
    The gradient is ½·Σ_x x·(P_w(x) − teacher(x)).
    """
    reference = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    server = DistillSpec(steps=1, batch=2, optimizer="sgd", lr=0.25)
    result = toys.play(
        FedHeadPlus(LOCAL, ONE_STEP, server, leader="fixed"), FOUR, SECTORS, toys.Slopes, reference=reference
    )
    first, second = fedhead_numbers()
    start = 4 / 7 * first + 3 / 7 * second
    gradient = 0.0
    for x in (1, 3):
        student = odds(2 * start * x / log(2))
        teacher = 4 / 7 * odds(2 * first * x / log(2)) + 3 / 7 * odds(2 * second * x / log(2))
        gradient += 0.5 * x * (student - teacher)
    expected = start - 0.25 * gradient
    assert numbers(result.vector) == near(expected, -expected)
    assert abs(gradient) > 1e-4  # the step at the server did something
