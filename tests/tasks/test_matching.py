"""Which neurons are the same one, and what becomes of a model that is put together from them."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

import toys
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.matching import (
    Matching,
    Prior,
    assembled,
    depth,
    layer_of,
    match,
    match_layer,
    neurons,
    placed,
    retrain,
    rewired,
    with_room,
)

RNG = np.random.default_rng


def test_gains_by_hand() -> None:
    """Three clients; two of them have put 2 + 4 = 6 into the one global neuron, the third brings a 3. All spreads 1.

    Matched: (3 + 6)²/(3 + 1) − 6²/3 + 2 ln(2/1) = 20.25 − 12 + 2 ln 2. New, first or second place: 3²/2 + 2 ln(7/3),
    less 2 ln 1 or 2 ln 2.
    """
    found = Matching([np.array([[2.0]]), np.array([[4.0]]), np.array([[3.0], [3.0]])], Prior(), most=3)
    found.sums, found.counts = np.array([[6.0]]), np.array([2])
    new = 4.5 + 2 * math.log(7 / 3)
    expected = [8.25 + 2 * math.log(2), new, new - 2 * math.log(2)]
    assert found.gains(2).tolist() == [pytest.approx(expected, abs=1e-12)] * 2


def test_gains_with_other_spreads() -> None:
    """Spreads ½ and 2, precisions 4 and ¼: (4·3 + 4·6)²/(8.25 + 4) − 24²/8.25 + 2 ln 2; new 12²/4.25 + 2 ln(1/3)."""
    prior = Prior(gamma=1.0, sigma=0.5, sigma0=2.0)
    found = Matching([np.array([[2.0]]), np.array([[4.0]]), np.array([[3.0]])], prior, most=2)
    found.sums, found.counts = np.array([[6.0]]), np.array([2])
    old = 36**2 / 12.25 - 24**2 / 8.25 + 2 * math.log(2)
    assert found.gains(2).tolist() == [pytest.approx([old, 144 / 4.25 + 2 * math.log(1 / 3)], abs=1e-12)]


def test_permutations_are_undone() -> None:
    rows = RNG(0).normal(size=(8, 5))
    orders = [RNG(j).permutation(8) for j in range(4)]
    found = match([rows[order] for order in orders], Prior(), 8, RNG(1))
    assert found.counts.tolist() == [4] * 8
    for j, order in enumerate(orders):
        assert np.allclose(found.mean()[found.places[j]], rows[order], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_two_clients_are_matched_as_well_as_can_be(seed: int) -> None:
    """Of all one-to-one assignments it finds the one that makes the posterior largest."""
    first, second = RNG(seed).normal(size=(2, 4, 3))

    def objective(order: tuple[int, ...]) -> float:
        return float((((first[list(order)] + second) ** 2).sum(1) / 3).sum())

    found = match([first, second], Prior(sweeps=0), 4, RNG(0))
    at = np.argsort(found.places[0])[found.places[1]]  # client 0's neuron for each of client 1's
    assert objective(tuple(at)) == pytest.approx(max(map(objective, permutations(range(4)))), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_sweeps_never_lose(seed: int) -> None:
    """Each client is taken out and put back where it gains most, so the posterior does not fall."""
    groups = [RNG(seed).normal(size=(5, 3)) for seed in range(seed, seed + 6)]

    def objective(found: Matching) -> float:
        return float(((found.sums**2).sum(1) / (1 + found.counts)).sum())

    none, some = (match(groups, Prior(sweeps=n), 5, RNG(3)) for n in (0, 5))
    assert objective(some) >= objective(none) - 1e-9


def test_new_neurons_where_nothing_is_alike() -> None:
    """Two clients share a direction; each has one of its own, opposite to the other's. The width grows to 3."""
    groups = [np.array([[9.0, 0.0], [0.0, 9.0]]), np.array([[9.0, 0.0], [0.0, -9.0]])]
    found = match(groups, Prior(), most=4, rng=RNG(0))
    assert sorted(found.counts.tolist()) == [1, 1, 2]
    assert found.places[0][0] == found.places[1][0]
    assert found.places[0][1] != found.places[1][1]
    narrow = match(groups, Prior(), most=2, rng=RNG(0))
    assert narrow.counts.tolist() == [2, 2]
    assert sorted(map(tuple, narrow.mean().tolist())) == [(0.0, 0.0), (9.0, 0.0)]


def test_width_stays_below_its_bound() -> None:
    """Clients with unequal numbers of neurons that have nothing in common: 3 + 2 + 4 would be wanted, 6 are there."""
    groups = [10.0 * np.eye(9)[a:b] for a, b in ((0, 3), (3, 5), (5, 9))]
    assert len(match(groups, Prior(), 9, RNG(0)).sums) == 9
    bounded = match(groups, Prior(), 6, RNG(0))
    assert len(bounded.sums) == 6
    assert int(bounded.counts.sum()) == 9
    assert all(len(set(places.tolist())) == len(places) for places in bounded.places.values())


