"""Several models are kept, each trained and averaged by another random part of the clients; together they teach one of
them, the designated model, at the server.

Anonymous authors: FedEED: Efficient Federated Distillation with Ensemble of Aggregated Models, submitted to ICLR 2023;
then Kwan, Song: FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in Federated Learning, 2023.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the cohort's model | averaged models of the last rounds → server | average by cohort, distil one of them |

| paper | here |
|---|---|
| K, R | cohorts, kept |
| g_k, g'_k, g*_k | state.models, aggregates, taught |
| C | partition.participation |
| T, steps, η of the server | server.temperature, server.steps, server.lr |

Cost a round, in models (N active clients, P pairs of a sector and a cohort that has a client in it, so P ≤ K·M; up,
down): long link N, N; inside sectors N, N. Through sectors P, P and N, N. The server asks K·R teachers about each
reference sample, however many clients there are.
Moves a round: server → client model; client → server model.
Moves a round through sectors: server → sector model; sector → client model; client → sector model; sector → server
model.
Moves a round by label counts: also client → server array.

Differences from the paper (there is no public code):
* `remainder`: clients left over by an even split go to the first cohorts, one each ("front"), or all to the designated
  model ("main"); the paper's own example does not add up.
* `[server] t2`: the loss is multiplied by T² unless switched off; the paper does not say.
* `ensemble` and `consolidate` are the paper's other trainers: teachers may be the clients' models ("clients", and with
  several cohorts "clients_multi"), these with models sampled around them ("bayesian", as FedBE has them) or this
  round's averages only ("aggregated"); students may be all models ("basic", after `warmup` rounds "warm-up") or "none".
* `through_sectors` averages each cohort inside its sectors, so no client's model leaves its sector; only where averages
  teach.
* A cohort without clients, or whose clients were all lost, keeps its model; what nobody has trained yet does not teach.
  In the first rounds fewer than R rounds are there to teach. With `[server] weights = "labels"` (and mix = "probs")
  label counts are summed over a cohort.
* Unlike architectures: K models each, one designated student each, taught by the averages of all.

>>> import headwater as hw
>>> run = hw.run("fedeed", data="digits", clients=4, cohorts=2, rounds=1, local__epochs=1, server__epochs=1)
>>> sorted(run.history[0]["distill"])
['server']
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import voting
from headwater.algorithms.cohorts import (
    Models,
    Several,
    bring_by,
    deal_out,
    gather_by,
    over,
    renewed,
    spread_by,
    together,
)
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.sampling import Remainder
from headwater.specs import DISTILL, LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec
from headwater.tasks.average import average, initial
from headwater.tasks.distill import distill
from headwater.tasks.local import label_counts, local_train
from headwater.tasks.model_sampling import Sampler, sample_models, tally

Ensemble = Literal["clients", "bayesian", "aggregated", "clients_multi", "aggregated_temporal"]


@dataclass(frozen=True, config=STRICT)
class FedEed:
    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    cohorts: AtLeastOne = 4  # K, models kept at the same time
    kept: AtLeastOne = 1  # R, rounds whose averages teach
    ensemble: Ensemble = "aggregated_temporal"
    consolidate: Literal["none", "basic", "warm-up", "designated"] = "designated"
    warmup: Count = 20  # rounds without distillation, for "warm-up"
    remainder: Remainder = "front"
    samples: AtLeastOne = 10  # models drawn in a round, for "bayesian"
    sampler: Sampler = "gaussian"
    through_sectors: bool = False

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "server": {"temperature": 4.0, "t2": True, "mix": "logits", "weights": "uniform"}
        | {"optimizer": "sgd", "lr": 0.1, "patience": None, "restore": "last"}
    }
    UNLIKE: ClassVar[bool] = True

    def __post_init__(self) -> None:
        averaged = self.ensemble.startswith("aggregated")
        if self.ensemble in ("clients", "bayesian") and self.cohorts > 1:
            raise ValueError(f"ensemble = {self.ensemble!r} goes with one cohort, got {self.cohorts}; set cohorts = 1")
        if self.ensemble in ("aggregated", "clients_multi") and self.cohorts == 1:
            raise ValueError(f"ensemble = {self.ensemble!r} needs several cohorts; set cohorts to 2 or more")
        if self.kept > 1 and self.ensemble != "aggregated_temporal":
            raise ValueError(f"kept = {self.kept} needs ensemble = 'aggregated_temporal', got {self.ensemble!r}")
        if not averaged and (self.through_sectors or self.server.weights == "labels"):
            raise ValueError("through_sectors and server.weights = 'labels' need averages as teachers, not clients")

    def init(self, fed: Federation, model: Located) -> Several:
        own = [(arch, k) for arch in fed.tree.archs for k in range(self.cohorts)]  # K draws each, the first the run's
        drawn = {i: fed.run(initial, at=SERVER, arch=arch, number=k) for i, (arch, k) in enumerate(own) if i}
        return Several({0: model} | drawn, fed.tree.archs, self.server.mix, weights=voting(self.server))

    def round(self, fed: Federation, state: Several) -> Several:
        cohorts, through = deal_out(fed, self.cohorts, self.remainder), self.through_sectors
        start = spread_by(fed, state.models, cohorts, through)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        teams = {} if through else bring_by(fed, local, cohorts)
        means = {k: fed.run(average, at=SERVER, models=team) for k, team in teams.items()}
        means = gather_by(fed, local, cohorts, through) if through else means
        models = renewed(fed, state.models, means)
        averages = renewed(fed, state.ring[0] if state.ring else {}, means)
        ring, counts = (averages, *state.ring)[: self.kept], state.counts
        if self.server.weights == "labels":
            sums = gather_by(fed, fed.run(label_counts, at=CLIENTS), cohorts, through, tally)
            counts = ((counts[0] if counts else {}) | sums, *counts)[: self.kept]
        teachers = over(ring) if self.ensemble.startswith("aggregated") else self._clients(fed, state, averages, teams)
        for k in self._students(fed, len(models)):  # all other models may go on meanwhile
            told = {"counts": over(counts)} if counts else {}
            taught = fed.run(distill, at=SERVER, start=models[k], teachers=teachers, spec=self.server, **told)
            models[k] = fed.update(models[k], taught)
        return replace(state, models=models, ring=ring, counts=counts, teachers=teachers)

    def _students(self, fed: Federation, models: int) -> range:
        if self.consolidate == "none" or (self.consolidate == "warm-up" and fed.round <= self.warmup):
            return range(0)
        return range(0, models, self.cohorts if self.consolidate == "designated" else 1)

    def _clients(self, fed: Federation, state: Several, averages: Models, teams: Models) -> Located:
        members: dict[str, Located] = {}
        for k, team in teams.items() if self.ensemble == "bayesian" else ():
            options = {"count": self.samples, "sampler": self.sampler, "base": state.models[k]}
            drawn = fed.run(sample_models, at=SERVER, models=team, **options)
            members |= {f"average {k}": averages[k]} | {f"sample {k}.{i}": drawn[i] for i in range(self.samples)}
        return together({**members, **{f"team {k}": team for k, team in teams.items()}})
