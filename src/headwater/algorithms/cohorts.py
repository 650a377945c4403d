"""State and steps of methods that keep several models at the server: cohorts of clients, each with its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from headwater.algorithms.base import Team, gather
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.sampling import Cohorts, Remainder, deal
from headwater.core.tree import ROOT
from headwater.engines.jobs import Bundle
from headwater.errors import ConfigError, nearest
from headwater.specs import LocalSpec, Mix, Weights
from headwater.tasks.average import Sampler, average, initial, sample_models, tally
from headwater.tasks.local import label_counts

if TYPE_CHECKING:
    from headwater.algorithms.fedeed import FedEed
    from headwater.algorithms.frame import Frame

Models = dict[int, Located]
Rounds = tuple[Models, ...]  # of several rounds, newest first


@dataclass(frozen=True)
class Several:
    """State of a method with K models for each architecture at the server, of which the first is the designated one.

    Args:
        models: the models by number, K of the first architecture, then K of the second, and so on.
        archs: the architectures.
        mix: what is averaged when the teachers predict together.
        ring: averages of the last rounds before distillation, newest first.
        counts: label counts of each teacher, where these are its weights.
        teachers: the last ensemble, as one mapping at the server.
        weights: how much each teacher counts in it.
    """

    models: Models
    archs: tuple[str, ...]
    mix: Mix = "logits"
    ring: Rounds = ()
    counts: Rounds = ()
    teachers: Located = Located(SERVER)  # noqa: RUF009 (frozen)
    weights: Weights = "uniform"

    @property
    def model(self) -> Located:
        """The designated model of the first architecture."""
        return self.models[0]

    @property
    def also(self) -> dict[str, Located]:
        """The designated models of the other architectures."""
        each = len(self.models) // len(self.archs)
        return {arch: self.models[number * each] for number, arch in enumerate(self.archs) if number}

    @property
    def team(self) -> Team | None:
        """The last teachers, to be tested together."""
        members = unbundled(self.teachers)
        # By name: no models of single clients among them.
        averages = list(members) == list(unbundled(bundled_rounds(self.ring)))
        return Team(members, self.mix, self.weights, left=averages) if members else None

    @property
    def others(self) -> dict[str, Located]:
        """All models but the designated one of the first architecture, by architecture and number."""
        each = len(self.models) // len(self.archs)
        names = {i: f"{self.archs[i // each]}{f'_{i % each}' if i % each else ''}" for i in self.models}
        return {names[i]: model for i, model in self.models.items() if i}


def drawn_models(fed: Federation, model: Located, cohorts: int) -> Models:
    """K models for each architecture, all drawn afresh but the first, which is the run's own."""
    kinds = [(arch, k) for arch in fed.tree.archs for k in range(cohorts)]
    drawn = {i: fed.run(initial, at=SERVER, arch=arch, number=k) for i, (arch, k) in enumerate(kinds) if i}
    return {0: model} | drawn


def deal_out(fed: Federation, cohorts: int, remainder: Remainder = "front") -> Cohorts:
    """Random cohorts for this round. Each architecture has K cohorts of its own clients, numbered consecutively."""
    rng = fed.rng("cohorts")
    dealt: Cohorts = {}
    for number, arch in enumerate(fed.tree.archs):
        alike = [client for client in fed.clients if fed.tree.arch(client) == arch]
        dealt |= deal(alike, cohorts, rng, remainder, first=number * cohorts)
    return dealt


def differing(spec: LocalSpec, own: Mapping[str, Any], what: str) -> LocalSpec:
    """Local training with some settings of its own. `epochs` replaces `steps`, and the other way round.

    Args:
        spec: the settings of all.
        own: those that differ.
        what: what has them, for messages.

    Raises:
        ValueError: a setting is unknown, or does not fit.
    """
    known = [f.name for f in fields(spec)]
    for key in own:
        if key not in known:
            raise ValueError(
                f"{what}: there is no {key!r}{nearest(key, [*known, 'mu'])} (accepted: {', '.join(known)}, mu)"
            )
    lengths = {"epochs": None, "steps": None} if {"epochs", "steps"} & own.keys() else {}
    try:
        return replace(spec, **(lengths | dict(own)))
    except ConfigError as error:
        raise ValueError(f"{what}: {error}") from None


