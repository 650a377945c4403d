from __future__ import annotations

import toys
from headwater.core.params import Params
from headwater.tasks.average import average, initial

AROUND = toys.context([toys.points((1, 0))], toys.Slopes)
MODELS = {
    name: toys.params(toys.Slopes(start), weight)
    for name, start, weight in (("a", (1.0, 0.0), 3.0), ("b", (5.0, 4.0), 1.0), ("c", (9.0, 9.0), 2.0))
}


def numbers(model: Params) -> list[float]:
    return model.vector.tolist()


def test_average() -> None:
    """Of a and b: ¾·(1, 0) + ¼·(5, 4) = (2, 1)."""
    pair = {name: MODELS[name] for name in ("a", "b")}
    found = average(toys.ctx(AROUND), pair)
    assert numbers(found) == [2.0, 1.0]
    assert found.weight == 4
    assert numbers(average(toys.ctx(AROUND), pair, by="uniform")) == [3.0, 2.0]


def test_uniform_keeps_the_samples_as_weight() -> None:
    assert average(toys.ctx(AROUND), MODELS, by="uniform").weight == 6


def test_initial_is_a_function_of_the_seed() -> None:
    around = [toys.context([toys.blobs(3)], toys.net, classes=3, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (initial(toys.ctx(place, "server"), toys.ARCH) for place in around)
    assert toys.gap(first, again) == 0
    assert toys.gap(first, other) > 1e-3
    assert first.weight == 0
