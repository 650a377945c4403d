"""Hierarchical FedAvg."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class HFedAvg(Method):
    """Sectors average their clients several times before the server averages the sectors.

    Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020. A baseline of FedHEAD and
    MTGC.

    Differences from the paper: none in the method. With `sector_rounds = 1` and `by="samples"` it is FedAvg.

    Args:
        local: local training; κ1 of the paper is `local.steps` or `local.epochs`.
        sector_rounds: κ2 (E in MTGC), averages at sectors per global round.
        by: weight of a client in its sector and of a sector at the server: "samples" as in the paper and in MTGC's
            code, or "uniform", the objective of MTGC's text.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("hfedavg", data="digits", clients=4, sectors=2, rounds=1, sector_rounds=2, local__epochs=1)
        >>> run.ledger.round_trips("server_sector")
        2
    """

    INFO = MethodInfo(
        name="hfedavg",
        family="tree",
        summary="sectors average several times between two averages of the server",
        stages=("train from the sector's model", "nobody", "average at sectors several times, then at the server"),
        models="M, M | E·N, E·N",
        moves={"a round": "server → sector model; sector → client model; client → sector model; sector → server model"},
        sees={"server": "sectors' means", "host": "its clients' models", "client": "its sector's model"},
    )

    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 1
    by: By = "samples"

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        mean = fed.down(state.model)
        for _ in range(self.sector_rounds):  # inside sectors, without the server
            local = fed.run(local_train, at=CLIENTS, start=fed.down(mean), spec=self.local)
            mean = fed.run(average, at=SECTORS, models=fed.up(local), by=self.by)
        return State(fed.run(average, at=SERVER, models=fed.up(mean), by=self.by))
