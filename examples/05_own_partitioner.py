"""Write your own partitioner: a share of every client's samples is drawn at random, the rest is sorted by label, as in
SCAFFOLD (Karimireddy et al., ICML 2020), which calls that share the similarity of clients.

    python examples/05_own_partitioner.py

In a file `mine.py` of the current directory the same class works on the command line, too:
headwater partition --set partition.scheme=mine:Similarity --set partition.similarity=0.1
"""

from dataclasses import dataclass

import numpy as np

import headwater as hw
from headwater.partition.base import Partitioner, check


@dataclass(frozen=True)
class Similarity(Partitioner):
    similarity: float = 0.1  # the fields of a partitioner are its options, here the key partition.similarity

    def split(self, labels, clients, rng):
        """The sorted sample numbers of each client. All randomness comes from `rng`, so the seed decides the split."""
        labels = check(labels, clients)
        if not 0 <= self.similarity <= 1:
            raise hw.ConfigError(f"partition.similarity must be from 0 to 1, got {self.similarity}")
        if len(labels) < clients:
            raise hw.ConfigError(f"{len(labels)} samples are too few for {clients} clients; lower partition.clients")
        order = rng.permutation(len(labels))
        common, rest = np.split(order, [round(self.similarity * len(labels))])
        by_label = rest[np.argsort(labels[rest], kind="stable")]
        # The first clients get the larger parts of `common` and the smaller ones of the rest.
        parts = zip(np.array_split(common, clients), reversed(np.array_split(by_label, clients)), strict=True)
        return [np.sort(np.concatenate(pieces)) for pieces in parts]


if __name__ == "__main__":
    settings = {"partition__scheme": f"{__name__}:Similarity", "model": "mlp", "clients": 10}
    for similarity in (0.0, 0.5, 1.0):
        split = hw.partition("fedavg", partition__similarity=similarity, **settings)
        classes = split.clients["classes"].mean()
        print(f"similarity {similarity}: label distance {split.summary.mean():.3f}, classes per client {classes:.1f}")
    run = hw.run("fedavg", partition__similarity=0.5, rounds=5, local__epochs=3, **settings)
    print(f"accuracy {run.accuracy:.3f}")

    try:
        hw.run("fedavg", partition__similarity=2, **settings)
    except hw.ConfigError as error:
        print(f"refused: {error}")
