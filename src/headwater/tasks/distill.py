"""Stage 3: a student learns from an ensemble, on inputs without labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import DistillSpec
from headwater.tasks.augment import augmented
from headwater.tasks.cost import ITSELF, Ask, Cost, passes_through, training_cost
from headwater.tasks.ensemble import Fold, Target, ensemble, learn
from headwater.tasks.flat_module import FlatModule, share
from headwater.tasks.optimizers import EarlyStop, Stepper, batches, steps_per_epoch, total_steps
from headwater.tasks.task import TaskContext, task
from headwater.tasks.teacher_outputs import (
    Outputs,
    Panel,
    answer,
    held_out,
    input_count,
    scores_of,
    validation_count,
)

TEACHER = "teacher:"  # before the name of a teacher in notes
FEW = 32  # up to so many teachers are noted one by one


def _teaches(inputs: Mapping[str, Any]) -> bool:
    """Whether teachers are asked once about every row."""
    spec: DistillSpec = inputs["spec"]
    return bool(spec.steps or spec.epochs) and spec.augment == "none"


def distill_cost(
    ctx: TaskContext,
    start: Params,
    teachers: Mapping[str, Params],
    spec: DistillSpec,
    val: Examples | None = None,
    hold: float = 0.0,
    answers: Any = None,
    **_: Any,
) -> Cost:
    """Cost of `distill` and of tasks that distil as it does: steps of the student, and passes of all models."""
    rows, validated = input_count(ctx), validation_count(ctx, val, hold)
    if hold and ctx.samples:
        validated = held_out(rows, hold)
        rows -= validated if rows > 1 else 0
    cost = training_cost(start, rows, spec)
    checks = math.ceil(cost.steps / _interval(rows, spec)) if spec.judged and cost.steps else 0
    asked = (cost.samples if spec.augment != "none" else rows if cost.steps else 0) + validated
    passes = {start.layout.arch: validated * (2 + checks)}  # before, after, and to stop early
    for arch, count in passes_through(teachers.values(), asked).items() if answers is None else ():
        passes[arch] = passes.get(arch, 0) + count
    return replace(
        cost,
        passes=passes,
        teachers=len(teachers),
        asked=len(teachers) * asked,
        stops=(spec.patience is not None or spec.when != "always") and validated > 0,
    )


def _interval(rows: int, spec: DistillSpec) -> int:
    """Steps from one validation to the next."""
    unit = 1 if spec.steps is not None else steps_per_epoch(rows, spec)
    return (spec.eval_every or (100 if spec.steps is not None else 1)) * unit


@task(
    "distill",
    asks={"answers": Ask("teachers", answer, "inputs", when=_teaches)},
    cost=distill_cost,
    returns="start",
)
def distill(
    ctx: TaskContext,
    start: Params,
    teachers: Mapping[str, Params],
    spec: DistillSpec,
    val: Examples | None = None,
    counts: Mapping[str, Tensor] | None = None,
    hold: float = 0.0,
    answers: Outputs | None = None,
) -> Params:
    """Teach a student the mean of its teachers' outputs on the home's inputs (the reference set at the server).

    Teachers compute their outputs once, and every epoch uses them, unless `spec.augment` changes the inputs of every
    step. True labels are used for validation only and, if
    `spec.labelled` is above 0, in the loss on the reference set.

    Args:
        ctx: where it runs.
        start: the student as it begins.
        teachers: name → model, of any architectures.
        spec: the stage: how long, what is averaged over teachers and how they count, early stopping.
        val: rows with labels to validate with; None at the server means its own validation set.
        counts: teacher → samples by class, for `weights = "labels"`. Teachers without counts are left out.
        hold: share of the home's own rows that is held out for validation and not distilled on.
        answers: outputs of teachers that were computed beforehand.

    Returns:
        The student. Its weight is the sum of its teachers' weights.

    Raises:
        ConfigError: the stage needs a validation set or labels that are missing.
        LookupError: the home holds no data, or early stopping has no validation set.
    """
    weight = sum(teacher.weight for teacher in teachers.values())
    if counts is not None:  # a teacher whose counts were lost cannot be weighed by them
        teachers = {name: teacher for name, teacher in teachers.items() if name in counts}
    ctx.note(teachers=len(teachers))
    panel = Panel.of(ctx, teachers, answers, val, hold)
    x, val = panel.x, panel.val
    teacher, knows = _teacher(panel, spec, counts)
    student = ctx.flat_module(start)
    before = scores_of(student, val) if val is not None else None
    if teacher is not None and _rejected(spec, knows, before):
        ctx.note(distill_steps=0, accepted=False)
    elif teacher is not None:
        with ctx.waited_for():
            taught = _descend(ctx, student, x, teacher, spec, val, before)
        student = ctx.flat_module(taught)
        if spec.when != "always" and spec.restore != "best_or_init":
            ctx.note(accepted=True)
    if val is not None and before is not None:
        ctx.note(student_before=before["accuracy"], student_after=scores_of(student, val)["accuracy"])
    return student.params(weight)


Teacher = Callable[
    [Tensor, Tensor], tuple[Target, Tensor]
]  # numbers of a batch, inputs → targets, its numbers in these


def _rejected(spec: DistillSpec, knows: float | None, before: Mapping[str, float] | None) -> bool:
    """Whether the ensemble, with its accuracy on the validation set, is not good enough to teach."""
    if spec.when == "always":
        return False
    if knows is None or before is None:
        raise LookupError("when = 'better-teacher' needs a validation set; set data.validation above 0")
    return knows <= before["accuracy"]


def _teacher(
    panel: Panel, spec: DistillSpec, counts: Mapping[str, Tensor] | None
) -> tuple[Teacher | None, float | None]:
    """Soft targets, None where no step is to be taken, and the accuracy on validation data, which is also noted."""
    steps, rows, note = total_steps(len(panel.x), spec) > 0, panel.val, panel.ctx.note
    needed = steps and spec.augment == "none"
    options: dict[str, Any] = {"mix": spec.mix, "temperature": spec.temperature}
    shares, outputs = None, {}
    if spec.weights == "learned":
        if rows is None:
            raise ConfigError("weights = 'learned' needs a validation set to learn from; set data.validation above 0")
        outputs = {name: output["val"] for name, _, output in panel.each(inputs=False, val=True)}
        shares = learn(outputs, rows.y, **options)
        entropy = -sum(share * math.log(share) for share in shares.values() if share > 0)
        note(largest_share=max(shares.values()), share_entropy=entropy)
    options |= {"weights": spec.weights, "counts": counts, "shares": shares, "sharpen": spec.sharpen}
    options["robust"] = panel.ctx.robust
    of_inputs, of_rows, alone, knows = Fold(**options), Fold(**options), {}, None
    for name, samples, output in panel.each(inputs=needed, val=rows is not None and not outputs):
        if needed:
            of_inputs.add(name, samples, output["inputs"])
        if rows is not None:
            answers = outputs[name] if outputs else output["val"]
            of_rows.add(name, samples, answers)
            alone[str(name)] = share(answers.argmax(1) == rows.y)
        del output  # before the next teacher computes its own
    if rows is not None:
        knows = of_rows.target().accuracy(rows.y)
        note(teacher_accuracy=knows, **_teacher_notes(alone))
    if needed:
        table = of_inputs.target()
        return lambda batch, x: (table, batch), knows

    def asked(batch: Tensor, x: Tensor) -> tuple[Target, Tensor]:  # the student is in the first slot
        return ensemble(panel.ctx, panel.teachers, x, slot=1, **options), torch.arange(len(batch), device=batch.device)

    return (asked if steps else None), knows


def _teacher_notes(alone: Mapping[str, float]) -> dict[str, float]:
    """What is noted of teachers, each alone: the worst, the mean, the best, and every one where they are few."""
    if not alone:
        return {}
    values = list(alone.values())
    found = {"teacher_worst": min(values), "teacher_mean": sum(values) / len(values), "teacher_best": max(values)}
    return found | ({f"{TEACHER}{name}": value for name, value in alone.items()} if len(alone) <= FEW else {})


def _descend(
    ctx: TaskContext,
    student: FlatModule,
    x: Tensor,
    teacher: Teacher,
    spec: DistillSpec,
    val: Examples | None,
    before: dict[str, float] | None,
) -> Params:
    total, epoch = total_steps(len(x), spec), steps_per_epoch(len(x), spec)
    unit = 1 if spec.steps is not None else epoch  # steps in one tick of patience and eval_every
    every = _interval(len(x), spec)
    scale = spec.temperature**2 if spec.t2 else 1.0
    stop: EarlyStop[Params] = EarlyStop(spec.metric, spec.patience, spec.min_delta, spec.restore)
    judged = spec.judged and val is not None and before is not None
    if spec.judged and not judged:
        raise LookupError("early stopping and restoring the best need a validation set; set data.validation above 0")
    labels = ctx.labels
    if spec.labelled and labels is None:
        raise ConfigError(
            f"labelled = {spec.labelled:g} needs a reference set with labels, and there are none at {ctx.home}; set "
            "labelled = 0, or data.reference = 'holdout' for distilling at the server"
        )
    if judged and before is not None:
        stop.begin(before[spec.metric], lambda: student.params(0.0))
    stepper, trail = Stepper(student, spec, total), Trail(spec)
    # Once, not batch by batch. What is changed at random goes through the whole network.
    x, logits = student.shortened(x) if spec.augment == "none" else (student.laid_out(x), student)
    for batch in batches(len(x), spec, ctx.rng, ctx.device):
        inputs = augmented(x[batch], spec.augment, ctx.augment_rng)
        target, at = teacher(batch, inputs)
        student.train(len(batch))
        output = logits(inputs)
        loss = scale * target.loss(at, output, spec.temperature)
        if spec.labelled and labels is not None:
            loss = loss + spec.labelled * student.loss(output, labels[batch])
        stepper.step(loss)
        trail.add(stepper.taken, student)
        if judged and (stepper.taken % every == 0 or stepper.taken == total):
            assert val is not None
            value = scores_of(student, val)[spec.metric]
            if stop.update(math.ceil(stepper.taken / unit), value, lambda: student.params(0.0)):
                break
    ctx.note(distill_steps=stepper.taken)
    if judged and spec.restore == "best_or_init":
        ctx.note(accepted=stop.best_index != 0)  # else the start was better than anything that was learnt
    ctx.note(**({"swa_snapshots": trail.taken} if trail.taken else {}))
    return stop.chosen(lambda: trail.mean(student))


class Trail:
    """Stochastic weight averaging: the mean of the student's weights every `swa_every` steps from `swa_from` on.

    Only what is trained is averaged. Batch-norm statistics are those of the last step, and so is everything where
    training ended before the first snapshot.
    """

    def __init__(self, spec: DistillSpec) -> None:
        self.spec, self.taken = spec, 0
        self._mean: Tensor | None = None

    def add(self, step: int, student: FlatModule) -> None:
        since = None if self.spec.swa_from is None else step - self.spec.swa_from
        if since is None or since < 0 or since % self.spec.swa_every:
            return
        now = student.flat.detach()
        self.taken += 1
        self._mean = now.clone() if self._mean is None else self._mean.lerp_(now, 1 / self.taken)

    def mean(self, student: FlatModule) -> Params:
        model = student.params(0.0)
        if self._mean is not None:
            model.trainable.copy_(self._mean)
        return model


@task("evaluate", returns=ITSELF)
def validation(ctx: TaskContext) -> Examples:
    """The server's validation set, as a value that can be moved."""
    return ctx.validation
