"""A method composed of three slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms import ALGORITHMS
from headwater.algorithms import frame_parts as parts
from headwater.algorithms.base import Method, MethodInfo
from headwater.algorithms.cohorts import (
    Models,
    bring_by,
    counted,
    drawn_models,
    over,
    renewed,
    sampled,
    spread_by,
    students_of,
    together,
)
from headwater.algorithms.fedhead import ValSource, hold_out
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.membership import with_newcomers
from headwater.core.params import By
from headwater.core.sampling import Leader, Remainder, choose
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.parts import need_parts
from headwater.specs import DISTILL, LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec, NotNegative, Positive
from headwater.tasks.average import Sampler, average
from headwater.tasks.corrections import check_path
from headwater.tasks.distill import distill
from headwater.tasks.local import label_counts


@dataclass(frozen=True, config=STRICT)
class Frame(Method):
    """The three stages of a round as slots: any local trainer, any teachers and any consolidation that go together.

    The generalised framework of FedEED: Efficient Federated Distillation with Ensemble of Aggregated Models (anonymous
    authors, submitted to ICLR 2023), with the sector ensembles of FedHEAD added. docs/methods.md shows which choices
    give which published method.

    Cost: SCAFFOLD's variates go with every model to clients and back.

    Differences from the paper: its framework has neither sectors nor FedDyn and MOON. Each of several models has its
    own variates, duals and earlier models.

    Args:
        local: the local trainer: fedavg, fedprox, scaffold, feddyn or moon.
        ensemble: who teaches: none, sector; clients, bayesian, clients_multi; aggregated, aggregated_temporal.
        consolidate: who learns: none; basic, warm-up or designated at the server; leaders or leaders+server with
            sectors.
        training: local training, filled from the section `[local]`.
        sector: distillation at the leaders.
        server: distillation at the server, on the reference set.
        cohorts: K, models kept at the same time.
        kept: R, rounds whose averages teach.
        schedule: which clients train which model: "random" in each round, or in "blocks" of K rounds, as in
            Fed-ensemble.
        remainder: where clients go that an even split into cohorts leaves over, see `FedEed`.
        warmup: rounds without distillation, for "warm-up".
        by: weight of a client in means; None: as the trainer has it.
        samples: models drawn per round, for "bayesian".
        sampler: how they are drawn, see `FedBe`.
        leader: who leads a sector, see `FedHead`.
        val_source: what leaders are judged on, see `FedHead`.
        prox_mu: μ of the trainer "fedprox".
        moon_mu: μ of the trainer "moon".
        moon_tau: τ of the trainer "moon".
        dyn_alpha: α of the trainer "feddyn".
        shared_variates: one SCAFFOLD variate per client for all models, instead of one for each model.
        through_sectors: sectors average the clients of each cohort first; not where clients or sectors teach.

    Example:
        >>> import headwater as hw
        >>> options = {"ensemble": "aggregated", "consolidate": "designated", "cohorts": 2, "server__epochs": 1}
        >>> run = hw.run("frame", data="digits", clients=4, rounds=1, local__epochs=1, **options)
        >>> "ensemble_accuracy" in run.history[0]
        True
    """

    INFO = MethodInfo(
        name="frame",
        family="composed",
        summary="the three stages as slots: any trainer, any teacher, any consolidation",
        stages=("as the local slot says", "as the ensemble slot says", "as the consolidate slot says"),
        models="N, N | N, N (through sectors P, P | N, N with P ≤ K·M; with leaders 2M, 2M | N − M, N − M)",
        moves={
            "a round": "server → client model; client → server model",
            "a round with leaders": (
                "server → leader model; leader → client model; client → leader model; leader → server model"
            ),
            "a round through sectors": (
                "server → sector model; sector → client model; client → sector model; sector → server model"
            ),
            "before the first round with leaders": "server → sector examples; sector → client examples",
            "a round by label counts": "also client → server array",
        },
        sees={
            "server": "depends on its slots: at most what the methods in them show",
            "host": "its clients' models",
            "leader": 'its sector\'s models, with `ensemble = "sector"`',
            "client": "the global model, or one of several",
        },
        mixed_architectures=True,
        strengths=("dyn_alpha",),
    )

    local: parts.Local = "fedavg"
    ensemble: parts.Ensemble = "clients"
    consolidate: parts.Consolidate = "designated"
    training: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    server: DistillSpec = DISTILL
    cohorts: AtLeastOne = 1
    kept: AtLeastOne = 1
    schedule: Literal["random", "blocks"] = "random"
    remainder: Remainder = "front"
    warmup: Count = 20
    by: By | None = None
    samples: AtLeastOne = 10
    sampler: Sampler = "gaussian"
    leader: Leader = "random"
    val_source: ValSource = "server"
    prox_mu: NotNegative = 0.01
    moon_mu: NotNegative = 1.0
    moon_tau: Positive = 0.5
    dyn_alpha: Positive = 0.01
    shared_variates: bool = False
    through_sectors: bool = False

    @classmethod
    def defaults(cls, options: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The defaults of the trainer's own method. Teachers count equally where clients do."""
        local = options.get("local", "fedavg")
        own = dict(ALGORITHMS[local].info.defaults)
        equal = {stage: {"weights": "uniform"} for stage in ("sector", "server")}
        return own | equal if local in ("scaffold", "feddyn") else own

    def __post_init__(self) -> None:
        if reason := parts.refusal(self):
            raise ValueError(reason)
        if self.local == "scaffold":
            check_path(self.training, "local = 'scaffold'")

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        if self.local == "moon":
            need_parts(spec, "local = 'moon'")
        return {}

    @property
    def trainer(self) -> parts.Averaging:
        return parts.trainer_of(self)

    @property
    def led(self) -> bool:
        return self.ensemble == "sector"

    def distils(self, stage: str) -> bool:
        return self.led if stage == "sector" else self.consolidate not in ("none", "leaders")

    def validates_on_server_data(self, stage: str) -> bool:
        return stage != "sector" or self.val_source == "server"

    def uses_features(self) -> bool:
        return self.local == "moon"

    def init(self, fed: Federation, model: Located) -> parts.FrameState:
        if len(fed.tree.archs) > 1 and (self.led or self.schedule == "blocks"):
            raise ConfigError("model.also: neither leaders nor schedule = 'blocks' can work with unequal architectures")
        models = drawn_models(fed, model, self.cohorts)
        val = hold_out(fed, self.val_source) if self.led else nothing(CLIENTS)
        memory = self.trainer.begin(fed, models)
        return parts.FrameState(models, fed.tree.archs, self.server.mix, memory=memory, val=val)

    def admit(self, fed: Federation, state: parts.FrameState, first: parts.FrameState) -> parts.FrameState:
        return replace(with_newcomers(state, first), memory=self.trainer.admit(fed, state.memory))

    def round(self, fed: Federation, state: parts.FrameState) -> parts.FrameState:
        if self.led:
            fed = fed.seat(choose(self.leader, fed))
        cohorts, through = parts.dealt(self, fed), self.led or self.through_sectors
        start = spread_by(fed, state.models, cohorts, through)
        turn = parts.Turn(fed, state.models, cohorts, state.memory, through, start)
        local, work = self.trainer.train(turn)
        teams, means = parts.gathered(self, turn, local)
        trained, memory = self.trainer.finish(turn, means, work)
        then = replace(state, memory=memory)
        return self._leaders(fed, then, trained[0], teams[0]) if self.led else self._server(turn, then, trained, teams)

    def _leaders(self, fed: Federation, state: parts.FrameState, mean: Located, team: Located) -> parts.FrameState:
        """Sectors teach their leaders, on the leaders' data, and leaders may teach the server."""
        counts = fed.up(fed.run(label_counts, at=CLIENTS)) if self.sector.weights == "labels" else None
        judged = {"val": maybe(state.val), "hold": 0.2 if self.val_source == "leader" else 0.0, "counts": counts}
        students = fed.run(distill, at=SECTORS, start=fed.down(mean), teachers=team, spec=self.sector, **judged)
        taught = fed.up(students)
        model = fed.run(average, at=SERVER, models=taught)
        if self.consolidate == "leaders+server":
            model = fed.run(distill, at=SERVER, start=model, teachers=taught, spec=self.server)
        return replace(state, models={0: fed.update(state.models[0], model)})

    def _server(self, turn: parts.Turn, state: parts.FrameState, trained: Models, teams: Models) -> parts.FrameState:
        """The ensemble at the server teaches some of the models, on the reference set."""
        fed, averaged = turn.fed, self.ensemble.startswith("aggregated")
        models = renewed(fed, state.models, trained)
        averages = renewed(fed, state.ring[0] if state.ring else {}, trained)
        ring, counts, teachers = (averages, *state.ring)[: self.kept], state.counts, nothing(SERVER)
        if self.ensemble != "none":
            bayesian = self.ensemble == "bayesian"
            drawn = sampled(fed, turn.models, teams, averages, self.samples, self.sampler) if bayesian else {}
            teachers = over(ring) if averaged else together(drawn | teams)
        if self.server.weights == "labels" and self.ensemble != "none":
            if averaged:
                counts = counted(fed, counts, turn.cohorts, self.kept, turn.through)
            else:
                counts = (bring_by(fed, fed.run(label_counts, at=CLIENTS), turn.cohorts),)
        weighs = (over(counts) if averaged else together(counts[0])) if counts else None
        for k in students_of(self, fed.round, len(models)):
            taught = fed.run(distill, at=SERVER, start=models[k], teachers=teachers, spec=self.server, counts=weighs)
            models[k] = fed.update(models[k], taught)
        return replace(state, models=models, ring=ring, counts=counts, teachers=teachers)
