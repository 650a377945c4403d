"""Terms of the local loss that go with any trainer of `Frame`, and what they keep between rounds.

`Frame.terms` names them. A term adds to the loss that is descended, so SCAFFOLD's and MTGC's corrections, which are
taken from the path, correct the loss with its terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headwater.algorithms.cohorts import Models, gather_by, spread_by
from headwater.algorithms.fedhkd import FedHkd
from headwater.algorithms.frame_parts import Memory, Turn
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, each, maybe, nothing
from headwater.tasks.knowledge import knowledge, pool, settled
from headwater.tasks.local import Term
from headwater.tasks.terms import Contrast, Proximal, remember

if TYPE_CHECKING:
    from headwater.algorithms.frame import Frame

TermName = Literal["proximal", "contrast", "knowledge"]
OF_TRAINER: dict[str, TermName] = {"fedprox": "proximal", "hfedprox": "proximal", "moon": "contrast"}


@dataclass(frozen=True)
class Pulled:
    """FedProx's pull to the model that was received."""

    mu: float

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return (Proximal(self.mu),)

    def finish(self, turn: Turn, local: Located) -> Memory:
        return {}


@dataclass(frozen=True)
class Contrasted:
    """MOON's. A client that trains a model for the first time contrasts with that model's initial weights."""

    mu: float
    tau: float
    models: int = 1  # K, of one architecture

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"previous": {k: nothing(CLIENTS) for k in models}}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        drawn = each({client: k % self.models for k, members in turn.cohorts.items() for client in members})
        return (Contrast(self.mu, self.tau, maybe(turn.recall("previous")), number=drawn),)  # type: ignore[arg-type]

    def finish(self, turn: Turn, local: Located) -> Memory:
        last = turn.fed.run(remember, at=CLIENTS, new=local, old=maybe(turn.recall("previous")), most=1)
        return turn.store("previous", last)


@dataclass(frozen=True)
class Informed:
    """FedHKD's two terms. The knowledge of each model is pooled from the clients that trained it."""

    method: FedHkd

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"knowledge": {k: nothing(SERVER) for k in models}}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return self.method.terms(spread_by(turn.fed, turn.memory["knowledge"], turn.cohorts, turn.through))

    def finish(self, turn: Turn, local: Located) -> Memory:
        fed, known = turn.fed, dict(turn.memory["knowledge"])
        shared = fed.run(knowledge, at=CLIENTS, model=local, release=self.method.release)
        for k, pooled in gather_by(fed, shared, turn.cohorts, turn.through, pool).items():
            known[k] = fed.update(known[k], fed.run(settled, at=SERVER, known=pooled))
        return {"knowledge": known}


LossTerm = Pulled | Contrasted | Informed


def names_of(frame: Frame) -> tuple[TermName, ...]:
    """The terms of a frame: that of its trainer, then those of `terms`."""
    own = OF_TRAINER.get(frame.local)
    return (*((own,) if own else ()), *frame.terms)


def hkd_of(frame: Frame) -> FedHkd:
    """FedHKD with the options of the term "knowledge"."""
    return FedHkd(
        lam=frame.hkd_lam,
        gamma=frame.hkd_gamma,
        temperature=frame.hkd_temperature,
        nu=frame.hkd_nu,
        sigma=frame.hkd_sigma,
        zeta=frame.hkd_zeta,
    )


def terms_of(frame: Frame) -> tuple[LossTerm, ...]:
    made: dict[TermName, LossTerm] = {
        "proximal": Pulled(frame.prox_mu),
        "contrast": Contrasted(frame.moon_mu, frame.moon_tau, frame.cohorts),
        "knowledge": Informed(hkd_of(frame)),
    }
    return tuple(made[name] for name in names_of(frame))
