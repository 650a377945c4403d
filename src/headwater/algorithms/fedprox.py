"""FedProx."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, Method, MethodInfo, gather_trained, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located, each
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec, NotNegative
from headwater.tasks.local import local_train
from headwater.tasks.terms import Proximal


@dataclass(frozen=True, config=STRICT)
class FedProx(Method):
    """FedAvg with a proximal term: clients are pulled towards the model that they received. Long or unequal local
    training then drifts less.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

    Differences from the paper and from its authors' code:
    * The term is (mu / 2) · ‖w − received‖² over all trained parameters, as in the paper. Two versions in programs of
      other papers are not copied: one multiplies by mu twice, one leaves out the square.
    * The paper draws clients by size and averages them equally. Here the size is in the mean; `by="uniform"` is equal.

    Args:
        local: local training; E of the paper is `local.epochs`.
        mu: μ, strength of the pull. 0.01 is one of the values that the paper tries.
        stragglers: probability that a client trains for a shorter, random number of epochs (or steps), at least 1,
            drawn for each round and client. Its model is used all the same, where FedAvg would have left it out.
        by: weight of a client in the mean: its number of samples, or "uniform".
        through_sectors: sectors average their clients' models first.
        keep_local: test clients' models as they were trained, before averaging, on the clients' own test rows.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedprox", data="digits", clients=4, rounds=1, local__epochs=1, mu=0.1).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="fedprox",
        family="averaging",
        summary="clients are pulled towards the model that they received",
        stages=("train from the global model, pulled towards it", "nobody", "average at the server"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        strengths=("mu",),
        grids={"mu": ("0.001", "0.01", "0.1", "1.0")},
    )

    local: LocalSpec = LOCAL
    mu: NotNegative = 0.01
    stragglers: Annotated[float, Ge(0), Le(1)] = 0.0
    by: By = "samples"
    through_sectors: bool = False
    keep_local: bool = False

    def reference_models(self) -> int:
        return 1

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start = spread(fed, state.model, self.through_sectors)
        work = each({client: self._work(fed, client) for client in fed.clients})
        pull = (Proximal(self.mu),)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=work, terms=pull, by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather_trained(fed, local, self.through_sectors, self.local), mine)

    def _work(self, fed: Federation, client: str) -> LocalSpec:
        """What this client manages in this round."""
        rng = fed.rng("stragglers", client)
        whole = self.local.epochs if self.local.epochs is not None else self.local.steps or 0
        if rng.random() >= self.stragglers or whole < 2:
            return self.local
        less = int(rng.integers(1, whole))
        return replace(self.local, epochs=less) if self.local.epochs is not None else replace(self.local, steps=less)
