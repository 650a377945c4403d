"""The ensemble of all clients teaches the server's model on unlabelled data.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model | clients → server | average, then distil at the server |

| paper | here |
|---|---|
| AVGLOGITS | server.mix = "logits", server.weights = "uniform" |
| N steps, η, T | server.steps, server.lr, server.temperature |
| prototypes | model.name and model.also |
| drop-worst | drop_worst |

Cost a round, in models (N active clients; up, down): long link N, N; inside sectors N, N. With `server.weights =
"labels"` each client's label counts (one number a class) go to the server.
Moves a round: server → client model; client → server model.
Moves a round by label counts: also client → server array.

Differences from the paper and from its authors' code:
* The student starts at the mean by samples, as the listing says; the code weighs clients alike (`by="uniform"`).
* `drop_worst` leaves out members below 1.2 × chance on the server's validation set before averaging and distilling;
  the code's further rule against outliers among teachers is `outlier_rule` (off: the paper does not have it).
* `[server] restore`: the code takes the best checkpoint ("best"); the library's own default lets the start compete.
* `init_from="previous"` starts the student at the last fused model, the paper's ablation.
* Distilling with `mix="probs", weights="samples"` is the FedDF of FedHEAD's tables. Weights by label counts, by
  confidence or learnt on the validation set are additions.
* Unequal architectures: each has a student of its own, which starts at the mean of its own clients and is taught by
  all. If none of an architecture's clients is there, its student starts at its last fused model; with `skip_inactive`
  it is not taught when none takes part, as the code has it. `server.steps = 0` averages within architectures.
* `swag` adds so many teachers, drawn around the round's client models, which stand in for the iterates that SWAG fits
  its Gaussian to: clients send one model here, not their path.
* `mu` is FedProx's pull at the clients, the paper's ablation. With `server.steps = 0` what is left is FedAvg, or
  FedProx, behind `drop_worst`, as table 3 has them.
* `before_fusion` adds to each row what the average and the teachers together get right on the test set
  (`average_accuracy`, `ensemble_accuracy`), for the paper's figures of a round before and after fusion.
* `[local] low_bit`: one-bit weights by error feedback, as the code has them, or straight through. The student has
  full precision. The ledger counts what is really sent, which is not packed.

>>> import headwater as hw
>>> run = hw.run("feddf", data="digits", clients=4, rounds=1, local__epochs=1, server__epochs=1)
>>> run.ledger.round_trips("server_sector")
4
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, Team, voting
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.specs import DISTILL, LOCAL, STRICT, Count, DistillSpec, LocalSpec, NotNegative
from headwater.tasks.average import initial
from headwater.tasks.distill import average_like, distill, drop_outliers
from headwater.tasks.distill import drop_worst as without_worst
from headwater.tasks.local import label_counts, local_train
from headwater.tasks.model_sampling import with_swag
from headwater.tasks.terms.proximal import Proximal


@plain_dataclass(frozen=True)
class DfState(State):
    others: dict[str, Located] = field(default_factory=dict)  # at the server: the other architectures' models, by name
    starts: dict[str, Located] = field(default_factory=dict)  # what students started from, where that is tested too
    team: Team | None = None  # the last teachers, where these are tested too

    @property
    def also(self) -> dict[str, Located]:
        return self.others | self.starts


@dataclass(frozen=True, config=STRICT)
class FedDf:
    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    by: By = "samples"  # how clients weigh in a student's start
    init_from: Literal["average", "previous"] = "average"  # where a student starts
    drop_worst: bool = True
    outlier_rule: bool = False
    skip_inactive: bool = False  # leave a model as it is in rounds without clients of its architecture
    swag: Count = 0  # further teachers, drawn around the clients' models
    mu: NotNegative = 0.0  # pull of clients towards the model that they received
    before_fusion: bool = False  # test the average that a student starts from and its teachers together as well

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "server": {"mix": "logits", "weights": "uniform", "schedule": "cosine", "clip": 5.0, "metric": "accuracy"}
    }
    UNLIKE: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.swag and self.server.weights == "labels":
            raise ValueError(
                f"swag = {self.swag} adds teachers that are nobody's and so have no label counts; use another "
                "server.weights than 'labels', or swag = 0"
            )
        if self.before_fusion and self.init_from != "average":
            raise ValueError(
                f"before_fusion tests the average that students start from, but init_from = {self.init_from!r}; use "
                "init_from = 'average' with it"
            )

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """A sentence if the filter could not be used."""
        found = sum(bool(row.get("distill", {}).get("server", {}).get("nobody_passed")) for row in history)
        told = f"in {found} of {len(history)} rounds no client beat 1.2 × chance in validation, so all were kept"
        return (told,) if found else ()

    def init(self, fed: Federation, model: Located) -> DfState:
        return DfState(model, {arch: fed.run(initial, at=SERVER, arch=arch) for arch in fed.tree.archs[1:]})

    def round(self, fed: Federation, state: DfState) -> DfState:
        models = dict(zip(fed.tree.archs, (state.model, *state.others.values()), strict=True))
        start = fed.down({client: models[fed.tree.arch(client)] for client in fed.clients})
        pull = (Proximal(self.mu),) if self.mu else ()
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=pull)
        team = fed.up(local, to=SERVER)  # every client's model crosses the long link
        counts = fed.up(fed.run(label_counts, at=CLIENTS), to=SERVER) if self.server.weights == "labels" else None
        if self.drop_worst:
            team = fed.run(without_worst, at=SERVER, models=team)
        teachers = fed.run(drop_outliers, at=SERVER, models=team) if self.outlier_rule else team
        teachers = fed.run(with_swag, at=SERVER, models=teachers, count=self.swag) if self.swag else teachers
        active = {fed.tree.arch(client) for client in fed.clients}
        fused = dict(models)
        starts: dict[str, Located] = {}
        for arch in reversed(fed.tree.archs):  # the run's own last: what is noted of the server is of its student
            if self.skip_inactive and arch not in active:
                continue
            student = models[arch]
            if self.init_from == "average":
                student = starts[arch] = fed.run(average_like, at=SERVER, models=team, like=student, by=self.by)
            fused[arch] = fed.run(distill, at=SERVER, start=student, teachers=teachers, spec=self.server, counts=counts)
        main = fused.pop(fed.tree.archs[0])
        if not self.before_fusion:
            return DfState(main, fused)
        named = {("average" if arch == fed.tree.archs[0] else f"{arch}_average"): x for arch, x in starts.items()}
        return DfState(main, fused, named, Team(teachers, self.server.mix, voting(self.server)))
