"""Trainers of `Frame` that work inside sectors: each sector averages several times before the server averages sectors.

There is one model. Corrections are kept at the tier at which they act: z at clients, towards their sector; y at
sectors, towards all; FedDyn's h at sectors.

A correction belongs to the models that it was made with, so it is updated from averages only: y from the sector's mean
and the mean of all sectors, before anybody is taught. Sums of y over sectors, and of z inside a sector, then stay zero
wherever the student goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.algorithms.cohorts import Models
from headwater.algorithms.feddyn import alphas
from headwater.algorithms.frame_parts import Averaging, LocalWork, Memory, Turn
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, each, maybe, nothing
from headwater.core.params import By
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.corrections import (
    alike,
    corrected,
    dual,
    dynamic_server,
    gradient_at,
    minus,
    shift,
    zeros_like,
)
from headwater.tasks.local import local_train
from headwater.tasks.terms import Dynamic


@dataclass(frozen=True)
class Nested(Averaging):
    """H-FedAvg, the base class of trainers of the tree.

    Args:
        rounds: E, averages at sectors per round.
    """

    rounds: int = 1

    @property
    def at_server(self) -> By:
        return self.by

    @property
    def alike(self) -> bool:
        return False

    def train(self, turn: Turn) -> LocalWork:
        fed, mean = turn.fed, turn.fed.down(turn.models[0])
        for _ in range(self.rounds):  # the server is not asked
            start = fed.down(mean)
            local = fed.run(local_train, at=CLIENTS, start=start, spec=self.spec, terms=self.terms(turn))
            team = fed.up(local)
            mean = fed.run(average, at=SECTORS, models=team, by=self.by)
        return self.joined(turn, local, team, mean)

    def joined(self, turn: Turn, local: Located, team: Located, mean: Located) -> LocalWork:
        """The sectors' means, and their mean at the server."""
        sectors = turn.fed.up(mean)
        model = turn.fed.run(average, at=SERVER, models=sectors, by=self.by)
        return LocalWork(local, {0: model}, turn.memory, {}, team, sectors)


@dataclass(frozen=True)
class TwoTier(Nested):
    """MTGC, or without `y` hierarchical SCAFFOLD.

    Args:
        y: correct sectors towards all, too.
        lasting: the mean that sectors receive for y is the model of the next round, since nobody is taught.
        renew: z and y are taken in every round from the gradients at the model that it starts from.
    """

    by: By = "uniform"
    y: bool = True
    lasting: bool = True
    renew: bool = False

    def begin(self, fed: Federation, models: Models) -> Memory:
        z = {"z": {0: nothing(CLIENTS)}}
        return z | {"y": {0: nothing(SECTORS)}, "start": {0: nothing(SECTORS)}} if self.y else z

    def admit(self, fed: Federation, memory: Memory, models: Models) -> Memory:
        """As `Mtgc.admit`."""
        if not (self.y and memory["start"][0].nodes):
            return memory
        known = memory["start"][0].nodes
        new = fed.among(client for client in fed.clients if fed.tree.sector_of[client] not in known)
        return memory | {"start": {0: Located(SECTORS, {**new.down(models[0]).nodes, **known})}}

    def train(self, turn: Turn) -> LocalWork:
        fed, rest, z = turn.fed, turn.rest, turn.memory["z"][0]
        spec = alike(self.spec, [fed.tree.sizes[client] for client in fed.tree.holders])
        pace = (spec.steps or 0) * spec.lr
        received = self._received(turn)
        y = fed.hand(turn.memory["y"][0]) if self.y else nothing(SECTORS)
        start = fed.down(fed.hand(received))
        if self.renew:
            z, y = self._from_gradients(fed, start, spec)
        its_y = fed.down(y)
        for number in range(1, self.rounds + 1):  # the server is not asked
            options = {"corrections": (maybe(z), maybe(its_y)), "spec": spec, "terms": self.terms(turn)}
            local = fed.run(local_train, at=CLIENTS, start=start, **options)
            team = fed.up(local)
            mean = fed.run(average, at=SECTORS, models=team, by=self.by)
            if self.renew and number == self.rounds:
                return self.joined(turn, local, team, mean)
            start = fed.down(mean)
            z = fed.update(z, fed.run(corrected, at=CLIENTS, old=maybe(z), mine=local, ours=start, pace=pace))
        work = self.joined(turn, local, team, mean)
        memory = turn.memory | {"z": {0: z}}
        if not self.y:
            return replace(work, memory=memory)
        known, before, seed = nothing(SECTORS), turn.memory["y"][0], None
        if self.lasting:
            known = rest.whole.down(work.means[0])  # to hosts, also of sectors that sat this one out
            before = before if before.nodes else rest.whole.run(zeros_like, at=SECTORS, model=received)
        else:
            seed = fed.down(work.means[0])
        new = fed.run(corrected, at=SECTORS, old=maybe(y), mine=mean, ours=seed or known, pace=pace * self.rounds)
        kept = {"y": {0: rest.update(before, rest.hand(new))}, "start": {0: known}}
        return replace(work, memory=memory | kept, received=seed)

    def _received(self, turn: Turn) -> Located:
        """At sectors: the model that the round starts from."""
        known = turn.memory["start"][0] if self.y else nothing(SECTORS)
        if known.nodes:
            return known
        return (turn.rest.whole if self.y and self.lasting else turn.fed).down(turn.models[0])

    def _from_gradients(self, fed: Federation, start: Located, spec: LocalSpec) -> tuple[Located, Located]:
        own = fed.run(gradient_at, at=CLIENTS, model=start, spec=spec)
        ours = fed.run(average, at=SECTORS, models=fed.up(own), by=self.by)
        z, y = fed.run(minus, at=CLIENTS, a=fed.down(ours), b=own), nothing(SECTORS)
        if self.y:
            everybodys = fed.down(fed.run(average, at=SERVER, models=fed.up(ours), by=self.by))
            y = fed.run(minus, at=SECTORS, a=everybodys, b=ours)
        return z, y


