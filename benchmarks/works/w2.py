"""Bound by everything but arithmetic: a small perceptron on many clients of few images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packs
from contest import JAX, Contestant, tuned
from record import BEST, OURS, Claim

from works.base import Work
from works.w1 import BARE, FLOWER, PFL, TUNED, headwater, peers

STACKED, LIMIT = "hand-stacked loop", "hand-stacked, gradients written out"
SCAN, VMAP, FEDJAX = "jitted JAX, clients in turn", "jitted JAX, vmap over clients", "FedJAX 0.0.17"
EVALUATED = f"{SCAN}, evaluated every round"  # as Headwater is by default, on the same images
FLOOR = f"{LIMIT}, evaluated every round"


def sizes(quick: bool) -> tuple[int, int, int]:
    """Registered clients, those of a round, rounds; each has 50 images."""
    return (40, 10, 4) if quick else (1000, 50, 20)


def tree_of(quick: bool) -> dict[str, Any]:
    clients, active, rounds = sizes(quick)
    model = {"name": "mlp", "hidden": [50]}
    return packs.fedavg(clients=clients, active=active, model=model, rounds=rounds, batch=10, lr=0.1)


def on_jax() -> list[Contestant]:
    """As JAX sets itself up: it may use all cores."""
    return [
        Contestant(SCAN, "jax_loop", ("scan",), JAX, environment="jax"),
        Contestant(EVALUATED, "jax_loop", ("scan", "evaluated"), JAX, environment="jax"),
        Contestant(VMAP, "jax_loop", ("vmap",), JAX, environment="jax"),
        Contestant(FEDJAX, "fed_jax", (), JAX, environment="fedjax"),
    ]


def work(quick: bool) -> Work:
    clients, active, rounds = sizes(quick)

    def pack(path: Path) -> Path:
        return packs.averaging(path, tree_of(quick), *packs.images("fashion_mnist", 50 * clients, quick=quick))

    return Work(
        f"FedAvg, {clients} clients × 50 Fashion-MNIST images, {active} a round, batch 10, MLP 784-50-10, "
        f"{rounds} rounds",
        [
            tuned(LIMIT, "stacked", threads=2),
            tuned(FLOOR, "stacked", "evaluated", threads=2),
            *headwater(),
            tuned(STACKED, "stacked_autograd", threads=2),
            *on_jax(),
            tuned(TUNED, "tuned"),
            *peers(),
        ],
        pack,
        BARE,
        [
            Claim(0.11, (BARE,), who=OURS),
            Claim(0.06, (BARE,), who=BEST),
            Claim(1.0, (EVALUATED,), who=OURS),
            *(Claim(1.0, (SCAN, VMAP), who=who) for who in (OURS, BEST)),
            *(Claim(1.0, (FEDJAX,), who=who) for who in (OURS, BEST)),
            Claim(1 / 3, (FLOWER, PFL), who=BEST),
            Claim(1.0, (STACKED,), who=BEST),
            Claim(1.0, (LIMIT,), who=BEST),
        ],
        repeats=5,
    )
