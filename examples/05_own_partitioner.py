"""Write your own partitioner: every client gets samples of exactly C classes.

    python examples/05_own_partitioner.py

In a file `mine.py` of the current directory the same class works on the command line, too:
headwater partition --set partition.scheme=mine:ExactClasses --set partition.per_client=3
"""

from dataclasses import dataclass

import numpy as np

import headwater as hw
from headwater.partition.base import Partitioner


@dataclass(frozen=True)
class ExactClasses(Partitioner):
    per_client: int = 2  # C; the fields of a partitioner are its options, here the key partition.per_client

    def split(self, labels, clients, rng):
        """The sorted sample numbers of each client. All randomness comes from `rng`, so the seed decides the split."""
        classes = rng.permutation(np.unique(labels))
        if not 1 <= self.per_client <= len(classes):
            raise hw.ConfigError(
                f"partition.per_client must be from 1 to {len(classes)}, the number of classes, got {self.per_client}"
            )
        if clients * self.per_client < len(classes):
            raise hw.ConfigError(
                f"{clients} clients with {self.per_client} classes each cannot hold all {len(classes)} classes; "
                "raise partition.clients or partition.per_client"
            )
        # Deal the classes in turn, like cards: C in a row are distinct because C is at most the number of classes.
        dealt = np.resize(classes, (clients, self.per_client))
        parts = [[] for _ in range(clients)]
        for label in classes:
            owners = np.flatnonzero((dealt == label).any(axis=1))
            samples = rng.permutation(np.flatnonzero(labels == label))
            if len(samples) < len(owners):
                raise hw.ConfigError(
                    f"class {label} has {len(samples)} samples for {len(owners)} clients; lower partition.clients"
                )
            for owner, piece in zip(owners, np.array_split(samples, len(owners)), strict=True):
                parts[owner].append(piece)
        return [np.sort(np.concatenate(pieces)) for pieces in parts]


if __name__ == "__main__":
    settings = {"partition__scheme": f"{__name__}:ExactClasses", "model": "mlp", "clients": 10, "local__epochs": 3}
    run = hw.run("fedavg", partition__per_client=3, rounds=5, **settings)
    for client, counts in enumerate(run.partition["counts"]):  # samples of each class
        print(f"client {client}: {np.count_nonzero(counts)} classes, {sum(counts)} samples")
    print(f"accuracy {run.accuracy:.3f}")

    try:
        hw.run("fedavg", partition__per_client=11, rounds=5, **settings)
    except hw.ConfigError as error:
        print(f"refused: {error}")
