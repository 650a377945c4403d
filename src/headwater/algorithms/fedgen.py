"""FedGen."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from functools import partial
from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic.dataclasses import dataclass
from torch import nn

from headwater.algorithms.base import Method, MethodInfo, State, kept
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
class FedGen(Method):
    """The server learns a generator of features from its clients' classifiers. Clients use generated features to
    regularise their training.

    Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021. The weight w of a
    client's prediction follows from its label counts.

    Cost: each client's label counts (one number per class) go up; from the second round on the generator comes down.

    Differences from the paper and from its authors' code:
    * Counts are of the samples that a client holds; the code counts those it has trained on so far. Both begin at 1.
    * The generator is asked for a class if a participant holds it, and brings the list of these classes to the clients.
    * The generator's loss weighs each prediction by its own class; shapes in the code broadcast, which weighs by the
      mean.
    * The generator gets a new Adam in every round.

    Args:
        local: local training.
        gen_alpha: α, weight of the classifier's loss on generated features. The code has 10 (EMNIST too), under which
            small networks lose all accuracy within a few rounds here.
        gen_beta: β, weight of the pull of predictions towards those on generated features. The code has 10 (EMNIST: 1).
        decay: factor of `gen_alpha`, `gen_beta` and `gen_lr` per round.
        floor: lowest value of `gen_alpha` and `gen_beta`, unless they are 0.
        regularized: first local epochs of a round that use generated features, the early stop of the code.
        alpha_s: weight of the clients' predictions in the generator's loss.
        eta_s: weight of the diversity of what is generated.
        beta_s: weight of the disagreement with the last global model, the paper's adversarial student; off in the code.
            The divergence is summed over classes here.
        gen_epochs: T, batches per round that the generator learns from.
        gen_batch: B of the generator, samples in each of them and in each step of a client.
        gen_lr: learning rate of the generator, as in the code for MNIST (EMNIST: 1e-4).
        gen_weight_decay: weight decay of the generator.
        gen_hidden: width of the generator's hidden layer.
        noise_dim: dimension of its noise ε.
        by: weight of a client in the mean: its number of samples, or "uniform".
        keep_local: test clients' models as they were trained, before averaging, on the clients' own test rows.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedgen", data="digits", clients=4, rounds=2, local__epochs=1, gen_epochs=2)
        >>> run.ledger.round_trips("server_sector")
        8
    """

    INFO = MethodInfo(
        name="fedgen",
        family="averaging",
        summary="a generator learnt from clients regularises them",
        stages=(
            "train from the global model, with generated features",
            "clients → generator at the server",
            "average at the server",
        ),
        models="N, N | N, N (label counts up; from round 2 the generator down)",
        moves={"a round": "server → client model; client → server model; client → server array"},
        sees={
            "server": "every client's model and label counts",
            "host": "the same of its clients",
            "client": "the global model and the generator",
        },
        needs=("label counts",),
        features=True,
        strengths=("gen_alpha",),
        training_cost=1.3,
    )

    local: LocalSpec = LOCAL
    gen_alpha: NotNegative = 1.0
    gen_beta: NotNegative = 0.1
    decay: Annotated[float, Gt(0), Le(1)] = 0.98
    floor: NotNegative = 1e-4
    regularized: Count = 20
    alpha_s: NotNegative = 1.0
    eta_s: NotNegative = 1.0
    beta_s: NotNegative = 0.0
    gen_epochs: Count = 50
    gen_batch: Annotated[int, Ge(2)] = 32
    gen_lr: Positive = 3e-4
    gen_weight_decay: NotNegative = 1e-2
    gen_hidden: AtLeastOne = 512
    noise_dim: AtLeastOne = 64
    by: By = "samples"
    keep_local: bool = False

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
