"""A population: every client draws its own samples from one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property, lru_cache
from typing import Any, ClassVar, overload

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition.base import Alpha, Ints, Partitioner, check, draw
from headwater.partition.partition import LazyIndices, Rule, fingerprint
from headwater.registry import Info
from headwater.specs import STRICT, AtLeastOne

NAME = "drawn"
RECENT = 256  # clients whose samples are cached


@dataclass(frozen=True, config=STRICT, kw_only=True)
class DrawnClients(Partitioner):
    """Each client draws samples from the whole training set, for studies with up to millions of clients.

    This is not a split: two clients may hold the same sample, and some samples are at no client. No client holds a
    sample twice. A client's samples do not depend on the number of clients, and are drawn when they are used.

    Args:
        size: samples per client.
        alpha: concentration of the Dirichlet distribution that each client's label shares are drawn from; None for
            uniform draws.
    """

    INFO = Info(
        "drawn",
        "any number of clients that draw from one pool: no split, they may share samples (size, alpha)",
    )

    SHARED: ClassVar[bool] = True

    size: AtLeastOne = 50
    alpha: Alpha | None = None

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Population:
        return self.population(labels, clients, int(rng.integers(2**63)))

    def population(self, labels: Ints, clients: int, seed: int) -> Population:
        """The samples of every client for this seed."""
        labels = check(labels, clients)
        if self.size > len(labels):
            raise ConfigError(
                f"partition.size is {self.size}, but there are only {len(labels)} samples to draw from; "
                f"use at most {len(labels)}"
            )
        return Population(self, labels, clients, seed)


class Population(LazyIndices):
    """The samples of each client, drawn from the client's own random stream when they are used."""

    def __init__(self, scheme: DrawnClients, labels: Ints, clients: int, seed: int) -> None:
        self._scheme, self._clients, self._seed = scheme, clients, seed
        self._labels = labels.astype(np.min_scalar_type(int(labels.max()))) if labels.min() >= 0 else labels

    @property
    def lengths(self) -> Ints:
        """The number of samples of each client."""
        return np.full(self._clients, self._scheme.size, dtype=np.int64)

    @cached_property
    def rule(self) -> Rule:
        """All that the draws depend on."""
        return {
            "scheme": NAME,
            "options": asdict(self._scheme),
            "clients": self._clients,
            "seed": self._seed,
            "samples": len(self._labels),
            "labels_sha256": fingerprint(self._labels),
        }

    def __len__(self) -> int:
        return self._clients

    @overload
    def __getitem__(self, at: int) -> Ints: ...

    @overload
    def __getitem__(self, at: slice) -> list[Ints]: ...

    def __getitem__(self, at: int | slice) -> Ints | list[Ints]:
        places = range(self._clients)[at]
        return self._recent(places) if isinstance(places, int) else [self._client(place) for place in places]

    def __iter__(self) -> Iterator[Ints]:
        return map(self._client, range(self._clients))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached values, which can be recomputed."""
        cached = {"rule", "_recent", "_classes"}
        return {key: value for key, value in self.__dict__.items() if key not in cached}

    @cached_property
    def _recent(self) -> Callable[[int], Ints]:
        """Cache of the last clients, so that those that take part in every round are drawn once."""
        return lru_cache(maxsize=RECENT)(self._client)

    def _client(self, number: int) -> Ints:
        rng, size = stream(self._seed, NAME, number), self._scheme.size
        if self._scheme.alpha is None:
            return _frozen(rng.choice(len(self._labels), size=size, replace=False, shuffle=False))
        members = self._classes
        wanted = _mix(draw(rng, self._scheme.alpha, len(members)), size, [len(samples) for samples in members], rng)
        chosen = [
            samples[rng.choice(len(samples), size=count, replace=False, shuffle=False)]
            for samples, count in zip(members, wanted.tolist(), strict=True)
            if count
        ]
        return _frozen(np.concatenate(chosen))

    @cached_property
    def _classes(self) -> list[Ints]:
        """The samples of each class that has any."""
        order = np.argsort(self._labels, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self._labels[order])) + 1)


def _frozen(samples: Ints) -> Ints:
    """Sorted and read-only, since the array is shared."""
    samples.sort()
    samples.flags.writeable = False
    return samples


def _mix(shares: Any, size: int, room: list[int], rng: np.random.Generator) -> Ints:
    """Draw how many samples each class contributes, by these shares. If a class has too few, others contribute more."""
    most, taken = np.array(room, dtype=np.int64), np.zeros(len(room), dtype=np.int64)
    while (left := size - int(taken.sum())) > 0:
        weights = shares * (taken < most)
        weights = weights if weights.sum() > 0 else (taken < most).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(left, weights / weights.sum()), most)
    return taken
