"""The same number of classes at every client."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Ints, Partitioner, check, even, gather
from headwater.registry import Info
from headwater.specs import STRICT, AtLeastOne


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ExactClasses(Partitioner):
    """Every client holds samples of exactly so many classes, drawn at random; the clients of a class share it evenly.

    Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (there "#C = k"). All
    classes have equally many clients here, as far as that is possible, so every class has some and sizes are alike if
    the classes are.

    Args:
        classes: classes per client.
    """

    INFO = Info("exact-classes", "every client exactly so many classes, each shared evenly by its clients (classes)")

    classes: AtLeastOne = 2

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        kinds, counts = np.unique(labels, return_counts=True)
        pieces: list[list[Ints]] = [[] for _ in range(clients)]
        for kind, holders in zip(kinds, self._holders(counts, clients, rng), strict=True):
            rows = rng.permutation(np.flatnonzero(labels == kind)).astype(np.int64)
            ends = np.cumsum(even(len(rows), len(holders)))[:-1]
            for client, piece in zip(rng.permutation(holders), np.split(rows, ends), strict=True):
                pieces[client].append(piece)
        return gather(pieces)

    def _holders(self, counts: Ints, clients: int, rng: np.random.Generator) -> list[list[int]]:
        """The clients of each class. Clients draw their classes in turn, by how many clients a class still lacks."""
        lacking = self._clients_of(counts, clients)
        holders: list[list[int]] = [[] for _ in counts]
        for turn, client in enumerate(rng.permutation(clients).tolist()):
            # A class that lacks as many clients as are left must take all of them.
            must = np.flatnonzero(lacking == clients - turn)
            free = np.where(lacking < clients - turn, lacking, 0)
            more = self.classes - len(must)
            drawn = rng.choice(len(counts), more, replace=False, p=free / free.sum()) if more else must[:0]
            for kind in (*must, *drawn):
                holders[kind].append(client)
                lacking[kind] -= 1
        return holders

    def _clients_of(self, counts: Ints, clients: int) -> Ints:
        """How many clients each class has: equally many, but none more than it has samples."""
        kinds, places, most = len(counts), clients * self.classes, np.minimum(counts, clients)
        if self.classes > kinds:
            raise ConfigError(f"partition.classes is {self.classes}, but the data has {kinds}; use at most {kinds}")
        if places < kinds:
            raise ConfigError(
                f"{clients} clients with {self.classes} classes each cannot hold all of the data's {kinds} classes; "
                f"use at least {-(-kinds // self.classes)} clients, or a partition.classes of at least "
                f"{-(-kinds // clients)}"
            )
        if (possible := int(most.sum())) < places:
            fewer = f" or a partition.classes of at most {possible // clients}" if possible >= clients else ""
            raise ConfigError(
                f"{clients} clients cannot have samples of {self.classes} classes each: {places} times a client would "
                f"hold a class, and the samples suffice for {possible}; use fewer clients{fewer}"
            )
        shared, by_size = np.zeros(kinds, np.int64), np.argsort(-counts, kind="stable")
        while (rest := places - int(shared.sum())) > 0:
            shared[by_size[shared[by_size] < most[by_size]][:rest]] += 1
        return shared
