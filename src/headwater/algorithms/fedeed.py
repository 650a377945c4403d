"""FedEED."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, voting
from headwater.algorithms.cohorts import (
    Several,
    bring_by,
    bundled,
    bundled_rounds,
    counted,
    deal_out,
    differing,
    drawn_models,
    gather_by,
    renewed,
    sampled,
    spread_by,
    students_of,
)
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, each
from headwater.core.sampling import Cohorts, Remainder
from headwater.specs import DISTILL, LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec
from headwater.tasks.average import Sampler, average
from headwater.tasks.distill import distill
from headwater.tasks.local import Term, local_train
from headwater.tasks.terms import Proximal

Ensemble = Literal["clients", "bayesian", "aggregated", "clients_multi", "aggregated_temporal"]


@dataclass(frozen=True, config=STRICT)
class FedEed(Method):
    """Several models are kept, each trained and averaged by a different random part of the clients. Together they teach
    one of them, the designated model, at the server.

    Anonymous authors: FedEED: Efficient Federated Distillation with Ensemble of Aggregated Models, submitted to ICLR
    2023; then Kwan, Song: FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in Federated
    Learning, 2023. The paper's g_k, g'_k and g*_k are `models`, the averages and the distilled models; C is
    `partition.participation`.

    Cost: through sectors P counts pairs of a sector and a cohort that has a client in it, so P ≤ K·M. The server
    evaluates K·R teachers on each reference sample, however many clients there are.

    Differences from the paper (there is no public code):
    * `server.t2`: the loss is multiplied by T² unless switched off; the paper does not say.
    * `server.clip` is 1 by default, and presets have none, as the paper: at its rate of 0.1 a student that keeps its
      last step (`restore`) ended at chance accuracy with few reference samples.
    * A cohort without clients, or whose clients were all lost, keeps its model. A model that nobody has trained yet
      does not teach. With `server.weights = "labels"` (and `mix = "probs"`) label counts are summed over a cohort.
    * Different architectures: K models each, one designated student each, taught by the averages of all.

    Args:
        local: local training.
        server: distillation at the server, on the reference set.
        cohorts: K, models kept at the same time.
        kept: R, rounds whose averages teach; in the first rounds there are fewer.
        ensemble: who teaches: "aggregated_temporal", the averages of the last `kept` rounds; "aggregated", those of
            this round; "clients", their models, "clients_multi" with several cohorts; "bayesian", these and models
            sampled around them, as in FedBE.
        consolidate: who learns: "designated", one model; "basic", all; "warm-up", all after `warmup` rounds; "none".
        warmup: rounds without distillation, for "warm-up".
        remainder: clients left over by an even split go to the first cohorts, one each ("front"), or all to the
            designated model ("main"); the paper's own example does not add up.
        samples: models drawn per round, for "bayesian".
        sampler: how they are drawn, see `FedBe`.
        through_sectors: sectors average the clients of each cohort first, so that no client's model leaves its sector;
            only where averages teach.
        by_cohort: for each of the K models, how its clients train where that differs from `[local]`: keys of `[local]`,
            and `mu` for FedProx's pull, as in `by_cohort = [{ mu = 0.1 }, { epochs = 2, lr = 0.05 }]`. Empty: all train
            alike. The paper names three trainers: a table without `mu` is FedAvg, one with it FedProx; SCAFFOLD, with
            variates of each model, is `frame` with `local = "scaffold"`, for all models alike, as in its table 5.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedeed", data="digits", clients=4, cohorts=2, rounds=1, local__epochs=1, server__epochs=1)
        >>> sorted(run.history[0]["distill"])
        ['server']
    """

    INFO = MethodInfo(
        name="fedeed",
        family="ensemble",
        summary="several averaged models teach the designated one",
        stages=(
            "train from the cohort's model",
            "averaged models of the last rounds → server",
            "average by cohort, distil the designated model",
        ),
        models="N, N | N, N (through sectors P, P | N, N with P ≤ K·M)",
        moves={
            "a round": "server → client model; client → server model",
            "a round through sectors": (
                "server → sector model; sector → client model; client → sector model; sector → server model"
            ),
            "a round by label counts": "also client → server array",
        },
        sees={
            "server": "every client's model, and which of the K models it trained",
            "host": "the same of its clients",
            "client": "one of the K models",
        },
        needs=("reference data",),
        defaults={
            "server": {
                "temperature": 4.0,
                "t2": True,
                "mix": "logits",
                "weights": "uniform",
                "optimizer": "sgd",
                "lr": 0.1,
                "clip": 1.0,
                "patience": None,
                "restore": "last",
            }
        },
        mixed_architectures=True,
    )

    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    cohorts: AtLeastOne = 4
    kept: AtLeastOne = 1
    ensemble: Ensemble = "aggregated_temporal"
    consolidate: Literal["none", "basic", "warm-up", "designated"] = "designated"
    warmup: Count = 20
    remainder: Remainder = "front"
    samples: AtLeastOne = 10
    sampler: Sampler = "gaussian"
    through_sectors: bool = False
    by_cohort: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.by_cohort and len(self.by_cohort) != self.cohorts:
            raise ValueError(
                f"by_cohort has {len(self.by_cohort)} tables for {self.cohorts} cohorts; give one for each, an empty "
                "one for a cohort that trains as [local] says"
            )
        for k in range(len(self.by_cohort)):
            self.trainer(k)
        averaged = self.ensemble.startswith("aggregated")
        if self.ensemble in ("clients", "bayesian") and self.cohorts > 1:
            raise ValueError(f"ensemble = {self.ensemble!r} goes with one cohort, got {self.cohorts}; set cohorts = 1")
        if self.ensemble in ("aggregated", "clients_multi") and self.cohorts == 1:
            raise ValueError(f"ensemble = {self.ensemble!r} needs several cohorts; set cohorts to 2 or more")
        if self.kept > 1 and self.ensemble != "aggregated_temporal":
            raise ValueError(f"kept = {self.kept} needs ensemble = 'aggregated_temporal', got {self.ensemble!r}")
        if not averaged and (self.through_sectors or self.server.weights == "labels"):
            raise ValueError("through_sectors and server.weights = 'labels' need averages as teachers, not clients")

    def trainer(self, k: int) -> tuple[LocalSpec, tuple[Term, ...]]:
        """How the clients of a model train: their spec and the terms of their loss."""
        if not self.by_cohort:
            return self.local, ()
        own = dict(self.by_cohort[k % self.cohorts])
        mu = own.pop("mu", 0.0)
        spec = differing(self.local, own, f"by_cohort {k}")
        if isinstance(mu, bool) or not isinstance(mu, int | float) or mu < 0:
            raise ValueError(f"by_cohort {k}: mu must be a number of at least 0, got {mu!r}")
        return spec, (Proximal(float(mu)),) if mu else ()

    def in_round(self, number: int, rounds: int) -> Self:
        rates = [self.trainer(k)[0].in_round(number, rounds).lr for k in range(len(self.by_cohort))]
        own = tuple(table | {"lr": lr} for table, lr in zip(self.by_cohort, rates, strict=True))
        return replace(super().in_round(number, rounds), by_cohort=own) if own else super().in_round(number, rounds)

    def distils(self, stage: str) -> bool:
        return self.consolidate != "none"

    def training(self, cohorts: Cohorts) -> dict[str, Any]:
        """Inputs of local training: the same for all clients, or by the cohort of each."""
        if not self.by_cohort:
            return {"spec": self.local}
        mine = {client: self.trainer(k) for k, members in cohorts.items() for client in members}
        return {
            "spec": each({client: spec for client, (spec, _) in mine.items()}),
            "terms": each({client: terms for client, (_, terms) in mine.items()}),
        }

    def init(self, fed: Federation, model: Located) -> Several:
        models = drawn_models(fed, model, self.cohorts)
        return Several(models, fed.tree.archs, self.server.mix, weights=voting(self.server))

    def round(self, fed: Federation, state: Several) -> Several:
        cohorts, through = deal_out(fed, self.cohorts, self.remainder), self.through_sectors
        start = spread_by(fed, state.models, cohorts, through)
        local = fed.run(local_train, at=CLIENTS, start=start, **self.training(cohorts))
        teams = {} if through else bring_by(fed, local, cohorts)
        means = {k: fed.run(average, at=SERVER, models=team) for k, team in teams.items()}
        means = gather_by(fed, local, cohorts, through) if through else means
        models = renewed(fed, state.models, means)
        averages = renewed(fed, state.ring[0] if state.ring else {}, means)
        ring, counts = (averages, *state.ring)[: self.kept], state.counts
        if self.server.weights == "labels":
            counts = counted(fed, counts, cohorts, self.kept, through)
        bayesian = self.ensemble == "bayesian"
        drawn = sampled(fed, state.models, teams, averages, self.samples, self.sampler) if bayesian else {}
        teachers = bundled_rounds(ring) if self.ensemble.startswith("aggregated") else bundled(drawn | teams)
        for k in students_of(self, fed.round, len(models)):  # all other models may go on meanwhile
            weighing = {"counts": bundled_rounds(counts)} if counts else {}
            student = fed.run(distill, at=SERVER, start=models[k], teachers=teachers, spec=self.server, **weighing)
            models[k] = fed.update(models[k], student)
        return replace(state, models=models, ring=ring, counts=counts, teachers=teachers)
