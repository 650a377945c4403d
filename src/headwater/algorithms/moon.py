"""Clients keep their features near the global model's and away from those of their own last model.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, contrasted | nobody | average at the server |

| paper | here |
|---|---|
| μ, τ | mu, tau |
| R_w, the net up to its projection | the model's `features`, with model.projection = 256 |
| z, z_glob, z_prev | features of the model that is trained, of the one received, of the client's last |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; M, M and N, N
with `through_sectors`. A client keeps its last `remembered` models to itself.
Moves a round: server → client model; client → server model.

Differences from the paper and from its authors' code:
* The global and the earlier models' features are computed once a round in evaluation mode, not batch by batch: they are
  frozen, so nothing changes unless the data is augmented.
* `first`: a client that never took part contrasts with the run's initial model, as the code does; "received" takes the
  model just received, which makes the term the constant μ·ln 2 for that client.
* `remembered` above 1 adds the client's older models to the sum below the fraction, the code's model buffer.
* `by="uniform"` weighs clients alike.

>>> import headwater as hw
>>> hw.run("moon", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
1
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative, Positive
from headwater.tasks.local import local_train
from headwater.tasks.terms.contrastive import Contrast, remember


@plain_dataclass(frozen=True)
class MoonState(State):
    previous: Located  # at clients: their own last models, newest first
    personal: Located | None = None


@dataclass(frozen=True, config=STRICT)
class Moon:
    local: LocalSpec = LOCAL
    mu: NotNegative = 1.0  # weight of the contrastive term
    tau: Positive = 0.5  # temperature of the similarities
    remembered: AtLeastOne = 1  # earlier models of its own that a client contrasts with
    first: Literal["initial", "received"] = "initial"  # what stands for them when there is none yet
    by: By = "samples"  # how clients weigh in the mean
    through_sectors: bool = False  # average at sectors on the way
    keep_local: bool = False  # judge local accuracy by clients' models as trained, before they are averaged

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {"model": {"projection": 256}}
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)

    def init(self, fed: Federation, model: Located) -> MoonState:
        return MoonState(model, nothing(CLIENTS))

    def round(self, fed: Federation, state: MoonState) -> MoonState:
        start = spread(fed, state.model, self.through_sectors)
        term = Contrast(self.mu, self.tau, maybe(state.previous), self.first)  # type: ignore[arg-type]
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(term,), by=self.by)
        last = fed.run(remember, at=CLIENTS, new=local, old=maybe(state.previous), most=self.remembered)
        mine = kept(fed, self.keep_local, state, local)
        return MoonState(gather(fed, local, self.through_sectors), fed.update(state.previous, last), mine)
