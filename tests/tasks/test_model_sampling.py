"""Models drawn around those of the clients, and label counts added up."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

import toys
from headwater.algorithms.fedbe import distill_per_class
from headwater.core.params import Params
from headwater.specs import DistillSpec
from headwater.tasks.average import sample_models, tally, variance
from headwater.tasks.distill import distill
from headwater.tasks.task import TaskContext

AROUND = toys.context([toys.points((1, 0))], toys.Slopes)
MODELS = {"a": toys.params(toys.Slopes((1.0, 0.0)), 3.0), "b": toys.params(toys.Slopes((5.0, 4.0)), 1.0)}


def here(around: Any = AROUND) -> TaskContext:
    return toys.ctx(around, "server")


def noise(count: int) -> list[np.ndarray]:
    """The numbers that the task will draw: its stream asked again."""
    rng = here().rng
    return [rng.standard_normal(2) for _ in range(count)]


def vectors(found: dict[int, Params]) -> list[list[float]]:
    return [model.vector.tolist() for model in found.values()]


def test_gaussian() -> None:
    """By 3 and 1 samples: mean (2, 1), variance ¾·(1, 1) + ¼·(9, 9) = (3, 3). Alike: mean (3, 2), variance (4, 4)."""
    found = sample_models(here(), MODELS, 2)
    expected = [[2 + sqrt(3) * z[0], 1 + sqrt(3) * z[1]] for z in noise(2)]
    assert vectors(found) == [pytest.approx(e, abs=1e-12) for e in expected]
    assert [model.weight for model in found.values()] == [4.0, 4.0]
    alike = sample_models(here(), MODELS, 1, by="uniform")
    assert vectors(alike) == [pytest.approx([3 + 2 * z[0], 2 + 2 * z[1]], abs=1e-12) for z in noise(1)]
    assert variance(MODELS, replace(MODELS["a"], vector=torch.tensor([2.0, 1.0]).double())).tolist() == [3.0, 3.0]


def test_gaussian_as_coded() -> None:
    """From (1, 0), deltas (3, 4) and (0, 2) have lengths 5 and 2, mean 3.5, and unit forms (0.6, 0.8) and (0, 1).

    Their mean is (0.3, 0.9); their variance ½·(0.36, 1.64) − (0.09, 0.81) = (0.09, 0.01). A sample lies at
    (1, 0) + 3.5·((0.3, 0.9) + 0.1·(0.3, 0.1)·z), whatever the clients weigh.
    """
    base = toys.params(toys.Slopes((1.0, 0.0)))
    models = {"a": toys.params(toys.Slopes((4.0, 4.0)), 3.0), "b": toys.params(toys.Slopes((1.0, 2.0)), 1.0)}
    found = sample_models(here(), models, 2, sampler="gaussian-as-coded", base=base)
    expected = [[1 + 3.5 * (0.3 + 0.03 * z[0]), 3.5 * (0.9 + 0.01 * z[1])] for z in noise(2)]
    assert vectors(found) == [pytest.approx(e, abs=1e-12) for e in expected]
    wider = sample_models(here(), models, 1, sampler="gaussian-as-coded", base=base, scale=1.0)
    assert vectors(wider) == [pytest.approx([1 + 3.5 * (0.3 + 0.3 * z[0]), 3.5 * (0.9 + 0.1 * z[1])]) for z in noise(1)]


def test_as_coded_where_nobody_moved() -> None:
    """Unit deltas of length 0 are left at 0, and samples where they were: the length to go is 0."""
    base = toys.params(toys.Slopes((1.0, 0.0)))
    found = sample_models(here(), {"a": base, "b": base}, 2, sampler="gaussian-as-coded", base=base)
    assert vectors(found) == [[1.0, 0.0], [1.0, 0.0]]
    with pytest.raises(ValueError, match="needs the model that the clients started from"):
        sample_models(here(), MODELS, 1, sampler="gaussian-as-coded")


def test_dirichlet() -> None:
    """B8: shares sum to one, so a sample lies on the line between the two: (1 + 4s, 4s) for the share s of b."""
    found = sample_models(here(), MODELS, 50, sampler="dirichlet")
    rng = here().rng
    shares = [rng.dirichlet([1.0, 1.0]) for _ in range(50)]
    assert vectors(found) == [pytest.approx([1 + 4 * s[1], 4 * s[1]], abs=1e-12) for s in shares]
    assert all(0 <= v[1] / 4 <= 1 for v in vectors(found))
    assert {model.weight for model in found.values()} == {4.0}
    near = sample_models(here(), MODELS, 20, sampler="dirichlet", concentration=1e6)
    assert vectors(near) == [pytest.approx([3.0, 2.0], abs=0.02)] * 20


@pytest.mark.parametrize("sampler", ["gaussian", "dirichlet"])
def test_b8_the_mean_of_samples_is_the_average(sampler: Any) -> None:
    """B8: within four standard errors; the Dirichlet shares are alike in the mean."""
    found = torch.tensor(vectors(sample_models(here(), MODELS, 4000, sampler=sampler)))
    expected = torch.tensor([2.0, 1.0] if sampler == "gaussian" else [3.0, 2.0])
    assert float(((found.mean(0) - expected).abs() * sqrt(4000) / found.std(0)).max()) < 4


def test_statistics_of_batch_norm_get_no_noise() -> None:
    """A Gaussian leaves them at the mean, so a variance stays positive; a mixture mixes them as well."""
    torch.manual_seed(0)
    models = {}
    for i in range(3):
        net = toys.normed()
        net(torch.randn(9, 3) * (i + 1))
        models[f"c{i}"] = toys.params(net, weight=float(i + 1))
    around = toys.context([toys.blobs(4, dtype=torch.float32)], toys.normed, classes=3)
    size = models["c0"].layout.size
    mean = sum(m.vector[size:] * m.weight for m in models.values()) / 6
    for sampler, same in (("gaussian", True), ("gaussian-as-coded", True), ("dirichlet", False)):
        found = sample_models(here(around), models, 5, sampler=sampler, base=models["c0"])
        gaps = [toys.gap(model.vector[size:], mean) for model in found.values()]
        assert all((gap < 1e-6) == same for gap in gaps)
        assert all(model.vector.dtype == torch.float32 for model in found.values())
        assert min(toys.gap(model.vector[:size], models["c0"].vector[:size]) for model in found.values()) > 1e-4


def test_tally() -> None:
    counts = {"c0": torch.tensor([1.0, 2.0]), "c1": torch.tensor([0.0, 5.0])}
    assert tally(here(), counts).tolist() == [1.0, 7.0]


def test_loss_divided_by_the_number_of_classes() -> None:
    """Three steps with momentum and weight decay, worked out beside: v ← βv + g/C + λw, w ← w − ηv.

    For one input x = 1 and a teacher (2, −2), the student's gradient is (p − q)·(1, −1) with q = 1/(1 + e⁻⁴).
    """
    reference = torch.ones((1, 1), dtype=torch.float64)
    around = toys.context([toys.points((1, 0))], toys.Slopes, reference=reference)
    spec = DistillSpec(steps=3, batch=1, optimizer="sgd", lr=0.5, momentum=0.9, weight_decay=0.1)
    start, teachers = toys.params(toys.Slopes((0.5, 0.0))), {"c0": toys.params(toys.Slopes((2.0, -2.0)))}
    w, v = np.array([0.5, 0.0]), np.zeros(2)
    for _ in range(3):
        gap = 1 / (1 + np.exp(w[1] - w[0])) - 1 / (1 + np.exp(-4))
        v = 0.9 * v + gap * np.array([1, -1]) / 2 + 0.1 * w
        w = w - 0.5 * v
    found = distill_per_class(here(around), spec=spec, start=start, teachers=teachers)
    assert found.vector.tolist() == pytest.approx(w.tolist(), abs=1e-12)
    assert toys.gap(found, distill(here(around), spec=spec, start=start, teachers=teachers)) > 1e-2
