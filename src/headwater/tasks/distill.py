"""Stage 3: a student learns from an ensemble, on inputs without labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import By, Params, average_of
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import DistillSpec
from headwater.tasks.ensemble import Fold, Target, learn
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import EarlyStop, Stepper, batches, steps_per_epoch, total_steps
from headwater.tasks.task import Ask, TaskContext, task
from headwater.tasks.teacher_outputs import Answers, Panel, answer, judge, known, score


def _teaches(given: Mapping[str, Any]) -> bool:
    return bool(given["spec"].steps or given["spec"].epochs)


@task("distill", asks={"answers": Ask("teachers", answer, "inputs", when=_teaches)})
def distill(
    ctx: TaskContext,
    start: Params,
    teachers: Mapping[str, Params],
    spec: DistillSpec,
    val: Examples | None = None,
    counts: Mapping[str, Tensor] | None = None,
    hold: float = 0.0,
    answers: Answers | None = None,
) -> Params:
    """Teach a student, starting at `start`, the mean of its teachers on the home's inputs (the reference set at the
    server).

    Teachers are asked once and their outputs used in every epoch. True labels come in through validation: `val`, the
    server's own hold-out when this runs there, or a share `hold` of the home's rows that is then not distilled on; and,
    if `spec.labelled` is above 0, through the reference set. The result weighs what its teachers weigh together.
    """
    weight = sum(teacher.weight for teacher in teachers.values())
    if counts is not None:  # whose counts were lost on the way cannot be weighed by them
        teachers = {name: teacher for name, teacher in teachers.items() if name in counts}
    ctx.note(teachers=len(teachers))
    panel = Panel.of(ctx, teachers, answers, val, hold)
    x, val = panel.x, panel.val
    target = _taught(panel, spec, counts)
    student = ctx.flat_module(start)
    before = judge(student, val) if val is not None else None
    if target is not None:
        with ctx.waited_for():
            taught = _descend(ctx, student, x, target, spec, val, before)
        student = ctx.flat_module(taught)
    if val is not None and before is not None:
        ctx.note(student_before=before["accuracy"], student_after=judge(student, val)["accuracy"])
    return student.params(weight)


def _taught(panel: Panel, spec: DistillSpec, counts: Mapping[str, Tensor] | None) -> Target | None:
    """What the teachers teach together; none where no step is to be taken. Notes how good they are."""
    needed, rows, note = total_steps(len(panel.x), spec) > 0, panel.val, panel.ctx.note
    options: dict[str, Any] = {"mix": spec.mix, "temperature": spec.temperature}
    shares, said = None, {}
    if spec.weights == "learned":
        if rows is None:
            raise ConfigError("weights = 'learned' needs a validation set to learn from; set data.validation above 0")
        said = {name: heard["val"] for name, _, heard in panel.hear(inputs=False, val=True)}
        shares = learn(said, rows.y, **options)
        entropy = -sum(share * math.log(share) for share in shares.values() if share > 0)
        note(largest_share=max(shares.values()), share_entropy=entropy)
    options |= {"weights": spec.weights, "counts": counts, "shares": shares, "sharpen": spec.sharpen}
    of_inputs, of_rows = Fold(**options), Fold(**options)
    for name, samples, heard in panel.hear(inputs=needed, val=rows is not None and not said):
        if needed:
            of_inputs.add(name, samples, heard["inputs"])
        if rows is not None:
            of_rows.add(name, samples, said[name] if said else heard["val"])
        del heard  # before the next one is asked
    if rows is not None:
        note(teacher_accuracy=of_rows.target().accuracy(rows.y))
    return of_inputs.target() if needed else None


def _descend(
    ctx: TaskContext,
    student: FlatModule,
    x: Tensor,
    target: Target,
    spec: DistillSpec,
    val: Examples | None,
    before: dict[str, float] | None,
) -> Params:
    total, epoch = total_steps(len(x), spec), steps_per_epoch(len(x), spec)
    unit = 1 if spec.steps is not None else epoch  # steps in one tick of patience and eval_every
    every = (spec.eval_every or (100 if spec.steps is not None else 1)) * unit
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
    x = student.laid_out(x)  # once, not batch by batch
    for batch in batches(len(x), spec, ctx.rng):
        student.train(len(batch))
        output = student(x[batch])
        loss = scale * target.loss(batch, output, spec.temperature)
        if spec.labelled and labels is not None:
            loss = loss + spec.labelled * student.loss(output, labels[batch])
        stepper.step(loss)
        trail.pass_by(stepper.taken, student)
        if judged and (stepper.taken % every == 0 or stepper.taken == total):
            assert val is not None
            value = judge(student, val)[spec.metric]
            if stop.update(math.ceil(stepper.taken / unit), value, lambda: student.params(0.0)):
                break
    ctx.note(distill_steps=stepper.taken)
    ctx.note(**({"swa_snapshots": trail.taken} if trail.taken else {}))
    return stop.chosen(lambda: trail.mean(student))


class Trail:
    """The mean of the weights that a student passes, every `swa_every` steps from `swa_from` on.

    Only what is trained is averaged. Batch-norm statistics are those of the student's last step, and so is everything
    where training ended before a first snapshot.
    """

    def __init__(self, spec: DistillSpec) -> None:
        self.spec, self.taken = spec, 0
        self._mean: Tensor | None = None

    def pass_by(self, step: int, student: FlatModule) -> None:
        since = None if self.spec.swa_from is None else step - self.spec.swa_from
        if since is None or since < 0 or since % self.spec.swa_every:
            return
        now = student.flat.detach()
        self.taken += 1
        self._mean = now.clone() if self._mean is None else self._mean.lerp_(now, 1 / self.taken)

    def mean(self, student: FlatModule) -> Params:
        found = student.params(0.0)
        if self._mean is not None:
            found.trainable.copy_(self._mean)
        return found


@task("evaluate")
def validation(ctx: TaskContext) -> Examples:
    """The labelled hold-out at the server, as a value that can be moved."""
    return ctx.validation


@task("average")
def average_like(ctx: TaskContext, models: Mapping[str, Params], like: Params, by: By = "samples") -> Params:
    """The mean of those models that have the architecture of `like`, or `like` itself where none has."""
    alike = {name: model for name, model in models.items() if model.layout.arch == like.layout.arch}
    return average_of(alike, by) if alike else like


@task("distill", asks={"scores": Ask("models", score, "validation")})
def drop_worst(ctx: TaskContext, models: Mapping[str, Params], scores: Answers | None = None) -> dict[str, Params]:
    """FedDF's filter: members no better than 1.2 × chance on the server's validation set are left out.

    If nobody would remain, everybody does.
    """
    found = _scores(ctx, models, scores)
    kept = [name for name in models if found[name] >= 1.2 / ctx.classes]
    ctx.note(dropped=len(found) - len(kept) if kept else 0, nobody_passed=not kept)
    return {name: models[name] for name in kept or found}


@task("distill", asks={"scores": Ask("models", score, "validation")})
def drop_outliers(ctx: TaskContext, models: Mapping[str, Params], scores: Answers | None = None) -> dict[str, Params]:
    """The further rule of FedDF's code, for teachers only: members under mean − 1.5 std of the scores go, the best one
    being left out of both. Fewer than three have no outlier."""
    found = _scores(ctx, models, scores)
    if len(found) < 3:
        return dict(models)
    others = torch.tensor(sorted(found.values())[:-1], dtype=torch.float64)
    kept = [name for name in models if found[name] >= float(others.mean() - 1.5 * others.std(correction=0))]
    ctx.note(outliers=len(found) - len(kept))
    return {name: models[name] for name in kept}


def _scores(ctx: TaskContext, models: Mapping[str, Params], scores: Answers | None) -> dict[str, float]:
    told = known(scores)
    return {name: told[name] if name in told else score(ctx, {name: model})[name] for name, model in models.items()}
