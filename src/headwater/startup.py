"""What a process of our own settles as it starts, before torch is there.

Importing torch makes several hundred thousand objects that stay. By default they are looked through again and again
while they are made, and once more when the process ends, which is a good part of the time of a short run. In a program
that uses the library the collector is that program's business, so `begin` and `end` are not called from there.

A thread that waits for others spins for some tenths of a millisecond. Without it several threads are hardly faster than
one; by default they spin for longer, and starve each other where another process has the core.

MKL is asked to choose the kernel of a product by the processor alone (`MKL_CBWR=AUTO`), not by the shape of the call or
where operands lie. No product is slower for it. It has to be asked before the first product: see `numerics`.
"""

from __future__ import annotations

import gc
import os
import sys

CBWR = "MKL_CBWR"
ENVIRONMENT = {"GOMP_SPINCOUNT": "30000", CBWR: "AUTO"}
USUAL, RARE = gc.get_threshold(), (100_000, 20, 100)


early = False  # whether the environment was set before torch could look at it


def settle() -> None:
    """Set what torch's libraries look up when they are loaded or first used; what the user has set stays."""
    global early
    early = "torch" not in sys.modules or CBWR in os.environ
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def begin() -> None:
    """Look for garbage rarely, until `end`."""
    gc.set_threshold(*RARE)


def end() -> None:
    """What is there now stays and need not be looked through. Without `begin` nothing happens."""
    if gc.get_threshold() == RARE:
        gc.freeze()
        gc.set_threshold(*USUAL)
