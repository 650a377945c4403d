"""FedGen's two parts: the server trains a generator of features, and clients train with features that it draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.models.generator import Generator
from headwater.specs import DistillSpec
from headwater.tasks.cost import Cost
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import Batch
from headwater.tasks.optimizers import Stepper
from headwater.tasks.task import TaskContext, task


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    spec, drawn = lesson.spec, (lesson.spec.steps or 0) * lesson.spec.batch
    asked = len(teachers) * drawn
    return Cost(generator.layout.arch, spec.steps or 0, drawn, teachers=len(teachers), asked=asked)


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
