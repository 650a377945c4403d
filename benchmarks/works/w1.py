"""Bound by arithmetic: a small residual net on few clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packs
from contest import Contestant, framework, tuned
from record import BEST, OURS, Claim

from works.base import Work

FLOWER, PFL, BARE, TUNED = "Flower 1.41", "pfl-research 0.6", "researcher's loop", "tuned loop"


def peers(limit: float = 1800.0) -> list[Contestant]:
    return [
        Contestant(BARE, "bare", limit=limit),
        framework(FLOWER, "flower", "flower", limit=limit),
        framework(PFL, "pfl_research", "pfl", limit=limit),
    ]


def headwater() -> list[Contestant]:
    """As a user gets it, and as one gets it who knows what to set and asks for as little as the others give."""
    return [Contestant(OURS, "ours_default"), Contestant(BEST, "ours")]


def sizes(quick: bool) -> tuple[int, int, int]:
    """Clients, images of each, rounds."""
    return (4, 64, 2) if quick else (20, 250, 3)


def tree_of(quick: bool) -> dict[str, Any]:
    clients, _, rounds = sizes(quick)
    model = {"name": "resnet8", "norm": "group"}
    return packs.fedavg(clients=clients, active=clients, model=model, rounds=rounds, batch=64, lr=0.1)


def work(quick: bool) -> Work:
    clients, per, rounds = sizes(quick)

    def pack(path: Path) -> Path:
        return packs.averaging(path, tree_of(quick), *packs.images("cifar10", clients * per, quick=quick))

    return Work(
        f"FedAvg, {clients} clients × {per} CIFAR-10 images, ResNet-8 with group norm, batch 64, {rounds} rounds",
        [tuned(TUNED, "tuned"), *headwater(), *peers()],
        pack,
        TUNED,
        [
            Claim(1.0, (TUNED,), who=BEST),
            Claim(1.05, (TUNED,), who=BEST, what="cpu_seconds"),
            Claim(1.0, (FLOWER, PFL), who=BEST),
        ],
        cpu=True,
    )
