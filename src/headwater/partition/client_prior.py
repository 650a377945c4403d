"""Label skew by client: every client has a class prior of its own; sizes are equal unless asked otherwise."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Alpha, Ints, Partitioner, check, even, fill, whole
from headwater.registry import Info
from headwater.specs import STRICT, NotNegative


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ClientPrior(Partitioner):
    """Each client draws a class prior from a symmetric Dirichlet distribution. Sizes differ by at most one, or are
    drawn.

    One sample at a time goes to a random client that has room, of a class drawn from that client's prior. If the class
    is used up, another is drawn, as in FedDyn, MTGC, FedEED and the appendix of FedDF. If the prior gives no share to
    any class that is left, all those are equally likely.

    Args:
        alpha: concentration of the priors.
        sigma: how unequal the clients' sizes are: they are proportional to log-normal draws of this deviation, as in
            FedDyn's code; 0 for equal sizes.
    """

    INFO = Info(
        "client-prior",
        "a Dirichlet class prior for each client, sizes within one unless drawn (alpha, sigma)",
    )

    alpha: Alpha = 0.1
    sigma: NotNegative = 0.0

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        sizes = even(len(labels), clients) if not self.sigma else _unequal(len(labels), clients, self.sigma, rng)
        return fill(labels, sizes, self.alpha, rng)


def _unequal(total: int, clients: int, sigma: float, rng: np.random.Generator) -> Ints:
    """Sizes proportional to log-normal draws, at least 1 where there are enough samples; their sum is `total`."""
    drawn = rng.lognormal(0.0, sigma, clients)
    least = 1 if total >= clients else 0
    return least + whole(drawn / drawn.sum(), total - least * clients)
