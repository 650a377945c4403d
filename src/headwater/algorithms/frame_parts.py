"""Parts of `Frame`: local trainers for several models at once, and the rules for what goes together.

Each trainer exists as a method of its own in another file too. The versions here train any number of models, of which a
client trains one per round; a trainer keeps its memory separately for each model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from headwater.algorithms.cohorts import Models, Several, bring_by, deal_out, gather_by, spread_by
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, each, maybe, nothing
from headwater.core.membership import share_of
from headwater.core.params import By
from headwater.core.sampling import Cohorts, turns
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.corrections import dual, dynamic_server, minus, shift, total, variate, zeros_like
from headwater.tasks.local import Term, local_train
from headwater.tasks.terms import Contrast, Dynamic, Proximal, remember

if TYPE_CHECKING:
    from headwater.algorithms.frame import Frame

Local = Literal["fedavg", "fedprox", "scaffold", "feddyn", "moon"]
Ensemble = Literal["none", "clients", "bayesian", "aggregated", "clients_multi", "aggregated_temporal", "sector"]
Consolidate = Literal["none", "basic", "warm-up", "designated", "leaders", "leaders+server"]
Memory = dict[str, Models]  # what a trainer keeps, by name and model


@dataclass(frozen=True)
class FrameState(Several):
    """State of `Frame`: its models, the trainer's memory and, at clients, the hold-out for leaders."""

    memory: Memory = field(default_factory=dict)
    val: Located = Located(CLIENTS)  # noqa: RUF009 (frozen)


@dataclass(frozen=True)
class Turn:
    """One round, as a trainer sees it.

    Args:
        fed: the view of this round.
        models: the models, at the server.
        cohorts: which clients train which model.
        memory: what the trainer keeps.
        through: whether models are relayed by sectors.
        start: at clients: the model that each trains.
    """

    fed: Federation
    models: Models
    cohorts: Cohorts
    memory: Memory
    through: bool
    start: Located

    def recall(self, name: str, common: bool = False) -> Located:
        """At clients: their memory for the model that they train now or, with `common`, for all models."""
        kept = self.memory[name]
        nodes = {c: kept[0 if common else k].nodes.get(c) for k, members in self.cohorts.items() for c in members}
        return Located(CLIENTS, {client: ref for client, ref in nodes.items() if ref is not None})

    def store(self, name: str, new: Located, common: bool = False) -> Memory:
        """The memory with new values at clients, for the model that each trained or, with `common`, for all models."""
        kept = dict(self.memory[name])
        for k, members in self.cohorts.items():
            slot, theirs = 0 if common else k, {client: new.nodes[client] for client in members}
            kept[slot] = self.fed.update(kept[slot], Located(CLIENTS, theirs))
        return {name: kept}


@dataclass(frozen=True)
class Averaging:
    """FedAvg, the base class of trainers.

    `train` returns the clients' models and their whole results; `finish` returns the cohorts' models and the memory.
    """

    spec: LocalSpec
    by: By = "samples"

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {}

    def admit(self, fed: Federation, memory: Memory) -> Memory:
        """The memory when the clients of this view join a run that has begun."""
        return memory

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return ()

    def train(self, turn: Turn) -> tuple[Located, Located]:
        options = {"spec": self.spec, "terms": self.terms(turn), "by": self.by}
        local = turn.fed.run(local_train, at=CLIENTS, start=turn.start, **options)
        return local, local

    def finish(self, turn: Turn, means: Models, work: Located) -> tuple[Models, Memory]:
        return means, turn.memory


@dataclass(frozen=True)
class Pulled(Averaging):
    """FedProx."""

    mu: float = 0.01

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return (Proximal(self.mu),)


@dataclass(frozen=True)
class Contrasted(Averaging):
    """MOON. A client that trains a model for the first time contrasts with that model's initial weights."""

    mu: float = 1.0
    tau: float = 0.5
    models: int = 1  # K, of one architecture

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"previous": {k: nothing(CLIENTS) for k in models}}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        drawn = each({client: k % self.models for k, members in turn.cohorts.items() for client in members})
        return (Contrast(self.mu, self.tau, maybe(turn.recall("previous")), number=drawn),)  # type: ignore[arg-type]

    def finish(self, turn: Turn, means: Models, work: Located) -> tuple[Models, Memory]:
        last = turn.fed.run(remember, at=CLIENTS, new=work, old=maybe(turn.recall("previous")), most=1)
        return means, turn.store("previous", last)


