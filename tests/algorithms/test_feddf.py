from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

import toys
from headwater.algorithms.feddf import with_swag
from headwater.core.params import Params
from headwater.tasks.task import TaskContext

AROUND = toys.context([toys.points((1, 0))], toys.Slopes)


def model(a: float, b: float, weight: float = 1.0, arch: str = toys.ARCH) -> Params:
    return Params.of(toys.Slopes((a, b)), arch, weight=weight)


TEAM = {"c0": model(1.0, 0.0, 2.0), "c1": model(3.0, 0.0, 4.0), "c2": model(2.0, 6.0, 6.0)}


def drawn(count: int, team: dict[str, Params] = TEAM, at: TaskContext | None = None) -> dict[str, Params]:
    found = with_swag(at or toys.ctx(AROUND), team, count)
    assert list(found)[: len(team)] == list(team)
    assert all(found[name] is team[name] for name in team)
    return {name: found[name] for name in found if name not in team}


def test_by_hand() -> None:
    """Mean (2, 2), deviations (−1, −2), (1, −2) and (0, 4), so σ² = (2/3, 8); a draw from the same numbers."""
    rng = toys.ctx(AROUND).rng
    z, u = rng.standard_normal(2), rng.standard_normal(3)
    away = np.array([[-1.0, -2.0], [1.0, -2.0], [0.0, 4.0]])
    expected = 2 + np.sqrt([2 / 3, 8]) * z / sqrt(2) + u @ away / sqrt(2 * 2)
    (found,) = drawn(1).values()
    assert found.vector.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert found.weight == 4  # the mean of 2, 4 and 6


@pytest.mark.thorough
def test_mean_and_covariance() -> None:
    """Over many draws: the mean, and ½·diag(σ²) + DᵀD / (2(K − 1)) = diag(⅓, 4) + ½·((1, 0), (0, 12))."""
    sample = np.stack([m.vector.numpy() for m in drawn(20_000).values()])
    assert sample.mean(0).tolist() == pytest.approx([2, 2], abs=0.1)
    assert np.cov(sample.T).tolist() == [pytest.approx([1 / 3 + 0.5, 0], abs=0.1), pytest.approx([0, 10], abs=0.4)]


def test_one_model_is_drawn_as_it_is() -> None:
    for found in drawn(3, {"c0": TEAM["c2"]}).values():
        assert found.vector.tolist() == [2.0, 6.0]
        assert found.weight == 6


def test_architectures_in_turn() -> None:
    team = {**TEAM, "c3": model(9.0, 9.0, 1.0, "other")}
    assert [m.layout.arch for m in drawn(4, team).values()] == [toys.ARCH, "other"] * 2
    assert drawn(4, team)["swag3"].vector.tolist() == [9.0, 9.0]


def test_none() -> None:
    assert drawn(0) == {}


def test_statistics_do_not_scatter() -> None:
    """A variance must not become negative: batch-norm statistics are the mean's."""
    place = toys.context([toys.blobs(4, dtype=torch.float32)], toys.normed, classes=3)
    team = {f"c{i}": place.initial(toys.ARCH, i) for i in range(3)}
    for i, m in enumerate(team.values()):
        m.vector[m.layout.size :] = float(i)
    for found in drawn(3, team, toys.ctx(place)).values():
        assert (found.vector[found.layout.size :] == 1).all()
        assert found.trainable.std() > 0


def test_same_stream_same_draws() -> None:
    one, two = drawn(2), drawn(2)
    assert all(torch.equal(one[name].vector, two[name].vector) for name in one)
    assert not torch.equal(one["swag0"].vector, one["swag1"].vector)
