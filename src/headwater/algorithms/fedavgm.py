"""FedAvg whose server does not jump to the mean but steps towards it with momentum.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model | nobody | average, then step with momentum |

| paper | here |
|---|---|
| β | beta |
| v | velocity |
| Δw | the way from the mean back to the model |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; M, M and N, N
with `through_sectors`.
Moves a round: server → client model; client → server model.

Differences from the paper and from other programs, with Δ = model − mean:
* `form="A"` (default, as FedDF's program): v ← βv + Δ, model ← model − v. "B" (FedBE's): v ← βv + (1 − β)Δ. "C" (a
  benchmark suite, and the paper's Nesterov variant): v as in A, then model ← model − (Δ + βv).
* Momentum acts on what is trained. Batch-norm statistics are those of the plain mean, as in FedDF's program.
* There is no further learning rate at the server. `beta` is 0.9; FedDF's tables use 0.1 to 0.4.

>>> import headwater as hw
>>> hw.run("fedavgm", data="digits", clients=4, rounds=1, local__epochs=1, beta=0.3).history[0]["round"]
1
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.corrections import momentum_step
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class MomentumState(State):
    velocity: Located  # at the server


@dataclass(frozen=True, config=STRICT)
class FedAvgM:
    local: LocalSpec = LOCAL
    beta: Annotated[float, Ge(0), Lt(1)] = 0.9
    form: Literal["A", "B", "C"] = "A"  # how the velocity is made and used
    by: By = "samples"  # how clients weigh in the mean
    through_sectors: bool = False  # average at sectors on the way

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> MomentumState:
        return MomentumState(model, nothing(SERVER))

    def round(self, fed: Federation, state: MomentumState) -> MomentumState:
        start = spread(fed, state.model, self.through_sectors)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by=self.by)
        new = fed.run(
            momentum_step,
            at=SERVER,
            start=state.model,
            mean=gather(fed, local, self.through_sectors),
            velocity=maybe(state.velocity),
            beta=self.beta,
            damping=1 - self.beta if self.form == "B" else 1.0,
            nesterov=self.form == "C",
        )
        return MomentumState(new["model"], new["velocity"])
