"""A method composed of three slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms import frame_parts as parts
from headwater.algorithms import frame_rules as rules
from headwater.algorithms.base import Method, MethodInfo
from headwater.algorithms.cohorts import drawn_models
from headwater.algorithms.fedhead import ValSource, hold_out
from headwater.algorithms.frame_teaching import leaders_learn, server_learns
from headwater.algorithms.frame_terms import TermName, hkd_of, names_of, terms_of
from headwater.core.federation import CLIENTS, Federation, Located, nothing
from headwater.core.membership import with_newcomers
from headwater.core.params import By
from headwater.core.sampling import Leader, Remainder, choose
from headwater.models.base import ModelSpec
from headwater.models.parts import need_parts
from headwater.specs import DISTILL, LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec, NotNegative, Positive
from headwater.tasks.average import Sampler


@dataclass(frozen=True, config=STRICT)
class Frame(Method):
    """The three stages of a round as slots: any local trainer, any teachers and any consolidation that go together.

    The generalised framework of FedEED: Efficient Federated Distillation with Ensemble of Aggregated Models (anonymous
    authors, submitted to ICLR 2023), with the sector ensembles of FedHEAD, the corrections of MTGC over the tree and
    the loss terms of MOON and FedHKD added. docs/methods.md shows which choices give which published method.

    `headwater.algorithms.frame_teaching` says how corrections and students live together.

    Cost: SCAFFOLD's variates go with every model to clients and back. MTGC's mean goes to sectors once more where
    somebody is taught. Trainers inside sectors, and knowledge, send what their own methods send.

    Differences from the paper: its framework has neither sectors nor FedDyn and MOON. Each of several models has its
    own variates, duals, earlier models and knowledge.

    Args:
        local: the local trainer: fedavg, fedprox, scaffold, feddyn or moon; inside sectors hfedavg, hfedprox,
            hscaffold, hfeddyn or mtgc.
        ensemble: who teaches: none, sector; clients, bayesian, clients_multi; aggregated, aggregated_temporal;
            sector_means.
        consolidate: who learns: none; basic, warm-up or designated at the server; leaders or leaders+server with
            sectors.
        training: local training, filled from the section `[local]`.
        sector: distillation at the leaders.
        server: distillation at the server, on the reference set.
        terms: added to the local loss of any trainer: "proximal" (FedProx), "contrast" (MOON), "knowledge" (FedHKD).
        sector_rounds: E, averages at sectors per round, for trainers inside sectors.
        corrections: what a taught model means for corrections: "keep" them as training left them; "shift" the student
            (feddyn); "renew" them at the student (scaffold, hscaffold, mtgc).
        step: from the average to the student: 1 is the student, or "validated": the best of 0, ¼, ½, ¾ and 1 on the
            server's validation set.
        cohorts: K, models kept at the same time.
        kept: R, rounds whose averages, sector means or (leaders+server) leaders teach at the server.
        schedule: which clients train which model: "random" in each round, or in "blocks" of K rounds, as in
            Fed-ensemble.
        remainder: where clients go that an even split into cohorts leaves over, see `FedEed`.
        warmup: rounds without distillation, for "warm-up".
        by: weight of a client in means; None: as the trainer has it.
        samples: models drawn per round, for "bayesian".
        sampler: how they are drawn, see `FedBe`.
        leader: who leads a sector, see `FedHead`.
        val_source: what leaders are judged on, see `FedHead`.
        prox_mu: μ of the proximal term.
        moon_mu: μ of the contrast.
        moon_tau: τ of the contrast.
        dyn_alpha: α of the trainers "feddyn" and "hfeddyn".
        hkd_lam: λ of the knowledge, see `FedHkd`.
        hkd_gamma: γ of the knowledge.
        hkd_temperature: T of the knowledge.
        hkd_nu: ν of the knowledge.
        hkd_sigma: σ of the knowledge.
        hkd_zeta: ζ of the knowledge.
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

    local: rules.Local = "fedavg"
    ensemble: rules.Ensemble = "clients"
    consolidate: rules.Consolidate = "designated"
    training: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    server: DistillSpec = DISTILL
    terms: tuple[TermName, ...] = ()
    sector_rounds: AtLeastOne = 1
    corrections: rules.Corrections = "keep"
    step: Annotated[float, Gt(0), Le(1)] | Literal["validated"] = 1.0
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
    hkd_lam: NotNegative = 0.05
    hkd_gamma: NotNegative = 0.05
    hkd_temperature: Positive = 0.5
    hkd_nu: Annotated[float, Ge(0), Le(1)] = 0.25
    hkd_sigma: NotNegative = 7.0
    hkd_zeta: Positive = 3.0
    shared_variates: bool = False
    through_sectors: bool = False

    @classmethod
    def defaults(cls, options: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The defaults of the trainer's own method. Teachers count equally where clients do."""
        return rules.defaults_of(options.get("local", "fedavg"), options.get("terms") or ())

    def __post_init__(self) -> None:
        if reason := rules.refusal(self):
            raise ValueError(reason)
        rules.check_training(self)

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        if self.uses_features():
            need_parts(spec, "local = 'moon'" if self.local == "moon" else f"terms = {list(self.terms)}")
        return {}

    @property
    def trainer(self) -> parts.Averaging:
        return rules.trainer_of(self)

    @property
    def led(self) -> bool:
        return self.ensemble == "sector"

    def distils(self, stage: str) -> bool:
        return self.led if stage == "sector" else self.consolidate not in ("none", "leaders")

    def validates_on_server_data(self, stage: str) -> bool:
        return stage != "sector" or self.val_source == "server"

    def validation_options(self) -> tuple[str, ...]:
        return ("step",) if self.step == "validated" else ()

    def uses_features(self) -> bool:
        return not {"contrast", "knowledge"}.isdisjoint(names_of(self))

    def privacy(self, rounds: int, dimension: int) -> dict[str, Any] | None:
        return hkd_of(self).privacy(rounds, dimension) if "knowledge" in self.terms else None

    def init(self, fed: Federation, model: Located) -> parts.FrameState:
        rules.check_architectures(self, fed)
        models = drawn_models(fed, model, self.cohorts)
        val = hold_out(fed, self.val_source) if self.led else nothing(CLIENTS)
        memory = self.trainer.begin(fed, models)
        for term in terms_of(self):
            memory |= term.begin(fed, models)
        return parts.FrameState(models, fed.tree.archs, self.server.mix, memory=memory, val=val)

    def admit(self, fed: Federation, state: parts.FrameState, first: parts.FrameState) -> parts.FrameState:
        memory = self.trainer.admit(fed, state.memory, state.models)
        return with_newcomers(replace(state, memory=memory), first)

    def round(self, fed: Federation, state: parts.FrameState) -> parts.FrameState:
        rest, fed = fed, fed.seat(choose(self.leader, fed)) if self.led else fed
        inside = self.led or self.ensemble == "sector_means"
        through = inside or self.through_sectors or self.local in rules.TREE
        turn = parts.Turn(fed, rest, state.models, rules.dealt(self, fed), state.memory, through, inside)
        turn = replace(turn, terms=tuple(one for term in terms_of(self) for one in term.terms(turn)))
        work = self.trainer.train(turn)
        memory = dict(work.memory)
        for term in terms_of(self):
            memory |= term.finish(turn, work.local)
        then = replace(state, memory=memory)
        then = (leaders_learn if self.led else server_learns)(self, turn, then, work)
        return replace(then, models=self.trainer.shifted(fed, then.models, work))
