"""MOON."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative, Positive
from headwater.tasks.local import local_train
from headwater.tasks.terms import Contrast, First, remember


@plain_dataclass(frozen=True)
class MoonState(State):
    previous: Located  # at clients: their own last models, newest first
    personal: Located | None = None


@dataclass(frozen=True, config=STRICT)
class Moon(Method):
    """Model-contrastive learning: clients keep their features near the global model's and away from those of their own
    last model.

    Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021. R_w, the network up to its projection, is the model's
    `features`, with `model.projection = 256` by default.

    Cost: a client keeps its last `remembered` models to itself; they are never sent.

    Differences from the paper and from its authors' code:
    * Features of the global and of earlier models are computed once per round in evaluation mode, not per batch. These
      models are frozen, so this changes nothing unless data is augmented.
    * A client that never took part contrasts with the run's initial model; `first = "own"` is the code's choice.

    Args:
        local: local training.
        mu: μ, weight of the contrastive term.
        tau: τ, temperature of the similarities.
        remembered: earlier models of its own that a client contrasts with; above 1 it is the model buffer of the code.
        first: what a client that never took part contrasts with: the "initial" model of the run, which all clients
            share; a model of its "own" with weights drawn for it alone, as in the code; or the "received" one, which
            makes the term the constant μ·ln 2.
        by: weight of a client in the mean: its number of samples, or "uniform".
        through_sectors: sectors average their clients' models first.
        keep_local: test clients' models as they were trained, before averaging, on the clients' own test rows.

    Example:
        >>> import headwater as hw
        >>> hw.run("moon", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="moon",
        family="averaging",
        summary="features near the global model's and away from the client's last model",
        stages=("train from the global model, contrasted", "nobody", "average at the server"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        needs=("client state",),
        defaults={"model": {"projection": 256}},
        features=True,
        strengths=("mu",),
        grids={"mu": ("0.1", "1.0", "5.0", "10.0")},
        training_cost=1.7,
    )

    local: LocalSpec = LOCAL
    mu: NotNegative = 1.0
    tau: Positive = 0.5
    remembered: AtLeastOne = 1
    first: First = "initial"
    by: By = "samples"
    through_sectors: bool = False
    keep_local: bool = False

    def reference_models(self) -> int:
        return 1 + self.remembered

    def init(self, fed: Federation, model: Located) -> MoonState:
        return MoonState(model, nothing(CLIENTS))

    def round(self, fed: Federation, state: MoonState) -> MoonState:
        start = spread(fed, state.model, self.through_sectors)
        term = Contrast(self.mu, self.tau, maybe(state.previous), self.first)  # type: ignore[arg-type]
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(term,), by=self.by)
        last = fed.run(remember, at=CLIENTS, new=local, old=maybe(state.previous), most=self.remembered)
        mine = kept(fed, self.keep_local, state, local)
        return MoonState(gather(fed, local, self.through_sectors), fed.update(state.previous, last), mine)
