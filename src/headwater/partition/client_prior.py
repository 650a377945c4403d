"""Label skew by client: every client has a class prior of its own, and all have equally many samples."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Alpha, Ints, Partitioner, check, even, fill
from headwater.registry import Info
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ClientPrior(Partitioner):
    """Each client draws a class prior from a symmetric Dirichlet distribution. Sizes differ by at most one.

    One sample at a time goes to a random client that has room, of a class drawn from that client's prior. If the class
    is used up, another is drawn, as in FedDyn, MTGC, FedEED and the appendix of FedDF. If the prior gives no share to
    any class that is left, all those are equally likely.

    Args:
        alpha: concentration of the priors.
    """

    INFO = Info(
        "client-prior",
        "a Dirichlet class prior for each client, sizes within one; only labels are unequal (alpha)",
    )

    alpha: Alpha = 0.1

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        return fill(labels, even(len(labels), clients), self.alpha, rng)
