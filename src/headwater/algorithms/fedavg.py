"""FedAvg."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, Method, MethodInfo, gather_trained, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class FedAvg(Method):
    """Clients train from the global model, and the server averages their models.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data, AISTATS 2017. The paper's C, the share of clients per round, is `partition.participation`; n_k
    is the weight that travels with a model.

    Differences from the paper: none in the method.

    Args:
        local: local training; E, B and η of the paper are its `epochs`, `batch` and `lr`.
        by: weight of a client in the mean: its number of samples, or "uniform", as several published programs have it.
        through_sectors: sectors average their clients' models first, so that the long link carries M models instead of
            N.
        keep_local: test clients' models as they were trained, before averaging, on the clients' own test rows.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="fedavg",
        family="averaging",
        summary="average of the clients' models",
        stages=("train from the global model", "nobody", "average at the server"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={
            "a round": "server → client model; client → server model",
            "a round through sectors": (
                "server → sector model; sector → client model; client → sector model; sector → server model"
            ),
        },
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
    )

    local: LocalSpec = LOCAL
    by: By = "samples"
    through_sectors: bool = False
    keep_local: bool = False

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start = spread(fed, state.model, self.through_sectors)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather_trained(fed, local, self.through_sectors, self.local), mine)
