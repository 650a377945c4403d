"""What methods with several models at the server have in common: whom each model goes to, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.algorithms.base import Team, gather
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.sampling import Cohorts, Remainder, deal
from headwater.core.tree import ROOT
from headwater.engines.base import Bundle
from headwater.specs import Mix, Weights
from headwater.tasks.average import average

Models = dict[int, Located]


@dataclass(frozen=True)
class Several:
    """K models for each architecture at the server, of which the first is designated, and who taught last."""

    models: Models
    archs: tuple[str, ...]
    mix: Mix = "logits"  # how the teachers predict together
    ring: tuple[Models, ...] = ()  # averages of the last rounds before distillation, newest first
    counts: tuple[Models, ...] = ()  # the label counts behind the teachers, where these weigh
    teachers: Located = Located(SERVER)  # noqa: RUF009 (frozen) the last ensemble
    weights: Weights = "uniform"  # how the teachers count in it

    @property
    def model(self) -> Located:
        return self.models[0]

    @property
    def also(self) -> dict[str, Located]:
        each = len(self.models) // len(self.archs)
        return {arch: self.models[number * each] for number, arch in enumerate(self.archs) if number}

    @property
    def team(self) -> Team | None:
        return Team(apart(self.teachers), self.mix, self.weights) if self.teachers.nodes else None


def deal_out(fed: Federation, cohorts: int, remainder: Remainder = "front") -> Cohorts:
    """This round's cohorts. Clients of unlike architectures are dealt apart: K cohorts each, numbered on."""
    rng = fed.rng("cohorts")
    dealt: Cohorts = {}
    for number, arch in enumerate(fed.tree.archs):
        alike = [client for client in fed.clients if fed.tree.arch(client) == arch]
        dealt |= deal(alike, cohorts, rng, remainder, first=number * cohorts)
    return dealt


def spread_by(fed: Federation, models: Mapping[int, Located], cohorts: Cohorts, through: bool = False) -> Located:
    """To every client its cohort's model: straight, or relayed by the sectors that have a client of the cohort."""
    sent = {k: fed.among(cohorts[k]).down(models[k]) for k in cohorts} if through else models
    return fed.down({client: sent[k] for k, members in cohorts.items() for client in members}, to=CLIENTS)


def gather_by(
    fed: Federation, x: Located, cohorts: Cohorts, through: bool = False, task: Callable[..., Any] = average
) -> Models:
    """One result a cohort. Each depends on its own clients alone, so a cohort need not wait for another."""
    return {k: gather(fed.among(members), x, through, task) for k, members in cohorts.items()}


def bring_by(fed: Federation, x: Located, cohorts: Cohorts) -> Models:
    """To the server, straight: {client: value} of each cohort."""
    return {k: fed.among(members).up(x, to=SERVER) for k, members in cohorts.items()}


def renewed(fed: Federation, old: Models, new: Models) -> Models:
    """Model by model the new one; the old one where nobody trained it or all who did were lost."""
    return old | {k: fed.update(old[k], model) if k in old else model for k, model in new.items()}


def together(values: Mapping[Any, Located]) -> Located:
    """Values at the server as one mapping, as if they had come up together: what was lost is left out of it."""
    refs: dict[str, Any] = {}
    for name, x in values.items():
        held = x.nodes.get(ROOT)
        refs |= held.refs if isinstance(held, Bundle) else {str(name): held} if held is not None else {}
    return Located(SERVER, {ROOT: Bundle(refs)} if refs else {})


def over(ring: tuple[Models, ...]) -> Located:
    """All models of some rounds as one mapping."""
    return together({f"{r}.{k}": x for r, models in enumerate(ring) for k, x in models.items()})


def apart(mapping: Located) -> dict[str, Located]:
    """The values of such a mapping, each by itself."""
    held = mapping.nodes.get(ROOT)
    refs = held.refs if isinstance(held, Bundle) else {}
    return {name: Located(SERVER, {ROOT: ref}) for name, ref in refs.items()}
