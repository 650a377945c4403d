"""FedDyn."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, each, maybe, nothing
from headwater.core.membership import share_of, with_newcomers
from headwater.core.tree import Tree
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, LocalSpec, Positive
from headwater.tasks.corrections import buffers_caution, dual, dynamic_server, shift
from headwater.tasks.local import local_train
from headwater.tasks.terms import Dynamic

AlphaBy = Literal["equal", "size"]


@plain_dataclass(frozen=True)
class DynState(State):
    averaged: Located  # at the server: the mean of the round's clients
    h: Located  # at the server
    own: Located  # at clients: the gradient that each is credited with

    @property
    def also(self) -> dict[str, Located]:
        return {"averaged": self.averaged}


@dataclass(frozen=True, config=STRICT)
class FedDyn(Method):
    """Dynamic regularisation: each client's loss gets a linear and a quadratic term, chosen so that the optima of all
    clients become the global one.

    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR
    2021. A client minimises F(θ) − ⟨own, θ⟩ + (α / 2) · ‖θ − received‖², then own ← own − α · (θ − received). The
    server computes h ← h − (α / N) · Σ (θ − sent) over the participants, where N counts all clients, and sends the mean
    minus h / α.

    Differences from the paper and from its authors' code:
    * The code keeps memories m with own = −α · m and h = −α · (mean of m); the results are the same, as a test shows.
    * The model that is sent and evaluated is the server's. The mean of the round's clients differs from it and is
      reported as `averaged_accuracy`.
    * The learning rate is 0.05 by default, 0.1 in the code, which also clips gradients at 10 and decays weights by 1e-3
      (`local.clip`, `local.weight_decay`).
    * Only trained parameters are regularised and shifted. Statistics of batch norm are averaged; a run warns of it.

    Args:
        local: local training.
        dyn_alpha: α, strength of the regularisation.
        alpha_by: "equal" (paper) gives all clients the same α; "size" (code) divides α by the client's size relative to
            the mean size, which leads to the optimum of the loss weighted by samples.
        through_sectors: sectors average their clients' models first.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("feddyn", data="digits", clients=4, rounds=1, local__epochs=1)
        >>> "averaged_accuracy" in run.history[0]
        True
    """

    INFO = MethodInfo(
        name="feddyn",
        family="averaging",
        summary="dynamic regularisation aligns the clients' optima",
        stages=("train from the global model, regularised", "nobody", "average and shift at the server"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        needs=("client state",),
        defaults={"local": {"optimizer": "sgd", "lr": 0.05}, "model": {"norm": "group"}},
        strengths=("dyn_alpha",),
        grids={"dyn_alpha": ("0.1", "0.01", "0.001")},
    )

    local: LocalSpec = LOCAL
    dyn_alpha: Positive = 0.01
    alpha_by: AlphaBy = "equal"
    through_sectors: bool = False

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

    def reference_models(self) -> int:
        return 2

    def init(self, fed: Federation, model: Located) -> DynState:
        return DynState(model, model, nothing(SERVER), nothing(CLIENTS))

    def round(self, fed: Federation, state: DynState) -> DynState:
        start, own = spread(fed, state.model, self.through_sectors), maybe(state.own)
        alpha = each(alphas(self.dyn_alpha, self.alpha_by, fed.tree))
        terms = (Dynamic(alpha, own),)  # type: ignore[arg-type]  # the federation puts each home's values in place
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=terms, by="uniform")
        new = fed.run(dual, at=CLIENTS, start=start, mine=local, old=own, alpha=alpha)
        mean = gather(fed, new["model"], self.through_sectors)
        known = {"start": state.model, "mean": mean, "h": maybe(state.h)}
        sent = fed.run(dynamic_server, at=SERVER, **known, alpha=self.dyn_alpha, members=len(fed.tree.holders))
        return DynState(sent["model"], mean, sent["h"], fed.update(state.own, new["own"]))

    def admit(self, fed: Federation, state: DynState, first: DynState) -> DynState:
        """h is a mean over all clients, and what newcomers have added to it is zero."""
        h, share = state.h, share_of(fed, fed.clients)
        h = fed.run(shift, at=SERVER, old=h, by=h, share=-share) if h.nodes else h
        return replace(with_newcomers(state, first), h=h)


def alphas(alpha: float, by: AlphaBy, tree: Tree) -> dict[str, float]:
    """Every client's alpha: the same, or less for those with more data."""
    mean = sum(tree.client_sizes.values()) / len(tree.holders)
    return {client: alpha * (mean / tree.sizes[client] if by == "size" else 1.0) for client in tree.holders}