@dataclass(frozen=True)
class Corrected(Averaging):
    """SCAFFOLD with one variate per model at the server, and at clients one per model or, if `shared`, one for all."""

    by: By = "uniform"
    shared: bool = False

    def begin(self, fed: Federation, models: Models) -> Memory:
        common = {k: fed.run(zeros_like, at=SERVER, model=model) for k, model in models.items()}
        return {"common": common, "own": {k: nothing(CLIENTS) for k in models}}

    def admit(self, fed: Federation, memory: Memory) -> Memory:
        """As `Scaffold.admit`."""
        return memory | {"common": without(fed, memory["common"], share_of(fed, fed.clients, self.by))}

    def train(self, turn: Turn) -> tuple[Located, Located]:
        fed, own = turn.fed, maybe(turn.recall("own", self.shared))
        common = spread_by(fed, turn.memory["common"], turn.cohorts, turn.through)
        corrections = (fed.run(minus, at=CLIENTS, a=common, b=own),)
        options = {"start": turn.start, "spec": self.spec}
        local = fed.run(local_train, at=CLIENTS, corrections=corrections, by=self.by, **options)
        work = fed.run(variate, at=CLIENTS, mine=local, common=common, own=own, **options)
        return work["model"], work

    def finish(self, turn: Turn, means: Models, work: Located) -> tuple[Models, Memory]:
        fed, common = turn.fed, dict(turn.memory["common"])
        share = 1 / (sum(fed.tree.client_sizes.values()) if self.by == "samples" else len(fed.tree.holders))
        alike = len(common) // len(fed.tree.archs)  # models of one architecture
        for k, change in gather_by(fed, work["delta"], turn.cohorts, turn.through, total).items():
            # Shared variates of clients have one mean, which corrects every model of the architecture.
            for j in range(k - k % alike, k - k % alike + alike) if self.shared else (k,):
                common[j] = fed.update(common[j], fed.run(shift, at=SERVER, old=common[j], by=change, share=share))
        return means, {"common": common} | turn.store("own", work["own"], self.shared)


@dataclass(frozen=True)
class Regularised(Averaging):
    """FedDyn, separately for each model."""

    by: By = "uniform"
    alpha: float = 0.01

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"h": {k: nothing(SERVER) for k in models}, "own": {k: nothing(CLIENTS) for k in models}}

    def admit(self, fed: Federation, memory: Memory) -> Memory:
        """As `FedDyn.admit`."""
        return memory | {"h": without(fed, memory["h"], share_of(fed, fed.clients))}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return (Dynamic(self.alpha, maybe(turn.recall("own"))),)  # type: ignore[arg-type]

    def train(self, turn: Turn) -> tuple[Located, Located]:
        local, _ = super().train(turn)
        known = {"start": turn.start, "old": maybe(turn.recall("own")), "alpha": self.alpha}
        work = turn.fed.run(dual, at=CLIENTS, mine=local, **known)
        return work["model"], work

    def finish(self, turn: Turn, means: Models, work: Located) -> tuple[Models, Memory]:
        fed, models, h = turn.fed, dict(means), dict(turn.memory["h"])
        for k, mean in means.items():
            known = {"start": turn.models[k], "mean": mean, "h": maybe(h[k]), "alpha": self.alpha}
            sent = fed.run(dynamic_server, at=SERVER, members=len(fed.tree.holders), **known)
            models[k], h[k] = sent["model"], fed.update(h[k], sent["h"])
        return models, {"h": h} | turn.store("own", work["own"])


def dealt(frame: Frame, fed: Federation) -> Cohorts:
    """Which clients train which model in this round."""
    if frame.schedule == "blocks":
        return turns(fed.clients, frame.cohorts, fed.session.seed, fed.round)
    return deal_out(fed, frame.cohorts, frame.remainder)


