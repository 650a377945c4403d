"""The three stages as slots: any trainer, any teacher, any consolidation that make sense together.

The generalised framework of FedEED: Efficient Federated Distillation with Ensemble of Aggregated Models (anonymous
authors, submitted to ICLR 2023), with the sector ensembles of FedHEAD added. docs/methods.md has each method's row.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| as the local slot says | as the ensemble slot says | as the consolidate slot says |

| slot | choices |
|---|---|
| local | fedavg, fedprox (`prox_mu`), scaffold (`shared_variates`), feddyn (`dyn_alpha`), moon (`moon_mu`, …) |
| ensemble | none, sector; clients, bayesian, clients_multi; aggregated, aggregated_temporal |
| consolidate | none; basic, warm-up, designated at the server; leaders, leaders+server for sectors |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; with leaders
2M, 2M and N − M, N − M. SCAFFOLD's variates go with every model to clients and back.
Moves a round: server → client model; client → server model.
Moves a round with leaders: server → leader model; leader → client model; client → leader model; leader → server model.
Moves before the first round with leaders: server → sector examples; sector → client examples.
Moves a round by label counts: also client → server array.

Differences from the paper: its framework has neither sectors nor FedDyn and MOON. Each of several models has its own
variates, duals and earlier models; `shared_variates` keeps one SCAFFOLD variate a client. [local] is the training.

>>> import headwater as hw
>>> options = {"ensemble": "aggregated", "consolidate": "designated", "cohorts": 2, "server__epochs": 1}
>>> run = hw.run("frame", data="digits", clients=4, rounds=1, local__epochs=1, **options)
>>> "ensemble_accuracy" in run.history[0]
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms import frame_parts as parts
from headwater.algorithms.cohorts import Models, bring_by, over, renewed, spread_by, together
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.leaders import Leader, choose
from headwater.core.params import By
from headwater.core.sampling import Remainder
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.specs import DISTILL, LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec, NotNegative, Positive
from headwater.tasks.average import average, initial
from headwater.tasks.corrections import check_path
from headwater.tasks.distill import distill, validation
from headwater.tasks.local import label_counts
from headwater.tasks.model_sampling import Sampler


@dataclass(frozen=True, config=STRICT)
class Frame:
    local: parts.Local = "fedavg"
    ensemble: parts.Ensemble = "clients"
    consolidate: parts.Consolidate = "designated"
    training: LocalSpec = LOCAL  # the section [local]
    sector: DistillSpec = DISTILL
    server: DistillSpec = DISTILL
    cohorts: AtLeastOne = 1  # K, models kept at the same time
    kept: AtLeastOne = 1  # R, rounds whose averages teach
    schedule: Literal["random", "blocks"] = "random"  # who trains which model
    remainder: Remainder = "front"
    warmup: Count = 20  # rounds without distillation, for "warm-up"
    by: By | None = None  # how clients weigh; none: as the trainer has it
    samples: AtLeastOne = 10  # models drawn in a round, for "bayesian"
    sampler: Sampler = "gaussian"
    leader: Leader = "random"
    val_source: Literal["server", "leader"] = "server"  # what leaders are judged on
    prox_mu: NotNegative = 0.01
    moon_mu: NotNegative = 1.0
    moon_tau: Positive = 0.5
    dyn_alpha: Positive = 0.01
    shared_variates: bool = False

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}
    UNLIKE: ClassVar[bool] = True

    @classmethod
    def suits(cls, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return parts.SUITS.get(options.get("local", "fedavg"), {})

    def __post_init__(self) -> None:
        if reason := parts.refusal(self):
            raise ValueError(reason)
        if self.local == "scaffold":
            check_path(self.training, "local = 'scaffold'")

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        parts.check_net(self.local, spec)
        return {}

    @property
    def trainer(self) -> parts.Averaging:
        return parts.trainer_of(self)

    @property
    def led(self) -> bool:
        return self.ensemble == "sector"

    def init(self, fed: Federation, model: Located) -> parts.FrameState:
        if len(fed.tree.archs) > 1 and (self.led or self.schedule == "blocks"):
            raise ConfigError("model.also: neither leaders nor schedule = 'blocks' can work with unequal architectures")
        own = [(arch, k) for arch in fed.tree.archs for k in range(self.cohorts)]
        drawn = {i: fed.run(initial, at=SERVER, arch=arch, number=k) for i, (arch, k) in enumerate(own) if i}
        models = {0: model} | drawn
        hold = self.led and self.val_source == "server"
        val = fed.down(fed.down(fed.run(validation, at=SERVER))) if hold else nothing(CLIENTS)
        return parts.FrameState(
            models, fed.tree.archs, self.server.mix, memory=self.trainer.begin(fed, models), val=val
        )

    def round(self, fed: Federation, state: parts.FrameState) -> parts.FrameState:
        if self.led:
            fed = fed.seat(choose(self.leader, fed))
        cohorts = parts.cohorts_of(self, fed)
        start = spread_by(fed, state.models, cohorts, self.led)
        turn = parts.Turn(fed, state.models, cohorts, state.memory, self.led, start)
        local, work = self.trainer.train(turn)
        teams = {0: fed.up(local)} if self.led else bring_by(fed, local, cohorts)  # led: they stay inside their sector
        sent = {0: fed.up(fed.run(average, at=SECTORS, models=teams[0]))} if self.led else teams
        means = {k: fed.run(average, at=SERVER, models=team) for k, team in sent.items()}
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
            drawn = parts.sampled(turn, teams, averages, self.samples, self.sampler) if bayesian else {}
            teachers = over(ring) if averaged else together(drawn | teams)
        if self.server.weights == "labels" and self.ensemble != "none":
            counts = parts.counted(turn, counts, self.kept, by_client=not averaged)
        told = (over(counts) if averaged else together(counts[0])) if counts else None
        for k in parts.students_of(self, fed.round, len(models)):
            taught = fed.run(distill, at=SERVER, start=models[k], teachers=teachers, spec=self.server, counts=told)
            models[k] = fed.update(models[k], taught)
        return replace(state, models=models, ring=ring, counts=counts, teachers=teachers)
