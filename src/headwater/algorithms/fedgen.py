"""FedGen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from functools import partial
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge, Gt, Le
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from headwater.algorithms.base import Method, MethodInfo, State, kept
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By, Params
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.generator import Generator
from headwater.models.parts import classifier_of
from headwater.specs import LOCAL, STRICT, AtLeastOne, Count, DistillSpec, LocalSpec, NotNegative, Positive
from headwater.tasks.average import average, initial
from headwater.tasks.cost import Cost
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import Batch, label_counts, local_train
from headwater.tasks.optimizers import Stepper
from headwater.tasks.task import TaskContext, task

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
        counts = fed.up(fed.run(label_counts, at=CLIENTS), to=SERVER)
        known = {"teachers": team, "counts": counts, "student": state.model}
        spec = DistillSpec(
            steps=self.gen_epochs, batch=self.gen_batch, lr=self.gen_lr * age, weight_decay=self.gen_weight_decay
        )
        lesson = Lesson(self.alpha_s, self.eta_s, self.beta_s, spec)
        generator = fed.run(teach_generator, at=SERVER, generator=state.generator, lesson=lesson, **known)
        mine = kept(fed, self.keep_local, state, local)
        return GenState(fed.run(average, at=SERVER, models=team), generator, mine)


@plain_dataclass(frozen=True)
class Generated:
    """share · alpha · NLL of the classifier on drawn features of drawn classes, and
    beta · KL(classifier on drawn features of the batch's own classes ‖ prediction on the batch).

    The generator is frozen and in evaluation mode; the target of the second part has no gradient. Nothing is added
    after the first `epochs` of a round, nor where there is no generator yet.
    """

    alpha: float
    beta: float
    generator: Params | None
    batch: int  # drawn features a step
    share: float  # their number over that of the batch
    epochs: int

    def __call__(self, step: Batch) -> Tensor:
        loss = step.loss.new_zeros(())
        if self.generator is None or step.epoch >= self.epochs or not (self.alpha or self.beta):
            return loss
        source = cast(Generator, step.ctx.flat_module(self.generator).module.eval())
        with torch.no_grad():
            wanted = source.wanted(self.batch)
            drawn, own = source.draw(wanted)[1], source.draw(step.y)[1]
        if self.alpha:
            loss = loss + self.share * self.alpha * F.cross_entropy(step.net.classify(drawn), wanted)
        if self.beta:
            target = torch.softmax(step.net.classify(own).detach(), dim=1)
            loss = loss + self.beta * F.kl_div(torch.log_softmax(step.output, 1), target, reduction="batchmean")
        return loss


@plain_dataclass(frozen=True)
class Lesson:
    """How the generator is trained.

    Args:
        alpha: weight of the teachers' loss.
        eta: weight of the diversity loss.
        beta: weight of the divergence from the student.
        spec: the stage.
    """

    alpha: float
    eta: float
    beta: float
    spec: DistillSpec


def _generator_cost(
    ctx: TaskContext, generator: Params, teachers: Mapping[str, Params], lesson: Lesson, **_: Any
) -> Cost:
    steps, count = lesson.spec.steps or 0, len(teachers)
    drawn = steps * lesson.spec.batch
    return Cost(generator.layout.arch, steps, drawn, teachers=count, asked=count * drawn)


@task("distill", cost=_generator_cost, returns="generator")
def teach_generator(
    ctx: TaskContext,
    generator: Params,
    teachers: Mapping[str, Params],
    counts: Mapping[str, Tensor],
    student: Params,
    lesson: Lesson,
) -> Params:
    """Train the generator to draw features that the clients' classifiers assign to the wanted class.

    A client's loss on a class is weighted with its share of that class's samples among the clients, where every count
    begins at 1. Only classes that a client holds are wanted.

    Args:
        ctx: where it runs.
        generator: the generator so far.
        teachers: client → its model.
        counts: client → its samples by class. Teachers without counts are left out.
        student: the global model that was sent last.
        lesson: weights of the losses, and how long.
    """
    teachers = {name: model for name, model in teachers.items() if name in counts}
    if not teachers:
        return generator
    table = torch.stack([counts[name] for name in teachers])
    weights = (1 + table) / (1 + table).sum(0)  # by client and class
    flat = ctx.flat_module(generator)
    source = cast(Generator, flat.module)
    source.held.copy_(table.sum(0) > 0)
    stepper = Stepper(flat, lesson.spec, lesson.spec.steps or 0)
    net = ctx.flat_module(student)
    judges, pupil = [net.head(model) for model in teachers.values()], net.head(student)
    for _ in range(stepper.total):
        y = source.wanted(lesson.spec.batch)
        flat.train(len(y))
        noise, drawn = source.draw(y)
        stepper.step(generator_loss(net, judges, weights[:, y].to(drawn), pupil, noise, drawn, y, lesson))
    return flat.params(generator.weight)


def generator_loss(
    net: FlatModule,
    judges: list[dict[str, Tensor]],
    weights: Tensor,
    student: dict[str, Tensor],
    noise: Tensor,
    drawn: Tensor,
    y: Tensor,
    lesson: Lesson,
) -> Tensor:
    """alpha · Σ_i mean(w_i,y · NLL_i) + eta · sameness − beta · KL(mean teacher ‖ student), on one batch of draws."""
    logits = torch.stack([classified(net, head, drawn) for head in judges])
    verdicts = torch.stack([F.cross_entropy(each, y, reduction="none") for each in logits])
    loss = lesson.alpha * (weights * verdicts).sum(0).mean() + lesson.eta * sameness(noise, drawn)
    if lesson.beta:
        teacher = torch.softmax((weights.unsqueeze(2) * logits).sum(0), dim=1)
        guess = torch.log_softmax(classified(net, student, drawn), dim=1)
        loss = loss - lesson.beta * F.kl_div(guess, teacher, reduction="batchmean")
    return loss


def sameness(noise: Tensor, drawn: Tensor) -> Tensor:
    """exp(−mean over pairs of noise distance × output distance): 1 when all draws are alike.

    Distances are means over coordinates, of squares for the noise and of absolute values for the output.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(2)
    return torch.exp(-(apart * (drawn.unsqueeze(0) - drawn.unsqueeze(1)).abs().mean(2)).mean())


def classified(net: FlatModule, head: dict[str, Tensor], features: Tensor) -> Tensor:
    """What a model's classifier makes of features."""
    logits: Tensor = functional_call(net.classifier, head, (features,))
    return logits