def gathered(frame: Frame, turn: Turn, local: Located) -> tuple[Models, Models]:
    """The clients' models where they teach, by cohort, and the mean of each cohort at the server."""
    fed = turn.fed
    if frame.through_sectors:
        return {}, gather_by(fed, local, turn.cohorts, True)
    if frame.led:  # they stay inside their sector
        inside = fed.up(local)
        return {0: inside}, {0: fed.run(average, at=SERVER, models=fed.up(fed.run(average, at=SECTORS, models=inside)))}
    teams = bring_by(fed, local, turn.cohorts)
    return teams, {k: fed.run(average, at=SERVER, models=team) for k, team in teams.items()}


def without(fed: Federation, means: Models, share: float) -> Models:
    """Means at the server when clients join that add nothing to them yet."""
    return {
        k: fed.run(shift, at=SERVER, old=mean, by=mean, share=-share) if mean.nodes else mean
        for k, mean in means.items()
    }


def trainer_of(frame: Frame) -> Averaging:
    spec = frame.training
    trainer = {
        "fedavg": Averaging(spec),
        "fedprox": Pulled(spec, mu=frame.prox_mu),
        "scaffold": Corrected(spec, shared=frame.shared_variates),
        "feddyn": Regularised(spec, alpha=frame.dyn_alpha),
        "moon": Contrasted(spec, mu=frame.moon_mu, tau=frame.moon_tau, models=frame.cohorts),
    }[frame.local]
    return replace(trainer, by=frame.by) if frame.by else trainer


def refusal(frame: Frame) -> str:
    """The sentence that says why the slots do not go together; empty if they do."""
    ensemble, consolidate, cohorts, kept = frame.ensemble, frame.consolidate, frame.cohorts, frame.kept
    led = consolidate.startswith("leaders")
    if led != (ensemble == "sector"):
        return (
            f"consolidate = {consolidate!r} with ensemble = {ensemble!r}: sectors teach their leaders and nobody else; "
            "use 'sector' together with 'leaders' or 'leaders+server', and neither without the other"
        )
    if led and cohorts > 1:
        return f"consolidate = {consolidate!r} has one model, got cohorts = {cohorts}; set cohorts = 1"
    if frame.through_sectors and ensemble not in ("none", "aggregated", "aggregated_temporal"):
        return f"through_sectors needs averages as teachers, not ensemble = {ensemble!r}; use 'aggregated' with it"
    if ensemble == "none" and consolidate != "none":
        return f"consolidate = {consolidate!r} needs teachers; choose an ensemble, or consolidate = 'none'"
    if ensemble in ("clients", "bayesian") and cohorts > 1:
        return f"ensemble = {ensemble!r} goes with one cohort, got {cohorts}; set cohorts = 1, or use 'clients_multi'"
    if ensemble == "clients_multi" and cohorts == 1:
        return "ensemble = 'clients_multi' needs several cohorts; set cohorts to 2 or more, or use 'clients'"
    if kept > 1 and ensemble != "aggregated_temporal":
        return f"kept = {kept} has no effect with ensemble = {ensemble!r}; use 'aggregated_temporal', or kept = 1"
    if ensemble.startswith("aggregated") and cohorts == kept == 1:
        return (
            f"ensemble = {ensemble!r} with cohorts = 1 and kept = 1 has one member, the student itself; "
            "set cohorts or kept above 1"
        )
    if frame.local == "feddyn" and frame.by == "samples":
        return "local = 'feddyn' counts clients alike; leave by unset, or by = 'uniform'"
    alike = trainer_of(frame).by == "uniform"  # models then do not carry numbers of samples
    for stage, used in (("sector", led), ("server", consolidate not in ("none", "leaders"))):
        if alike and used and getattr(frame, stage).weights == "samples":
            return f"{stage}.weights = 'samples' with clients that count alike; use {stage}.weights = 'uniform'"
    if frame.server.weights == "labels" and ensemble in ("bayesian", "sector"):
        return (
            f"server.weights = 'labels' needs label counts at the server, which ensemble = {ensemble!r} does not send"
        )
    return ""
