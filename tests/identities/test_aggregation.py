"""A1 to A6: averages over the tree, and what they do to training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import toys
from headwater.algorithms.base import State
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.hfedavg import HFedAvg
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import Params, average_of, mean
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train
from headwater.tasks.terms import Proximal
from oracles.quadratics import Quadratic, mixture

ONE_STEP = LocalSpec(steps=1, batch=64, lr=0.1)
TEN_STEPS = LocalSpec(steps=10, batch=64, lr=0.05)


def bowls(count: int, seed: int = 0, rows: Sequence[int] | None = None) -> tuple[list[Examples], list[Quadratic]]:
    """Clients with quadratic losses of unlike curvature and centre."""
    rng = np.random.default_rng(seed)
    sizes = rows or [int(n) for n in rng.integers(1, 9, size=count)]
    losses = []
    for _ in range(count):
        root = rng.normal(size=(2, 2))
        losses.append(Quadratic(root @ root.T + np.eye(2), rng.normal(size=2) * 3))
    return [toys.bowl(q.curvature, q.centre, n) for q, n in zip(losses, sizes, strict=True)], losses


@pytest.mark.parametrize("seed", range(6))
def test_a1_two_levels_equal_one(seed: int) -> None:
    """A1: the mean of sector means is the flat mean, whatever the sectors and sizes."""
    rng = np.random.default_rng(100 + seed)
    clients, _ = bowls(7, seed)
    sectors = [0, 1, 2, *rng.integers(3, size=4).tolist()]
    flat = toys.play(FedAvg(TEN_STEPS), clients, sectors, toys.Bowl)
    staged = toys.play(FedAvg(TEN_STEPS, through_sectors=True), clients, sectors, toys.Bowl)
    assert toys.gap(flat, staged) <= 1e-10
    assert flat.weight == staged.weight == sum(map(len, clients))
    by_hand = toys.play(FedAvg(TEN_STEPS), clients, [0] * 7, toys.Bowl)
    assert toys.gap(flat, by_hand) <= 1e-10


def test_a1_holds_when_clients_are_lost() -> None:
    """A1 under loss: weights are those of the clients that really contributed."""
    clients, _ = bowls(8, 1)
    sectors = [0, 0, 0, 1, 1, 1, 2, 2]
    seen = 0
    for seed in range(4):
        with toys.lab(FedAvg(TEN_STEPS), clients, sectors, toys.Bowl, dropout=0.4, seed=seed) as lab:
            flat = lab.round().model
            there = [node for node, notes in lab.notes("local_train").items() if notes]
        assert flat.weight == sum(len(clients[int(c[1:])]) for c in there)
        staged = toys.play(FedAvg(TEN_STEPS, through_sectors=True), clients, sectors, toys.Bowl, dropout=0.4, seed=seed)
        assert toys.gap(flat, staged) <= 1e-10
        seen += len(there) < 8
    assert seen


def random_models(count: int, seed: int = 0) -> list[Params]:
    rng = np.random.default_rng(seed)
    start = toys.params(toys.net())
    return [
        replace(start, vector=torch.tensor(rng.normal(size=len(start.vector))), weight=float(rng.integers(1, 20)))
        for _ in range(count)
    ]


class TestA2:
    """A2: order does not matter, equal models stay as they are, and only ratios of weights count."""

    def test_equals_the_plain_formula(self) -> None:
        models = random_models(5)
        total = sum(m.weight for m in models)
        expected = torch.stack([m.vector * (m.weight / total) for m in models]).sum(0)
        assert toys.gap(mean(models), expected) <= 1e-12
        assert mean(models).weight == total

    def test_order(self) -> None:
        models = random_models(6, 1)
        rng = np.random.default_rng(0)
        for _ in range(5):
            shuffled = [models[i] for i in rng.permutation(6)]
            assert toys.gap(mean(models), mean(shuffled)) <= 1e-12

    def test_equal_models_stay_bit_for_bit(self) -> None:
        one = random_models(1, 2)[0]
        copies = {f"c{i}": replace(one, weight=w) for i, w in enumerate((3.0, 1.0, 7.0))}
        assert torch.equal(average_of(copies).vector, one.vector)
        assert torch.equal(average_of(copies, "uniform").vector, one.vector)

    @pytest.mark.parametrize("factor", [0.001, 3.0, 1e6])
    def test_scale_of_weights(self, factor: float) -> None:
        models = random_models(4, 3)
        scaled = [replace(m, weight=m.weight * factor) for m in models]
        assert toys.gap(mean(models), mean(scaled)) <= 1e-12

    def test_weight_zero_counts_for_nothing(self) -> None:
        models = random_models(3, 4)
        idle = replace(random_models(1, 5)[0], weight=0.0)
        for place in range(4):
            assert toys.gap(mean([*models[:place], idle, *models[place:]]), mean(models)) <= 1e-12

    def test_stays_inside_the_hull(self) -> None:
        models = random_models(5, 6)
        stacked = torch.stack([m.vector for m in models])
        found = mean(models).vector
        assert (found >= stacked.amin(0)).all()
        assert (found <= stacked.amax(0)).all()

    def test_refuses(self) -> None:
        models = random_models(2, 7)
        with pytest.raises(ValueError, match="no model"):
            mean([])
        with pytest.raises(ValueError, match="negative"):
            mean([replace(models[0], weight=-1.0)])
        with pytest.raises(ValueError, match="differ in shape"):
            mean([models[0], toys.params(toys.linear())])


@pytest.mark.parametrize("buffers", ["average", "first"])
def test_a3_batch_norm_statistics(buffers: str) -> None:
    """A3: running statistics are averaged as parameters are (or taken from the first); counters are never averaged."""
    clients = [toys.blobs(n, seed=n, dtype=torch.float32) for n in (24, 8)]
    spec = LocalSpec(epochs=1, batch=8, lr=0.1)  # three batches at c0, one at c1
    with toys.lab(FedAvg(spec), clients, (0, 1), toys.normed, classes=3, buffers=buffers) as lab:
        fed = lab.fed.begin(1, lab.tree.holders)
        start = fed.down(lab.state.model, to=CLIENTS)
        local = fed.up(fed.run(local_train, at=CLIENTS, start=start, spec=spec), to=SERVER)
        apart, together = fed.read(local), fed.read(fed.run(average, at=SERVER, models=local))
    a, b, found = (m.named() for m in (apart["c0"], apart["c1"], together))
    for name in ("features.1.running_mean", "features.1.running_var"):
        expected = 0.75 * a[name] + 0.25 * b[name] if buffers == "average" else a[name]
        assert toys.gap(found[name], expected) <= 1e-6
        assert toys.gap(a[name], b[name]) > 1e-3
    assert (a["features.1.num_batches_tracked"].item(), b["features.1.num_batches_tracked"].item()) == (3, 1)
    assert found["features.1.num_batches_tracked"].dtype == torch.int64
    assert found["features.1.num_batches_tracked"].item() == 3
    assert toys.gap(found["features.0.weight"], 0.75 * a["features.0.weight"] + 0.25 * b["features.0.weight"]) <= 1e-6


def test_a3_the_largest_counter_is_taken() -> None:
    few, many = (replace(toys.params(toys.normed()), counters=torch.tensor([n])) for n in (2, 9))
    for models in ([few, many], [many, few]):
        assert mean(models).counters.tolist() == [9]
    assert mean([few, replace(many, weight=0.0)]).counters.tolist() == [2]  # it did not contribute


def test_a4_hfedavg_once_is_fedavg() -> None:
    """A4: with one average at sectors and equal sizes, H-FedAvg is FedAvg, also with uniform weights."""
    clients, _ = bowls(6, 2, rows=[4] * 6)
    sectors = [0, 0, 0, 1, 1, 1]
    flat = toys.play(FedAvg(TEN_STEPS), clients, sectors, toys.Bowl, rounds=3)
    for by in ("samples", "uniform"):
        assert toys.gap(toys.play(HFedAvg(TEN_STEPS, by=by), clients, sectors, toys.Bowl, rounds=3), flat) <= 1e-10
    twice = toys.play(HFedAvg(TEN_STEPS, sector_rounds=2), clients, sectors, toys.Bowl, rounds=3)
    assert toys.gap(twice, flat) > 1e-3


@pytest.mark.parametrize("method", [FedAvg(ONE_STEP), HFedAvg(ONE_STEP)], ids=["fedavg", "hfedavg"])
def test_a4_a5_one_step_is_gradient_descent(method: object) -> None:
    """A4, A5: one full-batch step at each client is one step on the weighted global loss."""
    clients, losses = bowls(5, 3)
    shares = np.array([len(rows) for rows in clients]) / sum(map(len, clients))
    whole = mixture(losses, shares.tolist())
    w = np.zeros(2)
    for _ in range(4):
        w = w - 0.1 * whole.gradient(w)
    found = toys.play(method, clients, [0, 0, 1, 1, 1], toys.Bowl, rounds=4)
    assert toys.gap(found, torch.tensor(w)) <= 1e-10


@dataclass(frozen=True)
class Prox:
    """FedAvg with a pull towards the start: the real task and the real term."""

    local: LocalSpec
    mu: float

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        start = fed.down(state.model, to=CLIENTS)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(Proximal(self.mu),))
        return State(fed.run(average, at=SERVER, models=fed.up(local, to=SERVER)))


CLIENTS_A6 = bowls(4, 7, rows=[5, 5, 5, 5])


def bias(method: object, sectors: Sequence[int] = (0, 0, 1, 1)) -> float:
    """How far from the optimum a method comes to rest.

    On quadratics a round is an affine map x → Mx + c, which three rounds reveal; its rest point solves (I − M)x = c.
    """
    clients, losses = CLIENTS_A6

    def after(x: tuple[float, float]) -> np.ndarray:
        return toys.play(method, clients, sectors, lambda: toys.Bowl(x)).vector.numpy()

    constant = after((0.0, 0.0))
    matrix = np.stack([after((1.0, 0.0)) - constant, after((0.0, 1.0)) - constant], axis=1)
    assert np.abs(np.linalg.eigvals(matrix)).max() < 1  # it does come to rest
    rest = np.linalg.solve(np.eye(2) - matrix, constant)
    return float(np.linalg.norm(rest - mixture(losses, [0.25] * 4).centre))


class TestA6:
    """A6: more than one local step leaves a bias on unlike clients, which a smaller step or a pull shrinks."""

    def test_bias_shrinks_with_the_step(self) -> None:
        found = [bias(FedAvg(LocalSpec(steps=10, batch=64, lr=lr))) for lr in (0.05, 0.01, 0.001)]
        assert found[0] > 0.05
        assert found[0] > 2 * found[1] > 4 * found[2] > 0

    def test_one_step_has_none(self) -> None:
        assert bias(FedAvg(ONE_STEP)) < 1e-10
        assert bias(HFedAvg(ONE_STEP)) < 1e-10

    def test_hfedavg_has_it_too(self) -> None:
        found = [bias(HFedAvg(LocalSpec(steps=1, batch=64, lr=lr), sector_rounds=5)) for lr in (0.05, 0.005)]
        assert found[0] > 0.01
        assert found[0] > 2 * found[1] > 0

    def test_pull_towards_the_start(self) -> None:
        without = bias(FedAvg(TEN_STEPS))
        assert bias(Prox(TEN_STEPS, 0.0)) == pytest.approx(without, abs=1e-10)
        assert bias(Prox(TEN_STEPS, 10.0)) < 0.7 * without
        assert bias(Prox(TEN_STEPS, 10.0)) > 1e-3

    def test_alike_clients_have_none(self) -> None:
        """With equal curvature everywhere FedAvg has no bias, which is why the others differ."""
        clients = [toys.bowl(np.diag([1.0, 2.0]), [i, -i], rows=2) for i in range(4)]
        found = toys.play(FedAvg(TEN_STEPS), clients, (0, 0, 1, 1), lambda: toys.Bowl((1.5, -1.5)), rounds=3)
        assert toys.gap(found, torch.tensor([1.5, -1.5], dtype=torch.float64)) <= 1e-10


def test_arithmetic_on_models() -> None:
    a, b = random_models(2, 9)
    assert torch.equal((a + b).vector, a.vector + b.vector)
    assert torch.equal((a - b).vector, a.vector - b.vector)
    assert torch.equal((2 * a).vector, (a * 2).vector)
    assert a.nbytes == 8 * len(a.vector)
    module = a.load_into(toys.net())
    assert all(torch.equal(p, a.named()[n]) for n, p in module.named_parameters())
    assert isinstance(module, nn.Module)