def test_sums_and_counts_follow_the_places() -> None:
    groups = [RNG(j).normal(size=(3 + j, 2)) for j in range(4)]
    found = match(groups, Prior(), 8, RNG(0))
    sums, counts = np.zeros_like(found.sums), np.zeros_like(found.counts)
    for j, places in found.places.items():
        np.add.at(sums, places, groups[j])
        np.add.at(counts, places, 1)
    assert np.allclose(found.sums, sums)
    assert found.counts.tolist() == counts.tolist()
    assert counts.min() > 0


def test_mean_with_and_without_the_prior() -> None:
    """Two neurons of 4 and 8: their mean is 6; with the prior at 0 as a third it is 4."""
    groups = [np.array([[4.0]]), np.array([[8.0]])]
    for shrink, expected in ((False, 6.0), (True, 4.0)):
        assert match(groups, Prior(shrink=shrink), 1, RNG(0)).mean().tolist() == [[expected]]


def test_numbers_out_of_bounds_do_not_stop_it() -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        found = match([np.full((2, 2), 1e200), np.eye(2)], Prior(), 2, RNG(0))
    assert found.counts.tolist() == [2, 2]


# -- models


def mlp() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3)).double()


def conv() -> nn.Module:
    """Images of 1 × 3 px, three filters, flattened to 9 inputs."""
    layers = (nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4), nn.ReLU())
    return Net(nn.Sequential(*layers), nn.Linear(4, 3)).double()


ROWS = toys.blobs(12)
AROUND = toys.context([ROWS, toys.blobs(6, seed=1)], mlp, classes=3)
START = AROUND.initial(toys.ARCH, 0)


def test_a_layer_comes_apart_and_together() -> None:
    rows = neurons(START, "features.0")
    assert rows.shape == (5, 4)
    named = START.named()
    assert torch.equal(rows[:, :3], named["features.0.weight"])
    assert torch.equal(rows[:, 3], named["features.0.bias"])
    other = placed(START, "features.0", 2 * rows)
    assert torch.equal(neurons(other, "features.0"), 2 * rows)
    assert torch.equal(neurons(other, "features.2"), neurons(START, "features.2"))
    assert torch.equal(neurons(START, "features.0"), rows), "the model itself is left alone"


def shuffled(model: Params, layer: str, following: str, places: torch.Tensor) -> Params:
    """The same function with a layer's neurons elsewhere: neuron i at places[i]."""
    rows = neurons(model, layer)
    moved = torch.empty_like(rows)
    moved[places] = rows
    return rewired(placed(model, layer, moved), following, places)


def test_shuffled_neurons_compute_the_same() -> None:
    ctx, places = toys.ctx(AROUND), torch.tensor([3, 0, 4, 1, 2])
    other = shuffled(START, "features.0", "features.2", places)
    assert toys.gap(START, other) > 0.1
    assert torch.allclose(ctx.flat_module(other, 1).outputs(ROWS.x), ctx.flat_module(START).outputs(ROWS.x), atol=1e-12)


def test_flattened_channels_move_as_blocks() -> None:
    """Each of 3 channels is 3 of the linear layer's 9 inputs."""
    images = toys.blobs(6).x.reshape(6, 1, 1, 3)
    around = toys.context([Examples(images, toys.blobs(6).y)], conv, classes=3)
    ctx, start = toys.ctx(around), around.initial(toys.ARCH, 0)
    other = shuffled(start, "features.0", "features.3", torch.tensor([2, 0, 1]))
    assert toys.gap(start, other) > 0.1
    assert torch.allclose(ctx.flat_module(other, 1).outputs(images), ctx.flat_module(start).outputs(images), atol=1e-12)


def test_depth_and_layer_of() -> None:
    ctx = toys.ctx(AROUND)
    assert depth(ctx, START) == 3
    assert torch.equal(layer_of(ctx, START, 2), neurons(START, "classifier"))


def test_matched_layer_and_places() -> None:
    """c1 holds c0's neurons elsewhere; c2's were lost on the way."""
    rows, order = neurons(START, "features.0"), [3, 0, 4, 1, 2]
    found = match_layer(toys.ctx(AROUND, "server"), {"c0": rows, "c1": rows[order]}, ("c0", "c1", "c2"), Prior())
    layer, places = found["layer"], found["places"]
    assert torch.allclose(layer[places["c0"]], rows, atol=1e-12)
    assert torch.allclose(layer[places["c1"]], rows[order], atol=1e-12)
    assert places["c2"].tolist() == [0, 1, 2, 3, 4]
    assert layer.dtype == rows.dtype


