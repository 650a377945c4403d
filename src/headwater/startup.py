"""Settings of a process that must be made before torch is imported: environment variables and garbage collection.

Garbage collection: importing torch creates several hundred thousand objects that stay. By default the collector
traverses them again and again during the import, and once more when the process ends, which is a good part of the time
of a short run. `defer_gc` and `freeze_gc` avoid that. They are called by Headwater's own processes only: in a program
that uses the library, the collector belongs to that program.

Environment: GOMP_SPINCOUNT lets a thread that waits for others spin for some tenths of a millisecond. Without spinning,
several threads are hardly faster than one; the default spins for longer and takes the core from other processes.
MKL_CBWR=AUTO makes MKL choose the kernel of a matrix product by the processor alone, not by the shape of the call or
the alignment of operands. It costs no speed. It has to be set before the first product: see `headwater.core.numerics`.
CUBLAS_WORKSPACE_CONFIG makes products on a CUDA GPU the same every time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CBWR = "MKL_CBWR"
ENVIRONMENT = {"GOMP_SPINCOUNT": "30000", CBWR: "AUTO", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
DEFAULT_THRESHOLD, DEFERRED_THRESHOLD = gc.get_threshold(), (100_000, 20, 100)


early = False  # whether the environment was set before torch could read it


def set_environment() -> None:
    """Set the variables that torch's libraries read when they are loaded or first used. Existing values stay."""
    global early
    early = "torch" not in sys.modules or CBWR in os.environ
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def defer_gc() -> None:
    """Collect garbage rarely, until `freeze_gc`."""
    gc.set_threshold(*DEFERRED_THRESHOLD)


def freeze_gc() -> None:
    """Freeze existing objects so that the garbage collector skips them. Does nothing without `defer_gc` before."""
    if gc.get_threshold() == DEFERRED_THRESHOLD:
        gc.freeze()
        gc.set_threshold(*DEFAULT_THRESHOLD)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Freezes existing objects so that the garbage collector skips them during training."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
