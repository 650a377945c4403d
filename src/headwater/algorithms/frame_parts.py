"""Parts of `Frame`: its state, what a round is made of, and local trainers for several models at once.

Each trainer exists as a method of its own in another file too. The versions here train any number of models, of which a
client trains one per round; a trainer keeps its memory separately for each model. Trainers of the tree are in
`frame_tree`, loss terms in `frame_terms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headwater.algorithms.cohorts import Models, Several, bring_by, gather_by, spread_by
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.membership import share_of
from headwater.core.params import By
from headwater.core.sampling import Cohorts
from headwater.specs import LocalSpec
from headwater.tasks.average import average
from headwater.tasks.corrections import dual, dynamic_server, gradient_at, minus, shift, total, variate, zeros_like
from headwater.tasks.local import Term, local_train
from headwater.tasks.terms import Dynamic

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
        fed: the view of this round, with its leaders if there are any.
        rest: the same view without leaders.
        models: the models, at the server.
        cohorts: which clients train which model.
        memory: what trainer and terms keep.
        through: whether models are relayed by sectors.
        inside: whether the clients' models stay inside their sector, which sends its mean up.
        terms: what is added to the loss besides the trainer's own.
    """

    fed: Federation
    rest: Federation
    models: Models
    cohorts: Cohorts
    memory: Memory
    through: bool
    inside: bool
    terms: tuple[Term, ...] = ()

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

    def gathered(self, local: Located) -> LocalWork:
        """The clients' models where they teach, and the mean of each cohort at the server."""
        fed = self.fed
        if self.inside:
            team = fed.up(local)
            sectors = fed.up(fed.run(average, at=SECTORS, models=team))
            return LocalWork(local, {0: fed.run(average, at=SERVER, models=sectors)}, self.memory, {}, team, sectors)
        if self.through:
            return LocalWork(local, gather_by(fed, local, self.cohorts, True), self.memory)
        teams = bring_by(fed, local, self.cohorts)
        means = {k: fed.run(average, at=SERVER, models=team) for k, team in teams.items()}
        return LocalWork(local, means, self.memory, teams)


@dataclass(frozen=True)
class LocalWork:
    """What a trainer made of a round.

    Args:
        local: at clients: their models.
        means: at the server: the model of each cohort that trained.
        memory: what the trainer keeps.
        teams: at the server: the clients' models by cohort, where they may leave their sector.
        team: at sectors: the models of their clients, where these stay there.
        sectors: at the server: the sectors' means.
        received: at sectors: the mean, if the trainer sent it there.
    """

    local: Located
    means: Models
    memory: Memory
    teams: Models = field(default_factory=dict)
    team: Located = Located(SECTORS)  # noqa: RUF009 (frozen)
    sectors: Located = Located(SERVER)  # noqa: RUF009 (frozen)
    received: Located | None = None


@dataclass(frozen=True)
class Averaging:
    """FedAvg, the base class of trainers."""

    spec: LocalSpec
    by: By = "samples"

    @property
    def at_server(self) -> By:
        """How sectors count at the server; the weights that their models carry say how clients count."""
        return "samples"

    @property
    def alike(self) -> bool:
        """Whether models carry no numbers of samples, because clients count alike."""
        return self.by == "uniform"

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {}

    def admit(self, fed: Federation, memory: Memory, models: Models) -> Memory:
        """The memory when the clients of this view join a run that has begun."""
        return memory

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return turn.terms

    def start(self, turn: Turn) -> Located:
        """At clients: the model that each trains."""
        return spread_by(turn.fed, turn.models, turn.cohorts, turn.through)

    def train(self, turn: Turn) -> LocalWork:
        options = {"spec": self.spec, "terms": self.terms(turn), "by": self.by}
        return turn.gathered(turn.fed.run(local_train, at=CLIENTS, start=self.start(turn), **options))

    def shifted(self, fed: Federation, models: Models, work: LocalWork) -> Models:
        """The models after consolidation, for a trainer that corrects the taught ones."""
        return models