@dataclass(frozen=True)
class NestedDynamic(Nested):
    """Hierarchical FedDyn. A client's alpha is divided by its size relative to the mean, as the method has it."""

    by: By = "uniform"
    alpha: float = 0.01

    @property
    def alike(self) -> bool:
        return True

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"h": {0: nothing(SECTORS)}, "own": {0: nothing(CLIENTS)}}

    def admit(self, fed: Federation, memory: Memory, models: Models) -> Memory:
        """As `HFedDyn.admit`."""
        h = memory["h"][0]
        teams = {sector: [c for c in fed.tree.team(sector) if c in fed.tree.holders] for sector in fed.sectors}
        share = each({sector: -len(fed.teams[sector]) / len(team) for sector, team in teams.items()})
        some = fed.among(client for client in fed.clients if fed.tree.sector_of[client] in h.nodes)
        return memory | {"h": {0: fed.update(h, some.run(shift, at=SECTORS, old=h, by=h, share=share))}}

    def train(self, turn: Turn) -> LocalWork:
        fed, rest = turn.fed, turn.rest
        alpha = each(alphas(self.alpha, "size", fed.tree))
        members = each({sector: sum(c in fed.tree.holders for c in fed.tree.team(sector)) for sector in fed.sectors})
        model, h, own = fed.down(turn.models[0]), fed.hand(turn.memory["h"][0]), turn.memory["own"][0]
        for _ in range(self.rounds):  # the server is not asked
            start = fed.down(model)
            terms = (Dynamic(alpha, maybe(own)), *self.terms(turn))  # type: ignore[arg-type]
            local = fed.run(local_train, at=CLIENTS, start=start, spec=self.spec, terms=terms, by="uniform")
            new = fed.run(dual, at=CLIENTS, start=start, mine=local, old=maybe(own), alpha=alpha)
            team = fed.up(new["model"])
            mean = fed.run(average, at=SECTORS, models=team)
            known = {"start": model, "mean": mean, "h": maybe(h), "members": members}
            sent = fed.run(dynamic_server, at=SECTORS, **known, alpha=self.alpha)
            model, h, own = sent["model"], fed.update(h, sent["h"]), fed.update(own, new["own"])
        work = self.joined(turn, new["model"], team, model)
        kept = {"h": {0: rest.update(turn.memory["h"][0], rest.hand(h))}, "own": {0: own}}
        return replace(work, memory=turn.memory | kept)
