"""The server learns a generator of features from its clients' classifiers; clients learn from what it draws.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, with generated features | clients → generator at the server | average at the server |

| paper | here | | paper | here |
|---|---|---|---|---|
| G_w(ε, y) | generator | | α_t, β_t | gen_alpha, gen_beta, decayed |
| w of a client's verdict | label counts | | T, B of G | gen_epochs, gen_batch |

Cost a round, in models (N active clients; up, down): long link N, N; inside sectors N, N; besides, each client's
label counts (one number a class) go up, and from the second round on the generator comes down.
Moves a round: server → client model; client → server model; client → server array.

Differences from the paper and from its authors' code:
* Counts are of the samples that a client holds; the code counts those it has trained on so far. Both begin at 1.
* A class is asked of the generator if somebody who takes part holds it; the generator carries the list to the clients.
* The loss of the generator weighs each verdict by its own class; the code's shapes broadcast, which weighs by the mean.
* `beta_s` is the paper's adversarial student, off in the code; its divergence is summed over classes here.
* A fresh Adam every round; its rate decays by `decay` a round, as α and β do, these never below `floor` unless 0.
* `gen_alpha` and `gen_beta` are far below the code's 10 and 10 (EMNIST: 10 and 1), under which small nets sink to a
  guess within a few rounds here. `gen_lr` is the code's for MNIST (EMNIST: 1e-4); `regularized` is its early stop.

>>> import headwater as hw
>>> run = hw.run("fedgen", data="digits", clients=4, rounds=2, local__epochs=1, gen_epochs=2)
>>> run.ledger.round_trips("server_sector")
8
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le
from pydantic.dataclasses import dataclass
from torch import nn

from headwater.algorithms.base import State, kept
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.generator import Generator
from headwater.models.parts import classifier_of
from headwater.specs import LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec, NotNegative, Positive
from headwater.tasks.average import average, initial
from headwater.tasks.feature_generator import Generated, Lesson, teach_generator
from headwater.tasks.local import label_counts, local_train

GENERATOR = "generator"


@plain_dataclass(frozen=True)
class GenState(State):
    generator: Located  # at the server
    personal: Located | None = None


@dataclass(frozen=True, config=STRICT)
class FedGen:
    local: LocalSpec = LOCAL
    gen_alpha: NotNegative = 1.0  # of the classifier's loss on drawn features
    gen_beta: NotNegative = 0.1  # of the pull of predictions towards those on drawn features
    decay: Annotated[float, Gt(0), Le(1)] = 0.98  # of gen_alpha, gen_beta and gen_lr, a round
    floor: NotNegative = 1e-4  # of gen_alpha and gen_beta
    regularized: Count = 20  # first local epochs of a round in which drawn features are used
    alpha_s: NotNegative = 1.0  # of the clients' verdict on what the generator draws
    eta_s: NotNegative = 1.0  # of sameness among its draws
    beta_s: NotNegative = 0.0  # of surprising the last global model
    gen_epochs: Count = 50  # batches that the generator learns from in a round
    gen_batch: Annotated[int, Ge(2)] = 32  # draws in each, and in each step of a client
    gen_lr: Positive = 3e-4
    gen_weight_decay: NotNegative = 1e-2
    gen_hidden: AtLeastOne = 512  # width of the generator
    noise_dim: AtLeastOne = 64
    by: By = "samples"  # how clients weigh in the mean
    keep_local: bool = False  # judge local accuracy by clients' models as trained, before they are averaged

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        head = classifier_of(spec.outline(), spec.head)
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"fedgen draws features for a linear `classifier`, which model {spec.name!r} has not")
        make = partial(Generator, self.noise_dim, spec.classes, self.gen_hidden, head.in_features, head.weight.dtype)
        return {GENERATOR: ModelSpec(GENERATOR, (self.noise_dim,), spec.classes, builder=make)}

    def init(self, fed: Federation, model: Located) -> GenState:
        return GenState(model, fed.run(initial, at=SERVER, arch=GENERATOR))

    def round(self, fed: Federation, state: GenState) -> GenState:
        start, age = fed.down(state.model, to=CLIENTS), self.decay ** (fed.round - 1)
        drawn = fed.down(state.generator, to=CLIENTS) if fed.round > 1 else nothing(CLIENTS)
        alpha, beta = (max(self.floor, x * age) if x else 0.0 for x in (self.gen_alpha, self.gen_beta))
        share = self.gen_batch / self.local.batch
        term = Generated(alpha, beta, maybe(drawn), self.gen_batch, share, self.regularized)  # type: ignore[arg-type]
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(term,), by=self.by)
        team = fed.up(local, to=SERVER)
        lesson = Lesson(
            self.alpha_s,
            self.eta_s,
            self.beta_s,
            DistillSpec(
                steps=self.gen_epochs,
                batch=self.gen_batch,
                lr=self.gen_lr * age,
                weight_decay=self.gen_weight_decay,
            ),
        )
        generator = fed.run(
            teach_generator,
            at=SERVER,
            generator=state.generator,
            teachers=team,
            counts=fed.up(fed.run(label_counts, at=CLIENTS), to=SERVER),
            student=state.model,
            lesson=lesson,
        )
        mine = kept(fed, self.keep_local, state, local)
        return GenState(fed.run(average, at=SERVER, models=team), generator, mine)
