"""Rounds of the methods that work on the network itself, on nets of a few numbers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log, sqrt

import pytest
import torch
from torch import nn

import toys
from headwater.algorithms.fedalign import FedAlign
from headwater.algorithms.fedgen import GENERATOR, FedGen
from headwater.algorithms.fedma import FedMa
from headwater.algorithms.moon import Moon
from headwater.core.federation import SERVER
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.models.base import ModelSpec, Net
from headwater.models.generator import Generator
from headwater.specs import LocalSpec

Pair = tuple[float, float]
ONCE = LocalSpec(steps=1, batch=8, lr=0.5)
V = ((1.0, -1.0), (0.5, 2.0))  # the classifier's rows


def small(features: nn.Module, first: object) -> nn.Module:
    """Features with these weights, and the classifier V."""
    net = Net(features, nn.Linear(2, 2, bias=False)).double()
    layer = features[0] if isinstance(features, nn.Sequential) else features
    layer.weight.data = torch.tensor(first, dtype=torch.float64)
    net.classifier.weight.data = torch.tensor(V, dtype=torch.float64)
    return net


def rows(x: float, y: int, count: int = 1) -> Examples:
    return Examples(torch.full((count, 1), x, dtype=torch.float64), torch.full((count,), y))


def softmax(a: float, b: float) -> Pair:
    return 1 / (1 + exp(b - a)), 1 / (1 + exp(a - b))


def dot(a: Pair, b: Pair) -> float:
    return a[0] * b[0] + a[1] * b[1]


def slopes(z: Pair, v: tuple[Pair, Pair], y: int) -> tuple[Pair, tuple[Pair, Pair]]:
    """Gradients of the cross-entropy by the features z and by the classifier v."""
    p = softmax(dot(v[0], z), dot(v[1], z))
    g = (p[0] - (y == 0), p[1] - (y == 1))
    by_z = (g[0] * v[0][0] + g[1] * v[1][0], g[0] * v[0][1] + g[1] * v[1][1])
    return by_z, ((g[0] * z[0], g[0] * z[1]), (g[1] * z[0], g[1] * z[1]))


def moved(a: Pair, by: Pair, rate: float = 0.5) -> Pair:
    return a[0] - rate * by[0], a[1] - rate * by[1]


def between(a: Pair, b: Pair, share: float = 0.5) -> Pair:
    return (1 - share) * a[0] + share * b[0], (1 - share) * a[1] + share * b[1]


def test_moon() -> None:
    """Features z = w·x of one number x = 1, two clients of labels 0 and 1, a step of 0.5 a round.

    In round 1 global and previous model are both the initial one: the term is constant, so the steps are plain ones.
    In round 2 z is still z_global, whose cosine 1 is at its top; the cosine c with the client's own last features u
    has the gradient (u/‖u‖ − c·z/‖z‖)/‖z‖, and the cross-entropy passes mu/tau · P(previous) of it, P being the softmax
    of (1, c)/tau.
    """
    mu, tau, w, labels = 2.0, 0.5, (1.0, 0.5), (0, 1)
    ends = []
    for y in labels:
        by_w, by_v = slopes(w, V, y)
        ends.append((moved(w, by_w), (moved(V[0], by_v[0]), moved(V[1], by_v[1]))))
    z = between(ends[0][0], ends[1][0])
    v = (between(ends[0][1][0], ends[1][1][0]), between(ends[0][1][1], ends[1][1][1]))
    results = []
    for y, (u, _) in zip(labels, ends, strict=True):
        long, other = hypot(*z), hypot(*u)
        cosine = dot(z, u) / (long * other)
        pull = mu / tau * softmax(1 / tau, cosine / tau)[1]
        by_z, _ = slopes(z, v, y)
        contrast = tuple(pull * (u[i] / other - cosine * z[i] / long) / long for i in (0, 1))
        results.append(moved(z, (by_z[0] + contrast[0], by_z[1] + contrast[1])))
    method, clients = Moon(ONCE, mu=mu, tau=tau), [rows(1.0, 0), rows(1.0, 1)]
    with toys.lab(method, clients, (0, 1), lambda: small(nn.Linear(1, 2, bias=False), [[1.0], [0.5]])) as lab:
        mean = lab.round(1).round(2).vector[:2].tolist()
        own = lab.fed.with_purpose("export").read(lab.fed.with_purpose("export").up(lab.state.previous, to=SERVER))
    for client, result, y in zip(("c0", "c1"), results, labels, strict=True):
        assert own[client][0].vector[:2].tolist() == pytest.approx(result, abs=1e-12)
        plain = moved(z, slopes(z, v, y)[0])
        assert max(abs(a - b) for a, b in zip(result, plain, strict=True)) > 1e-2, "the term does something"
    assert mean == pytest.approx(between(*results), abs=1e-12)


class Steady(Generator):
    """Draws (1, 3) for class 0 and (2, 0) for class 1, whatever the noise."""

    def __init__(self) -> None:
        super().__init__(1, 2, 2, 2, torch.float64)
        first, _, _, last = self.layers
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        first.weight.data = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64) * sqrt(1 + 1e-5)
        last.weight.data = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
        for layer in (first, last):
            layer.bias.data.zero_()


def test_fedgen() -> None:
    """One client, label 0, z = w·x; the generator draws (1, 3) for class 0, the only one that anybody holds.

    Round 1 is plain. In round 2, alpha and beta have decayed once; four draws to a batch of eight make a share of ½.
    The classifier feels ½ · alpha times the slope of its loss at (1, 3), and all feel beta · (p − t) where the plain
    loss has p − (1, 0): t is what the classifier says at (1, 3), p what it says at z.
    """
    w = (1.0, 0.5)
    by_w, by_v = slopes(w, V, 0)
    z, v = moved(w, by_w), (moved(V[0], by_v[0]), moved(V[1], by_v[1]))
    alpha, beta, drawn = 4.0 * 0.98, 3.0 * 0.98, (1.0, 3.0)
    p = softmax(dot(v[0], z), dot(v[1], z))
    t = softmax(dot(v[0], drawn), dot(v[1], drawn))
    g = (p[0] - 1 + beta * (p[0] - t[0]), p[1] + beta * (p[1] - t[1]))
    by_z = (g[0] * v[0][0] + g[1] * v[1][0], g[0] * v[0][1] + g[1] * v[1][1])
    _, there = slopes(drawn, v, 0)
    by_v = tuple(tuple(g[k] * z[i] + 0.5 * alpha * there[k][i] for i in (0, 1)) for k in (0, 1))  # type: ignore[assignment]
    expected = (*moved(z, by_z), *moved(v[0], by_v[0]), *moved(v[1], by_v[1]))

    def maker() -> nn.Module:
        return small(nn.Linear(1, 2, bias=False), [[1.0], [0.5]])

    around = toys.context([rows(1.0, 0)], maker)
    source = ModelSpec(GENERATOR, (1,), 2, builder=Steady)
    method = FedGen(ONCE, gen_alpha=4.0, gen_beta=3.0, gen_epochs=0, gen_batch=4)
    lab = toys.Lab(method, replace(around, models=around.models | {GENERATOR: source}), Tree.of([1], [0]))
    first = lab.round(1).vector[:2].tolist()
    assert first == pytest.approx(z, abs=1e-12)
    assert lab.round(2).vector.tolist() == pytest.approx(expected, abs=1e-12)
    lab.close()


def test_fedma() -> None:
    """Two hidden neurons w = (3, 1.5) of one input x = 1; clients with 3 rows of label 0 and 1 row of label 1.

    A step of 0.5 each; the neurons stay far apart, so each is matched to its like and averaged, clients counting
    alike. Then the classifier takes another step with these neurons, and is averaged by 3 : 1.
    """
    w, labels = (3.0, 1.5), (0, 1)
    neurons, heads = [], []
    for y in labels:
        by_w, by_v = slopes(w, V, y)
        neurons.append(moved(w, by_w))
        heads.append((moved(V[0], by_v[0]), moved(V[1], by_v[1])))
    assert all(a > b > 0 for a, b in neurons), "in order, and the ReLU passes them"
    matched = between(*neurons)
    for i, y in enumerate(labels):
        _, by_v = slopes(matched, heads[i], y)
        heads[i] = (moved(heads[i][0], by_v[0]), moved(heads[i][1], by_v[1]))
    last = (between(heads[0][0], heads[1][0], 0.25), between(heads[0][1], heads[1][1], 0.25))

    def maker() -> nn.Module:
        return small(nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU()), [[3.0], [1.5]])

    found = toys.play(FedMa(ONCE), [rows(1.0, 0, count=3), rows(1.0, 1)], (0, 1), maker)
    assert found.vector.tolist() == pytest.approx((*matched, *last[0], *last[1]), abs=1e-12)
    assert found.weight == 4


def test_fedalign() -> None:
    """One row x = (3, 4), label 0, one hidden layer W = (1 0.5; 0 1) with ReLU, half its width, a step of 0.01.

    h = W·x = (5, 4); the full block's steepness is ‖x‖·‖h‖ = 5·√41. The thin one maps 3 to 1·3, so 3·3 = 9, and its
    slope by the one weight that it has is 3·3. The term is mu·L/d·d with d = (9 − 5√41)²: its gradient there is
    mu·L/d·2·(9 − 5√41)·9.
    """
    h, rate, mu = (5.0, 4.0), 0.01, 0.45
    by_h, by_v = slopes(h, V, 0)
    p = softmax(dot(V[0], h), dot(V[1], h))
    apart = 9 - 5 * sqrt(41)
    pull = mu * -log(p[0]) / apart**2 * 2 * apart * 9
    first = (1 - rate * (by_h[0] * 3 + pull), 0.5 - rate * by_h[0] * 4)
    second = (-rate * by_h[1] * 3, 1 - rate * by_h[1] * 4)
    expected = (*first, *second, *moved(V[0], by_v[0], rate), *moved(V[1], by_v[1], rate))

    def maker() -> nn.Module:
        return small(nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()), [[1.0, 0.5], [0.0, 1.0]])

    row = Examples(torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([0]))
    method = FedAlign(LocalSpec(steps=1, batch=1, lr=rate), mu=mu, width=0.5)
    found = toys.play(method, [row], (0,), maker)
    assert found.vector.tolist() == pytest.approx(expected, abs=1e-12)
    assert abs(pull) > 1e-2
