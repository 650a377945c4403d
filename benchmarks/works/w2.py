"""Bound by everything but arithmetic: a small perceptron on many clients of few images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packs
from contest import Contestant, tuned
from record import OURS, Claim

from works.base import Work
from works.w1 import BARE, FLOWER, PFL, TUNED, peers

STACKED, LIMIT = "hand-stacked loop", "hand-stacked, gradients written out"


def sizes(quick: bool) -> tuple[int, int, int]:
    """Registered clients, those of a round, rounds; each has 50 images."""
    return (40, 10, 4) if quick else (1000, 50, 20)


def tree_of(quick: bool) -> dict[str, Any]:
    clients, active, rounds = sizes(quick)
    model = {"name": "mlp", "hidden": [50]}
    return packs.fedavg(clients=clients, active=active, model=model, rounds=rounds, batch=10, lr=0.1)


def work(quick: bool) -> Work:
    clients, active, rounds = sizes(quick)

    def pack(path: Path) -> Path:
        return packs.averaging(path, tree_of(quick), *packs.images("fashion_mnist", 50 * clients, quick=quick))

    return Work(
        f"FedAvg, {clients} clients × 50 Fashion-MNIST images, {active} a round, batch 10, MLP 784-50-10, "
        f"{rounds} rounds",
        [
            tuned(LIMIT, "stacked", threads=2),
            Contestant(OURS, "ours"),
            tuned(STACKED, "stacked_autograd", threads=2),
            tuned(TUNED, "tuned"),
            *peers(),
        ],
        pack,
        BARE,
        [Claim(1 / 6, (BARE,)), Claim(1 / 3, (FLOWER, PFL)), Claim(1.0, (STACKED,)), Claim(1.0, (LIMIT,))],
        repeats=5,
    )