def test_retraining_leaves_matched_layers_alone() -> None:
    """Also under weight decay and momentum; what follows does move, and the next training finds nothing frozen."""
    spec = LocalSpec(epochs=2, batch=4, lr=0.1, momentum=0.9, weight_decay=0.1)
    layer, same = 1.5 * neurons(START, "features.0"), torch.arange(5)
    ctx = toys.ctx(AROUND)
    found = retrain(ctx, START, layer, same, 0, spec)
    assert torch.equal(neurons(found, "features.0"), layer)
    assert float((neurons(found, "features.2") - neurons(START, "features.2")).abs().max()) > 1e-3
    last = retrain(ctx, found, neurons(found, "features.2"), torch.arange(4), 1, spec)
    assert torch.equal(neurons(last, "features.0"), layer)
    assert torch.equal(neurons(last, "features.2"), neurons(found, "features.2"))
    assert float((neurons(last, "classifier") - neurons(found, "classifier")).abs().max()) > 1e-3
    assert all(p.requires_grad for p in ctx.flat_module(START).module.parameters())


def test_retraining_equals_a_plain_loop() -> None:
    """Torch's own optimiser on the layers that are left, on the same batches."""
    spec = LocalSpec(epochs=2, batch=5, lr=0.1)
    layer, places = neurons(START, "features.0").flip(0), torch.tensor([4, 3, 2, 1, 0])
    found = retrain(toys.ctx(AROUND), START, layer, places, 0, spec)
    module = START.load_into(mlp())  # reversing neurons and inputs alike leaves the function
    rest = [p for name, p in module.named_parameters() if not name.startswith("features.0")]
    optimiser, rng = torch.optim.SGD(rest, lr=0.1), toys.ctx(AROUND).rng
    for _ in range(2):
        for part in torch.from_numpy(rng.permutation(12)).split(5):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(ROWS.x[part]), ROWS.y[part]).backward()
            optimiser.step()
    expected = toys.params(module)
    assert toys.gap(neurons(found, "features.2")[:, :5].flip(1), neurons(expected, "features.2")[:, :5]) <= 1e-12
    assert toys.gap(neurons(found, "classifier"), neurons(expected, "classifier")) <= 1e-12


def test_assembling() -> None:
    """The last layer by 3 and 1 samples, or alike; the others as matched."""
    rows = neurons(START, "classifier")
    matched = (2 * neurons(START, "features.0"), 3 * neurons(START, "features.2"))
    last, sizes = {"c0": rows, "c1": 5 * rows}, {"c0": 3.0, "c1": 1.0, "c2": 8.0}
    for by, factor, weight in (("samples", 2.0, 4.0), ("uniform", 3.0, 2.0)):
        found = assembled(toys.ctx(AROUND, "server"), START, matched, last, sizes, by)  # type: ignore[arg-type]
        assert toys.gap(neurons(found, "classifier"), factor * rows) <= 1e-12
        assert torch.equal(neurons(found, "features.2"), matched[1])
        assert found.weight == weight


def test_empty_neurons_stay_empty_in_training() -> None:
    """Half of each hidden layer: 2 of 5 (rounded) and 2 of 4, with what goes out of them."""
    ctx = toys.ctx(AROUND)
    start = with_room(ctx, START, 0.5)
    found = local_train(ctx, start, LocalSpec(epochs=3, batch=4, lr=0.3, momentum=0.9, weight_decay=0.01))
    for model in (start, found):
        first, second, last = (neurons(model, layer) for layer in ("features.0", "features.2", "classifier"))
        assert first.any(1).tolist() == [True, True, False, False, False]
        assert second.any(1).tolist() == [True, True, False, False]
        assert not second[:, 2:5].any()
        assert not last[:, 2:4].any()
    assert toys.gap(start, found) > 1e-2


def test_growing_into_empty_places() -> None:
    """Two clients with one live neuron each, which have nothing in common, fill two of three places."""
    first, second = (torch.zeros(3, 2, dtype=torch.float64) for _ in range(2))
    first[0], second[2] = torch.tensor([9.0, 0.0]), torch.tensor([-9.0, 0.0])
    ctx = toys.ctx(AROUND, "server")
    found = match_layer(ctx, {"c0": first, "c1": second}, ("c0", "c1"), Prior())
    assert sorted(found["layer"].tolist()) == [[-9.0, 0.0], [0.0, 0.0], [9.0, 0.0]]
    assert ctx.notes["neurons"] == 2
    for client, row, at in (("c0", [9.0, 0.0], 0), ("c1", [-9.0, 0.0], 2)):
        places = found["places"][client]
        assert sorted(places.tolist()) == [0, 1, 2]
        assert found["layer"][places[at]].tolist() == row
