"""Distillation: ten teachers into one student, from its inputs alone."""

from __future__ import annotations

from pathlib import Path

import distillation
import packs
from contest import Contestant, tuned
from record import BEST, Claim

from works.base import Work

IDEAL, WIDE, AGAIN = "ideal", "ideal, student on two threads", "teachers asked at every step"


def work(quick: bool) -> Work:
    images, epochs, own = (1000, 5, 1000) if quick else (5000, 20, 10_000)
    tree = distillation.feddf(clients=10, epochs=epochs)

    def pack(path: Path) -> Path:
        train, test = packs.images("cifar10", images, quick=quick)
        return distillation.teachers(
            path, tree, 10, packs.images("cifar10", own, skip=images, quick=quick)[0], train, test
        )

    return Work(
        f"10 ResNet-8 teachers, {images} CIFAR-10 images, {epochs} epochs into one student, Adam, batch 64",
        [
            tuned(IDEAL, "ideal"),
            Contestant(BEST, "ours_distilling"),
            tuned(WIDE, "ideal", "2"),
            Contestant(AGAIN, "recomputing", turns=1),  # it takes longer than all the others together
        ],
        pack,
        IDEAL,
        [Claim(1.1, (IDEAL, WIDE), who=BEST), Claim(1 / 3.5, (AGAIN,), who=BEST)],
        "seconds",
        2,
    )
