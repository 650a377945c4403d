"""Hierarchical FedDyn."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.algorithms.feddyn import AlphaBy, alphas
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, each, maybe, nothing
from headwater.core.membership import with_newcomers
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, Positive
from headwater.tasks.average import average
from headwater.tasks.corrections import buffers_caution, dual, dynamic_server, shift
from headwater.tasks.local import local_train
from headwater.tasks.terms import Dynamic


@plain_dataclass(frozen=True)
class HDynState(State):
    h: Located  # at sectors
    own: Located  # at clients: the gradient that each is credited with


@dataclass(frozen=True, config=STRICT)
class HFedDyn(Method):
    """FedDyn inside each sector, several times per round; the server averages the sectors' models.

    FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021) in the hierarchy, a baseline in the
    program of MTGC (Fang, Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient
    Correction, NeurIPS 2024). The program keeps a memory m per client and its mean per group: `own` = −α · m at
    clients, `h` = −α · mean at sectors.

    Differences from that program: none known. A sector's model is the mean of its clients plus the mean memory of all
    of them, also of those that did not take part. The server averages sectors with equal weights. Nothing corrects
    sectors towards each other, so the method does not reach the global optimum if sectors differ.

    Args:
        local: local training.
        sector_rounds: E, averages at sectors per global round.
        dyn_alpha: α, strength of the regularisation.
        alpha_by: "size" divides α by the client's size relative to the mean size, as in the program; "equal" does not.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("hfeddyn", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
        >>> run.ledger.round_trips("server_sector")
        2
    """

    INFO = MethodInfo(
        name="hfeddyn",
        family="tree",
        summary="FedDyn inside sectors, average of sectors at the server",
        stages=(
            "train from the sector's model, regularised",
            "nobody",
            "average and shift at sectors several times, then average at the server",
        ),
        models="M, M | E·N, E·N",
        moves={"a round": "server → sector model; sector → client model; client → sector model; sector → server model"},
        sees={"server": "sectors' means", "host": "its clients' models", "client": "its sector's model"},
        needs=("client state",),
        defaults={"local": {"optimizer": "sgd", "lr": 0.05}, "model": {"norm": "group"}},
        strengths=("dyn_alpha",),
    )

    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2
    dyn_alpha: Positive = 0.01
    alpha_by: AlphaBy = "size"

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

    def reference_models(self) -> int:
        return 2

    def init(self, fed: Federation, model: Located) -> HDynState:
        return HDynState(model, nothing(SECTORS), nothing(CLIENTS))

    def admit(self, fed: Federation, state: HDynState, first: HDynState) -> HDynState:
        """h of a sector is a mean over its clients, and what newcomers have added to it is zero."""
        teams = {sector: [c for c in fed.tree.team(sector) if c in fed.tree.holders] for sector in fed.sectors}
        share = each({sector: -len(fed.teams[sector]) / len(team) for sector, team in teams.items()})
        some = fed.among(client for client in fed.clients if fed.tree.sector_of[client] in state.h.nodes)
        shrunk = some.run(shift, at=SECTORS, old=state.h, by=state.h, share=share)
        return replace(with_newcomers(state, first), h=fed.update(state.h, shrunk))

    def round(self, fed: Federation, state: HDynState) -> HDynState:
        alpha = each(alphas(self.dyn_alpha, self.alpha_by, fed.tree))
        members = each({sector: sum(c in fed.tree.holders for c in fed.tree.team(sector)) for sector in fed.sectors})
        model, h, own = fed.down(state.model), state.h, state.own
        for _ in range(self.sector_rounds):  # the server is not asked
            start = fed.down(model)
            terms = (Dynamic(alpha, maybe(own)),)  # type: ignore[arg-type]  # each home's values are put in place there
            local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=terms, by="uniform")
            new = fed.run(dual, at=CLIENTS, start=start, mine=local, old=maybe(own), alpha=alpha)
            mean = fed.run(average, at=SECTORS, models=fed.up(new["model"]))
            known = {"start": model, "mean": mean, "h": maybe(h), "members": members}
            shifted = fed.run(dynamic_server, at=SECTORS, **known, alpha=self.dyn_alpha)
            model, h, own = shifted["model"], fed.update(h, shifted["h"]), fed.update(own, new["own"])
        return HDynState(fed.run(average, at=SERVER, models=fed.up(model), by="uniform"), h, own)
