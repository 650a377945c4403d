"""Small convolutional nets on many clients of few images: arithmetic in pieces so small that all else shows too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packs
from contest import Contestant, framework, tuned
from record import BEST, Claim

from works.base import Work
from works.w1 import BARE, PFL, TUNED, headwater

VMAP = "torch's vmap over clients"


def sizes(quick: bool) -> tuple[int, int, int]:
    """Registered clients, those of a round, rounds; each has 60 images."""
    return (20, 6, 2) if quick else (100, 20, 10)


def tree_of(quick: bool) -> dict[str, Any]:
    clients, active, rounds = sizes(quick)
    model = {"name": "cnn", "widths": [16, 32], "hidden": 0, "norm": "none"}
    return packs.fedavg(clients=clients, active=active, model=model, rounds=rounds, batch=20, lr=0.1)


def work(quick: bool) -> Work:
    clients, active, rounds = sizes(quick)

    def pack(path: Path) -> Path:
        return packs.averaging(path, tree_of(quick), *packs.images("fashion_mnist", 60 * clients, quick=quick))

    return Work(
        f"FedAvg, {clients} clients × 60 Fashion-MNIST images, {active} a round, batch 20, "
        f"CNN with 16 and 32 channels, {rounds} rounds",
        [
            tuned(TUNED, "tuned"),
            *headwater(),
            tuned(VMAP, "vmapped", threads=2),
            Contestant(BARE, "bare"),
            framework(PFL, "pfl_research", "pfl"),
        ],
        pack,
        TUNED,
        [Claim(1.05, (TUNED,), who=BEST, what="cpu_seconds")],
        repeats=5,
        cpu=True,
    )
