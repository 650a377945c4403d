"""B8: FedBE in special cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedbe import FedBe
from headwater.algorithms.feddf import FedDf
from headwater.core.params import Params
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
SOME = DistillSpec(epochs=3, batch=8, optimizer="sgd", lr=0.2, weights="uniform")
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9))]
REFERENCE = toys.blobs(20, seed=50).x


def play(method: Any, rounds: int = 1) -> Params:
    return toys.play(method, CLIENTS, (0, 1, 0), toys.net, rounds, classes=3, reference=REFERENCE)


def test_b8_the_average_alone() -> None:
    """B8: without samples and clients the model teaches itself, so nothing is learnt; sharpened, it is."""
    alone = FedBe(LOCAL, SOME, samples=0, with_clients=False)
    assert toys.gap(play(alone, 2), play(FedAvg(LOCAL), 2)) <= 1e-10
    sharper = replace(alone, server=replace(SOME, sharpen=0.5))
    assert toys.gap(play(sharper), play(FedAvg(LOCAL))) > 1e-3


def test_clients_alone() -> None:
    """Then it is FedDF with the mean of probabilities."""
    found = play(FedBe(LOCAL, SOME, samples=0, with_average=False), 2)
    assert toys.gap(found, play(FedDf(LOCAL, SOME, drop_worst=False), 2)) == 0


@pytest.mark.parametrize("sampler", ["gaussian", "gaussian-as-coded", "dirichlet"])
def test_samples_change_what_is_learnt(sampler: str) -> None:
    without = play(FedBe(LOCAL, SOME, samples=0))
    some, more = (play(FedBe(LOCAL, SOME, sampler, count)) for count in (2, 8))
    assert min(toys.gap(some, without), toys.gap(more, without), toys.gap(some, more)) > 1e-6


def test_averaged_weights() -> None:
    """`swa_from` gives the mean of the student's weights along the way, not its last."""
    averaged = play(FedBe(LOCAL, replace(SOME, swa_from=2, swa_every=2)))
    assert toys.gap(averaged, play(FedBe(LOCAL, SOME))) > 1e-5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": {"samples": 0, "with_average": False, "with_clients": False}}, "nobody is left to teach"),
        (
            {"algorithm": {"per_class": True}, "server": {"optimizer": "adam", "momentum": 0.0}},
            "per_class makes steps of sgd",
        ),
        ({"server": {"weights": "labels"}}, "sampled models have not"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        toys.tiny("fedbe", **options)


def test_what_suits_it() -> None:
    """The code's settings stand where nothing else was said, whether there is a validation set or not."""
    server = toys.tiny("fedbe").method.server
    assert (server.optimizer, server.lr, server.momentum, server.weight_decay) == ("sgd", 1e-3, 0.9, 1e-5)
    assert (server.mix, server.weights, server.sharpen, server.swa_from, server.swa_every) == (
        "probs",
        "uniform",
        0.5,
        500,
        25,
    )
    assert (server.patience, server.restore) == (None, "last")
