"""Hierarchical FedAvg whose clients are corrected towards their sector, and sectors are not.

SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020) inside sectors, a baseline in the program of MTGC
(Fang, Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient Correction, NeurIPS
2024).

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the sector's model, corrected | nobody | average at sectors several times, then at the server |

| program | here |
|---|---|
| H, E | steps of every client, sector_rounds |
| z | z, at clients: the sector's mean gradient less the client's |

Cost a round, in models (N active clients, M sectors; up, down): long link M, M; inside sectors E·N, (E + 1)·N, since
the last average goes back for the corrections.
Moves a round: server → sector model; sector → client model; client → sector model; sector → server model.

Differences from the program: z outlives the round (`keep=False` starts it at zero in every round, as the program does);
otherwise it is MTGC with its second correction left out, and what is said there of H, of plain SGD, of batch norm and
of clients lost on the way holds here.

>>> import headwater as hw
>>> run = hw.run("hscaffold", data="digits", clients=4, sectors=2, rounds=1, sector_rounds=3, local__epochs=1)
>>> run.ledger.summary()["sector_client"]["down_models"]
16
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
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
class HScaffold:
    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2  # E, averages at sectors in one global round
    keep: bool = True  # carry corrections over to the next round
    by: By = "uniform"  # how clients weigh in their sector, and sectors at the server

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "local": {"optimizer": "sgd", "lr": 0.05},
        "model": {"norm": "group"},
    }

    def __post_init__(self) -> None:
        check_path(self.local, "hierarchical SCAFFOLD")
        check_steps(self.local, "hierarchical SCAFFOLD")

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

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