def spread_by(fed: Federation, models: Mapping[int, Located], cohorts: Cohorts, through: bool = False) -> Located:
    """Send every client its cohort's model: straight, or relayed by the sectors that have a client of the cohort."""
    sent = {k: fed.among(cohorts[k]).down(models[k]) for k in cohorts} if through else models
    return fed.down({client: sent[k] for k, members in cohorts.items() for client in members}, to=CLIENTS)


def gather_by(
    fed: Federation, x: Located, cohorts: Cohorts, through: bool = False, task: Callable[..., Any] = average
) -> Models:
    """Combine the clients' values of each cohort. A result depends on its own clients only: none waits for others."""
    return {k: gather(fed.among(members), x, through, task) for k, members in cohorts.items()}


def bring_by(fed: Federation, x: Located, cohorts: Cohorts) -> Models:
    """Send the clients' values to the server: {client: value} for each cohort."""
    return {k: fed.among(members).up(x, to=SERVER) for k, members in cohorts.items()}


def counted(fed: Federation, before: Rounds, cohorts: Cohorts, kept: int, through: bool = False) -> Rounds:
    """Label counts of each cohort in the last `kept` rounds, newest first."""
    sums = gather_by(fed, fed.run(label_counts, at=CLIENTS), cohorts, through, tally)
    return ((before[0] if before else {}) | sums, *before)[:kept]


def sampled(
    fed: Federation, models: Models, teams: Models, averages: Models, samples: int, sampler: Sampler
) -> dict[Any, Located]:
    """The averages, and models drawn around the clients' models of each cohort.

    Args:
        fed: the view of this round.
        models: the models that the cohorts started from.
        teams: the clients' models of each cohort.
        averages: the cohorts' averages.
        samples: how many models are drawn for each cohort.
        sampler: how they are drawn.
    """
    members: dict[Any, Located] = {}
    for k, team in teams.items():
        options = {"count": samples, "sampler": sampler, "base": models[k]}
        drawn = fed.run(sample_models, at=SERVER, models=team, **options)
        members |= {f"average {k}": averages[k]} | {f"sample {k}.{i}": drawn[i] for i in range(samples)}
    return members


def students_of(method: FedEed | Frame, round: int, models: int) -> range:
    """Numbers of the models that are distilled at the server in this round."""
    if method.consolidate == "none" or (method.consolidate == "warm-up" and round <= method.warmup):
        return range(0)
    return range(0, models, method.cohorts if method.consolidate == "designated" else 1)


def renewed(fed: Federation, old: Models, new: Models) -> Models:
    """The new models; the old one where no client trained a model, or all that did were lost."""
    return old | {k: fed.update(old[k], model) if k in old else model for k, model in new.items()}


def bundled(values: Mapping[Any, Located]) -> Located:
    """Values at the server as one mapping, as if they had been sent up together. Lost values are left out."""
    refs: dict[str, Any] = {}
    for name, x in values.items():
        value = x.nodes.get(ROOT)
        refs |= value.refs if isinstance(value, Bundle) else {str(name): value} if value is not None else {}
    return Located(SERVER, {ROOT: Bundle(refs)} if refs else {})


def bundled_rounds(ring: Rounds) -> Located:
    """The models of several rounds as one mapping."""
    return bundled({f"{r}.{k}": x for r, models in enumerate(ring) for k, x in models.items()})


def unbundled(mapping: Located) -> dict[str, Located]:
    """The values of a mapping at the server as separate handles."""
    bundle = mapping.nodes.get(ROOT)
    refs = bundle.refs if isinstance(bundle, Bundle) else {}
    return {name: Located(SERVER, {ROOT: ref}) for name, ref in refs.items()}