@dataclass(frozen=True)
class Corrected(Averaging):
    """SCAFFOLD with one variate per model at the server, and at clients one per model or, if `shared`, one for all.

    If `renew`, variates are the gradients at the model that a round starts from, taken and sent before it.
    """

    by: By = "uniform"
    shared: bool = False
    renew: bool = False

    def begin(self, fed: Federation, models: Models) -> Memory:
        common = {k: fed.run(zeros_like, at=SERVER, model=model) for k, model in models.items()}
        return {"common": common, "own": {k: nothing(CLIENTS) for k in models}}

    def admit(self, fed: Federation, memory: Memory, models: Models) -> Memory:
        """As `Scaffold.admit`."""
        return memory | {"common": without(fed, memory["common"], share_of(fed, fed.clients, self.by))}

    def train(self, turn: Turn) -> LocalWork:
        fed, start = turn.fed, self.start(turn)
        if self.renew:
            turn = replace(turn, memory=turn.memory | self._renewed(turn, start))
        own = maybe(turn.recall("own", self.shared))
        common = spread_by(fed, turn.memory["common"], turn.cohorts, turn.through)
        options = {"start": start, "spec": self.spec}
        more = {"corrections": (fed.run(minus, at=CLIENTS, a=common, b=own),), "terms": self.terms(turn)}
        local = fed.run(local_train, at=CLIENTS, by=self.by, **more, **options)
        if self.renew:
            return turn.gathered(local)
        new = fed.run(variate, at=CLIENTS, mine=local, common=common, own=own, **options)
        work = turn.gathered(new["model"])
        return replace(work, memory=turn.memory | self._kept(turn, new["own"], new["delta"]))

    def _renewed(self, turn: Turn, start: Located) -> Memory:
        fed, own = turn.fed, maybe(turn.recall("own", self.shared))
        new = fed.run(gradient_at, at=CLIENTS, model=start, spec=self.spec, by=self.by)
        return self._kept(turn, new, fed.run(minus, at=CLIENTS, a=new, b=own))

    def _kept(self, turn: Turn, own: Located, delta: Located) -> Memory:
        fed, common = turn.fed, dict(turn.memory["common"])
        share = 1 / (sum(fed.tree.client_sizes.values()) if self.by == "samples" else len(fed.tree.holders))
        alike = len(common) // len(fed.tree.archs)  # models of one architecture
        for k, change in gather_by(fed, delta, turn.cohorts, turn.through, total).items():
            # Shared variates of clients have one mean, which corrects every model of the architecture.
            for j in range(k - k % alike, k - k % alike + alike) if self.shared else (k,):
                common[j] = fed.update(common[j], fed.run(shift, at=SERVER, old=common[j], by=change, share=share))
        return {"common": common} | turn.store("own", own, self.shared)


@dataclass(frozen=True)
class Regularised(Averaging):
    """FedDyn, separately for each model. If `late`, the mean is taught, and the student is shifted by −h / alpha."""

    by: By = "uniform"
    alpha: float = 0.01
    late: bool = False

    def begin(self, fed: Federation, models: Models) -> Memory:
        return {"h": {k: nothing(SERVER) for k in models}, "own": {k: nothing(CLIENTS) for k in models}}

    def admit(self, fed: Federation, memory: Memory, models: Models) -> Memory:
        """As `FedDyn.admit`."""
        return memory | {"h": without(fed, memory["h"], share_of(fed, fed.clients))}

    def terms(self, turn: Turn) -> tuple[Term, ...]:
        return (Dynamic(self.alpha, maybe(turn.recall("own"))), *turn.terms)  # type: ignore[arg-type]

    def train(self, turn: Turn) -> LocalWork:
        fed, start = turn.fed, self.start(turn)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.spec, terms=self.terms(turn), by=self.by)
        old = maybe(turn.recall("own"))
        new = fed.run(dual, at=CLIENTS, start=start, mine=local, old=old, alpha=self.alpha)
        work = turn.gathered(new["model"])
        models, h = dict(work.means), dict(turn.memory["h"])
        for k, mean in work.means.items():
            known = {"start": turn.models[k], "mean": mean, "h": maybe(h[k]), "alpha": self.alpha}
            sent = fed.run(dynamic_server, at=SERVER, members=len(fed.tree.holders), **known)
            models[k], h[k] = mean if self.late else sent["model"], fed.update(h[k], sent["h"])
        return replace(work, means=models, memory=turn.memory | {"h": h} | turn.store("own", new["own"]))

    def shifted(self, fed: Federation, models: Models, work: LocalWork) -> Models:
        if not self.late:
            return models
        by = {"share": -1 / self.alpha}
        return models | {
            k: fed.update(models[k], fed.run(shift, at=SERVER, old=models[k], by=work.memory["h"][k], **by))
            for k in work.means
        }


def without(fed: Federation, means: Models, share: float) -> Models:
    """Means at the server when clients join that add nothing to them yet."""
    return {
        k: fed.run(shift, at=SERVER, old=mean, by=mean, share=-share) if mean.nodes else mean
        for k, mean in means.items()
    }
