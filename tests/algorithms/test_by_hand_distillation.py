"""Rounds of FedDF and FedHEAD+ in their further forms, worked out by hand on models of two numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedhead import FedHeadPlus
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.models.base import ModelSpec
from headwater.specs import DistillSpec, LocalSpec

LN2 = log(2)


def odds(e: float) -> float:
    return 2**e / (1 + 2**e)


def near(*numbers: float) -> Any:
    return pytest.approx(numbers, abs=1e-12)


class Twice(toys.Slopes):
    """Another architecture: softmax over 2·w·x. A client whose rows are all (x, y) goes twice as far as `Slopes`."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x * self.w


@contextmanager
def two_kinds(method: Any, clients: Sequence[Examples], **around: Any) -> Iterator[toys.Lab]:
    """Clients c0, c2, … have `Slopes`, c1, c3, … have `Twice`."""
    made = toys.context(clients, toys.Slopes, **around)
    other = ModelSpec("twice", made.split.shape, 2, builder=Twice)
    tree = Tree.of([len(rows) for rows in clients], [0] * len(clients), (toys.ARCH, "twice"))
    lab = toys.Lab(method, replace(made, models={**made.models, "twice": other}), tree)
    try:
        yield lab
    finally:
        lab.close()


ONE = torch.ones(1, 1, dtype=torch.float64)
THREE = [toys.points((1, 0)), toys.points((1, 1)), toys.points(*[(1, 1)] * 3)]
STEP = LocalSpec(steps=1, batch=4, lr=2 * LN2)
TEACH = DistillSpec(steps=1, batch=1, optimizer="sgd", lr=0.5, mix="logits", weights="uniform")


class TestTwoKinds:
    """Models are a·(1, −1). With a local step of 2 ln 2, c0 (Slopes, class 0) gets a = ln 2, so P = odds(2x), c1
    (Twice, class 1) a = −2 ln 2, so odds(−8x), and c2 (Slopes, three rows of class 1) a = −ln 2, odds(−2x). The mean
    of logits says odds(−8/3) at x = 1.
    """

    TEACHER = odds(-8 / 3)

    def after(self, *clients: str, **options: Any) -> tuple[list[float], list[float]]:
        with two_kinds(FedDf(STEP, TEACH, drop_worst=False, **options), THREE, reference=ONE) as lab:
            state = lab.round(1, clients or None).state
            return lab.vector.tolist(), lab.fed.read(state.also["twice"]).vector.tolist()

    def test_each_starts_at_its_own_and_learns_from_all(self) -> None:
        """Slopes starts at ¼·ln 2 − ¾·ln 2 = −½ ln 2, P = ⅓; Twice at c1's model, P = 1/257, with twice the slope."""
        first, second = self.after()
        a = -LN2 / 2 - 0.5 * (1 / 3 - self.TEACHER)
        b = -2 * LN2 - 0.5 * 2 * (1 / 257 - self.TEACHER)
        assert first == near(a, -a)
        assert second == near(b, -b)

    def test_without_clients_of_a_kind(self) -> None:
        """Without c1, Twice starts at its last fused model, 0, and learns from odds(0) = ½, which it says already; with
        c0 alone it learns from odds(2) = ⅘."""
        assert self.after("c0", "c2")[1] == near(0, 0)
        b = -0.5 * 2 * (1 / 2 - 4 / 5)
        assert self.after("c0")[1] == near(b, -b)

    def test_skip_inactive(self) -> None:
        first, second = self.after("c0", skip_inactive=True)
        assert first == near(LN2, -LN2)  # its own teacher: nothing to learn
        assert second == [0.0, 0.0]
        assert self.after(skip_inactive=True) == self.after()

    def test_from_the_previous(self) -> None:
        """Both start at 0: P = ½, gradients ½ − teacher and twice that."""
        first, second = self.after(init_from="previous")
        a = -0.5 * (1 / 2 - self.TEACHER)
        assert first == near(a, -a)
        assert second == near(2 * a, -2 * a)

    def test_without_steps_it_averages_within_kinds(self) -> None:
        with two_kinds(FedDf(STEP, replace(TEACH, steps=0), drop_worst=False), THREE, reference=ONE) as lab:
            state = lab.round().state
            assert lab.vector.tolist() == near(-LN2 / 2, LN2 / 2)
            assert lab.fed.read(state.also["twice"]).vector.tolist() == near(-2 * LN2, 2 * LN2)

    def test_drop_worst(self) -> None:
        """The validation set says class 1 for x = 1: c0 is dropped, so Slopes is c2 alone and odds(−5) teaches."""
        method = FedDf(STEP, TEACH)
        with two_kinds(method, THREE, reference=ONE, validation=toys.points((1, 1))) as lab:
            state = lab.round().state
            a = -LN2 - 0.5 * (1 / 5 - odds(-5))
            b = -2 * LN2 - 0.5 * 2 * (1 / 257 - odds(-5))
            assert lab.vector.tolist() == near(a, -a)
            assert lab.fed.read(state.also["twice"]).vector.tolist() == near(b, -b)


