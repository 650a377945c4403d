"""Bound by arithmetic: a small residual net on few clients."""

from __future__ import annotations

from pathlib import Path

import packs
from contest import Contestant, framework, tuned
from record import OURS, Claim

from works.base import Work

FLOWER, PFL, BARE, TUNED = "Flower 1.41", "pfl-research 0.6", "researcher's loop", "tuned loop"


def peers(limit: float = 1800.0) -> list[Contestant]:
    return [
        Contestant(BARE, "bare", limit=limit),
        framework(FLOWER, "flower", "flower", limit=limit),
        framework(PFL, "pfl_research", "pfl", limit=limit),
    ]


def work(quick: bool) -> Work:
    clients, per, rounds = (4, 64, 2) if quick else (20, 250, 3)
    tree = packs.fedavg(
        clients=clients,
        active=clients,
        model={"name": "resnet8", "norm": "group"},
        rounds=rounds,
        batch=64,
        lr=0.1,
    )

    def pack(path: Path) -> Path:
        return packs.averaging(path, tree, *packs.images("cifar10", clients * per, quick=quick))

    return Work(
        f"FedAvg, {clients} clients × {per} CIFAR-10 images, ResNet-8 with group norm, batch 64, {rounds} rounds",
        [tuned(TUNED, "tuned"), Contestant(OURS, "ours"), *peers()],
        pack,
        TUNED,
        [Claim(1.05, (TUNED,)), Claim(1.0, (FLOWER, PFL))],
    )
