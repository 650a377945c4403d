"""Hierarchical SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.corrections import alike, buffers_caution, check_path, check_steps, corrected
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class HScaffoldState(State):
    z: Located  # at clients


@dataclass(frozen=True, config=STRICT)
class HScaffold(Method):
    """Hierarchical FedAvg in which clients are corrected towards their sector. Sectors are not corrected towards each
    other.

    SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020) inside sectors, a baseline in the program of
    MTGC (Fang, Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient Correction,
    NeurIPS 2024). The state's z is the sector's mean gradient minus the client's.

    Cost: the last average of a round goes back to clients once more, for the corrections.

    Differences from that program: `keep` (see below). Otherwise this is MTGC without its second correction; its remarks
    about the number of steps, plain SGD, batch norm and lost clients hold here too.

    Args:
        local: local training with plain SGD.
        sector_rounds: E, averages at sectors per global round.
        keep: carry z over to the next round; False starts it at zero in every round, as the program does.
        by: weight of a client in its sector and of a sector at the server.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("hscaffold", data="digits", clients=4, sectors=2, rounds=1, sector_rounds=3, local__epochs=1)
        >>> run.ledger.summary()["sector_client"]["down_models"]
        16
    """

    INFO = MethodInfo(
        name="hscaffold",
        family="tree",
        summary="hierarchical FedAvg with control variates inside sectors",
        stages=(
            "train from the sector's model, corrected",
            "nobody",
            "average at sectors several times, then at the server",
        ),
        models="M, M | E·N, (E + 1)·N",
        moves={"a round": "server → sector model; sector → client model; client → sector model; sector → server model"},
        sees={"server": "sectors' means", "host": "its clients' models", "client": "its sector's model"},
        needs=("client state",),
        defaults={"local": {"optimizer": "sgd", "lr": 0.05}, "model": {"norm": "group"}},
    )

    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2
    keep: bool = True
    by: By = "uniform"

    def __post_init__(self) -> None:
        check_path(self.local, "hierarchical SCAFFOLD")
        check_steps(self.local, "hierarchical SCAFFOLD")

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

    def reference_models(self) -> int:
        return 2

    def init(self, fed: Federation, model: Located) -> HScaffoldState:
        return HScaffoldState(model, nothing(CLIENTS))

    def round(self, fed: Federation, state: HScaffoldState) -> HScaffoldState:
        spec = alike(self.local, [fed.tree.sizes[client] for client in fed.tree.holders])
        pace = (spec.steps or 0) * spec.lr
        start, z = fed.down(fed.down(state.model)), state.z if self.keep else nothing(CLIENTS)
        for _ in range(self.sector_rounds):  # the server is not asked
            local = fed.run(local_train, at=CLIENTS, start=start, corrections=(maybe(z),), spec=spec)
            mean = fed.run(average, at=SECTORS, models=fed.up(local), by=self.by)
            start = fed.down(mean)
            z = fed.update(z, fed.run(corrected, at=CLIENTS, old=maybe(z), mine=local, ours=start, pace=pace))
        return HScaffoldState(fed.run(average, at=SERVER, models=fed.up(mean), by=self.by), z)
