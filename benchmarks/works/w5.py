"""One round of FedHEAD+, against the sum of its parts."""

from __future__ import annotations

from pathlib import Path

import distillation
import packs
from contest import Contestant, tuned
from record import BEST, Claim

from works.base import Work

PARTS = "sum of its parts, tuned"


def work(quick: bool) -> Work:
    clients, per, reference, epochs = (4, 64, 60, 2) if quick else (20, 250, 1000, 5)
    tree = distillation.fedhead_plus(clients=clients, reference=reference, epochs=epochs)

    def pack(path: Path) -> Path:
        return distillation.head_round(path, tree, *packs.images("cifar10", clients * per + reference, quick=quick))

    return Work(
        f"one FedHEAD+ round, {clients} clients × {per} CIFAR-10 images in 2 sectors, {reference} reference images, "
        f"ResNet-8, {epochs} local and {epochs} distillation epochs",
        [tuned(PARTS, "parts"), Contestant(BEST, "ours")],
        pack,
        PARTS,
        [Claim(1.1, (PARTS,), who=BEST)],
    )
