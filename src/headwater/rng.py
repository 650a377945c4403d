"""One seed, many named streams.

A stream is a function of its name alone: (seed, purpose, round, node, …). Nothing is drawn from a shared generator, so
the order in which work finishes can never change a result.
"""

from __future__ import annotations

import hashlib

import numpy as np

Key = str | int


def derive(seed: int, *name: Key) -> int:
    """A 64-bit seed for the stream with this name."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def stream(seed: int, *name: Key) -> np.random.Generator:
    """The generator with this name; asking twice gives the same numbers twice."""
    return np.random.Generator(np.random.PCG64(derive(seed, *name)))
