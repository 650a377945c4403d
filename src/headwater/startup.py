"""What a process of our own settles as it starts, before torch is there.

Importing torch makes several hundred thousand objects that stay. By default they are looked through again and again
while they are made, and once more when the process ends, which is a good part of the time of a short run. In a program
that uses the library the collector is that program's business, so `begin` and `end` are not called from there.

A thread that waits for others spins for some tenths of a millisecond. Without it several threads are hardly faster than
one; by default they spin for longer, and starve each other where another process has the core.
"""

from __future__ import annotations

import gc
import os

SPIN = {"GOMP_SPINCOUNT": "30000"}
USUAL, RARE = gc.get_threshold(), (100_000, 20, 100)


def spin() -> None:
    """Set how long threads spin, which torch's threads look up when they are loaded; under what the user has set."""
    for name, value in SPIN.items():
        os.environ.setdefault(name, value)


def begin() -> None:
    """Look for garbage rarely, until `end`."""
    gc.set_threshold(*RARE)


def end() -> None:
    """What is there now stays and need not be looked through. Without `begin` nothing happens."""
    if gc.get_threshold() == RARE:
        gc.freeze()
        gc.set_threshold(*USUAL)
