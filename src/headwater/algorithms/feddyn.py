"""Each client's loss is bent so that what is best for it alone comes to be what is best for all.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR 2021.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, regularised | nobody | average and shift at the server |

| paper | here |
|---|---|
| α | dyn_alpha |
| ∇L_k(θ_k), kept at clients | own |
| h | h |

A client minimises F(θ) − ⟨own, θ⟩ + (α / 2) · ‖θ − received‖², then own ← own − α · (θ − received). The server takes
h ← h − (α / N) · Σ (θ − sent) over those that came, N being all clients, and sends the mean of them less h / α.

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; M, M and N, N
with `through_sectors`.
Moves a round: server → client model; client → server model.

Differences from the paper and from its authors' code:
* The code keeps memories m with own = −α · m and h = −α · (mean of m); results are the same (a test holds both
  together).
* `alpha_by="size"` divides α by the client's size relative to the mean size, as the code does: all then settles where
  the loss weighted by samples is least. "equal", the paper's, weighs clients alike.
* The model that is sent and evaluated is the server's; the mean of the round's clients is reported as
  `averaged_accuracy`, since the two differ.
* The code's learning rate is 0.1 (here 0.05 unless given); it clips gradients at 10 and decays weights by 1e-3
  (`local.clip`, `local.weight_decay`; off here).
* Only what is trained is regularised and shifted. With batch norm its statistics stay as averaged, which a run warns
  of.

>>> import headwater as hw
>>> run = hw.run("feddyn", data="digits", clients=4, rounds=1, local__epochs=1)
>>> "averaged_accuracy" in run.history[0]
True
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, each, maybe, nothing
from headwater.core.tree import Tree
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, LocalSpec, Positive
from headwater.tasks.corrections import buffers_caution, dual, dynamic_server
from headwater.tasks.local import local_train
from headwater.tasks.terms.proximal import Dynamic

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
class FedDyn:
    local: LocalSpec = LOCAL
    dyn_alpha: Positive = 0.01
    alpha_by: AlphaBy = "equal"  # whether a client's alpha follows from its size
    through_sectors: bool = False  # average at sectors on the way

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "local": {"optimizer": "sgd", "lr": 0.05},
        "model": {"norm": "group"},
    }

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

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


def alphas(alpha: float, by: AlphaBy, tree: Tree) -> dict[str, float]:
    """Every client's alpha: the same, or less for those with more data."""
    mean = sum(tree.client_sizes.values()) / len(tree.holders)
    return {client: alpha * (mean / tree.sizes[client] if by == "size" else 1.0) for client in tree.holders}