def test_feddf_by_label_counts() -> None:
    """c0 (1, class 0) says ⅘ at x = 1 and c1, three rows of class 1, says ⅕.

    Class 0 is all c0's and class 1 all c1's: ⅘ each, so the teacher says ½. The student starts at the mean by samples,
    ¼·ln 2 − ¾·ln 2 = −½ ln 2, P = ⅓; the step of 0.5 is 0.5·(½ − ⅓).
    """
    spec = replace(TEACH, mix="probs", weights="labels")
    clients = [THREE[0], THREE[2]]
    found = toys.play(FedDf(STEP, spec, drop_worst=False), clients, (0, 1), toys.Slopes, reference=ONE)
    a = -LN2 / 2 + 0.5 * (1 / 2 - 1 / 3)
    assert found.vector.tolist() == near(a, -a)


def test_fedhead_plus_by_label_counts_at_the_server() -> None:
    """Two sectors of two clients that all do not distil at the leader; the sector means teach (`pre_sync`).

    s0: c0 (1, class 0) and c1 (1, class 1) have a = ±ln 2, mean 0, P = ½, counts (1, 1).
    s1: c2, two rows of class 1, and c3, one row of class 1, a = −ln 2, P = ⅕, counts (0, 3).
    Class 0 is s0's alone: ½. Class 1 is ¼·½ + ¾·⅘ = 29/40. The teacher says ½ / (½ + 29/40) = 20/49. The student
    starts at (2·0 − 3·ln 2)/5 = −⅗ ln 2, P = odds(−6/5).
    """
    clients = [toys.points((1, 0)), toys.points((1, 1)), toys.points((1, 1), (1, 1)), toys.points((1, 1))]
    none, server = DistillSpec(epochs=0), replace(TEACH, mix="probs", weights="labels")
    method = FedHeadPlus(STEP, none, server, leader="fixed", server_teacher="pre_sync")
    found = toys.play(method, clients, (0, 0, 1, 1), toys.Slopes, reference=ONE)
    a = -3 / 5 * LN2 - 0.5 * (odds(-6 / 5) - 20 / 49)
    assert found.vector.tolist() == near(a, -a)


def test_feddf_learned() -> None:
    """c0 says ⅘ and c1 ⅕ at x = 1. The validation set has three rows of class 0 and two of class 1: with a share a of
    c0, P = ⅕ + ⅗a must be ⅗, so a = ⅔ (and P = ⅗). The student starts at −½ ln 2, P = ⅓.
    """
    spec = replace(TEACH, mix="probs", weights="learned")
    val = toys.points(*[(1, 0)] * 3, *[(1, 1)] * 2)
    clients = [THREE[0], THREE[2]]
    with toys.lab(
        FedDf(STEP, spec, drop_worst=False), clients, (0, 1), toys.Slopes, reference=ONE, validation=val
    ) as lab:
        found = lab.round().vector
        notes = lab.notes("distill")["server"]
    a = -LN2 / 2 + 0.5 * (3 / 5 - 1 / 3)
    assert found.tolist() == pytest.approx([a, -a], abs=1e-8)
    assert notes["largest_share"] == pytest.approx(2 / 3, abs=1e-6)
