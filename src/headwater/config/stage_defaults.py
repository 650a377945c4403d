"""Defaults of `[local]`, `[sector]` and `[server]` that follow from the size of the data, and the words for them."""

from __future__ import annotations

import math
from typing import Any

from headwater.specs import LEARNING_RATE

OPTIMIZER = "adam"
SMALL, LOCAL_EPOCHS = 500, (10, 5)  # mean rows of a client, and local epochs below that and from that on
DISTILL_EPOCHS, PATIENCE = 10, 5
SMALLEST_BATCH, LARGEST_BATCH = 8, 64

_BATCH = f"{SMALLEST_BATCH} to {LARGEST_BATCH}: a quarter of {{}} as a power of two"
_RATES = f"{LEARNING_RATE['adam']} (Adam), {LEARNING_RATE['sgd']} (SGD)"
# Section → key → the default as used, in words. A method's own defaults take precedence over these.
WORDS: dict[str, dict[str, str]] = {
    "local": {
        "epochs": f"{LOCAL_EPOCHS[0]} where clients have less than {SMALL} rows on average, else {LOCAL_EPOCHS[1]}",
        "batch": _BATCH.format("a client's mean rows"),
        "optimizer": f'"{OPTIMIZER}"',
        "lr": _RATES,
    },
    **{
        section: {
            "epochs": str(DISTILL_EPOCHS),
            "batch": _BATCH.format(rows),
            "optimizer": f'"{OPTIMIZER}"',
            "lr": _RATES,
            "patience": f'{PATIENCE} with a validation set, else "none"',
            "restore": '"best_or_init" with a validation set, else "last"',
        }
        for section, rows in (("sector", "a client's mean rows"), ("server", "the reference set"))
    },
}


def local_defaults(rows: int) -> dict[str, Any]:
    """Settings of local training.

    Args:
        rows: the mean number of rows per client.
    """
    return {"optimizer": OPTIMIZER, "batch": batch_for(rows), "epochs": LOCAL_EPOCHS[rows >= SMALL]}


def distill_defaults(rows: int, *, validated: bool) -> dict[str, Any]:
    """Settings of distillation.

    Args:
        rows: number of rows that are distilled on.
        validated: whether there is a validation set.
    """
    judged = {"patience": PATIENCE, "restore": "best_or_init"} if validated else {}
    return {"optimizer": OPTIMIZER, "batch": batch_for(rows), "epochs": DISTILL_EPOCHS, **judged}


def batch_for(rows: int) -> int:
    """The default batch size: a quarter of the rows as a power of two, from 8 to 64, for several steps per epoch."""
    return int(min(LARGEST_BATCH, max(SMALLEST_BATCH, 2 ** round(math.log2(max(1, rows / 4))))))
