"""Named random streams derived from one seed.

A stream is a function of its name alone: (seed, purpose, round, node, …). Nothing is drawn from a shared generator, so
the order in which work finishes can never change a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

Key = str | int
Words = np.ndarray[Any, np.dtype[Any]]


def derive(seed: int, *name: Key) -> int:
    """64-bit seed of the stream with this name."""
    return int.from_bytes(_digest(seed, name), "little")


def _digest(seed: int, name: Sequence[Key]) -> bytes:
    return hashlib.sha256(_text(seed, name)).digest()[:8]


def _text(seed: int, name: Sequence[Key]) -> bytes:
    return "\x1f".join([str(seed), *[f"{type(part).__name__}:{part}" for part in name]]).encode()


def stream(seed: int, *name: Key) -> np.random.Generator:
    """Random generator with this name. Equal names give equal numbers.

    Args:
        seed: seed of the run.
        *name: parts of the name, such as purpose, round and node.
    """
    return np.random.Generator(np.random.PCG64(derive(seed, *name)))


class SecretStream:
    """Random numbers that nobody can tell without the secret: SHAKE-256 of secret and name, turned into numbers.

    The same secret and name give the same numbers again, so that a repeated request draws no new noise.

    Args:
        secret: known to one party.
        *name: parts of the name, as of `stream`.
    """

    def __init__(self, secret: str, *name: Key) -> None:
        self._key, self._drawn = hashlib.sha256(_text(0, (secret, *name))).digest(), 0

    def random(self, size: int) -> Words:
        """Numbers above 0 and below 1."""
        self._drawn += 1
        drawn = hashlib.shake_256(self._key + self._drawn.to_bytes(8, "little")).digest(8 * size)
        return ((np.frombuffer(drawn, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, size: int) -> Words:
        """Numbers of the standard normal distribution."""
        from scipy.special import ndtri

        numbers: Words = ndtri(self.random(size))
        return numbers


def streams(seed: int, names: Sequence[Sequence[Key]], common: Sequence[Key] = ()) -> list[np.random.Generator]:
    """`stream` for many names at once. Much faster, because the seeds are mixed in one vectorised computation.

    Args:
        seed: seed of the run.
        names: parts of each name.
        common: parts that all names begin with, which are hashed once.
    """
    begun, digests = hashlib.sha256(_text(seed, common)), []
    for name in names:
        whole = begun.copy()
        whole.update("".join([f"\x1f{type(part).__name__}:{part}" for part in name]).encode())
        digests.append(whole.digest()[:8])
    seeds = np.frombuffer(b"".join(digests), dtype="<u8")
    return [np.random.Generator(np.random.PCG64(_Mixed(words))) for words in _mixed(seeds)]  # type: ignore[arg-type]


class _Mixed(ISeedSequence):
    """Seed sequence whose state was computed before."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Words:
        if n_words != len(self._words) or np.dtype(dtype) != self._words.dtype:
            raise ValueError(
                f"a seed that was mixed already is {len(self._words)} words of {self._words.dtype}, not {n_words} of "
                f"{np.dtype(dtype)}: use `stream` for another generator than PCG64"
            )
        return self._words


def _powers(first: int, factor: int, count: int) -> Words:
    """Column of the numbers first · factor^i modulo 2³²."""
    numbers = accumulate(repeat(factor, count), lambda number, factor: number * factor & 0xFFFFFFFF, initial=first)
    return np.array(list(numbers), dtype=np.uint32)[:, None]


_IN, _OUT = _powers(0x43B0D7E5, 0x931E8875, 16), _powers(0x8B51F9DD, 0x58F38DED, 8)
_LEFT, _RIGHT, _HALF = np.uint32(0xCA01F9DD), np.uint32(0x4973F715), np.uint32(16)


def _mixed(seeds: Words) -> Words:
    """State words of `np.random.SeedSequence` for each 64-bit seed: one row of four words per seed."""

    def hashed(parts: Words, by: Words) -> Words:
        parts = (parts ^ by[:-1]) * by[1:]
        return parts ^ parts >> _HALF

    pool = np.zeros((4, len(seeds)), dtype=np.uint32)
    pool[0], pool[1] = seeds & 0xFFFFFFFF, seeds >> 32
    pool = hashed(pool, _IN[:5])
    for source in range(4):
        others = [part for part in range(4) if part != source]
        first = 4 + 3 * source
        mixed: Words = pool[others] * _LEFT - hashed(pool[source], _IN[first : first + 4]) * _RIGHT
        pool[others] = mixed ^ mixed >> _HALF
    words = hashed(np.concatenate([pool, pool]), _OUT).astype(np.uint64)
    return (words[0::2] | words[1::2] << np.uint64(32)).T.copy()
