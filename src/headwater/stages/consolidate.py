"""Stage 3: a student learns from an ensemble, on inputs without labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.params import By, Params, average_of
from headwater.specs import DistillSpec
from headwater.stages.bench import Bench
from headwater.stages.ensemble import Target, ensemble, learn
from headwater.stages.optimize import Stepper, batches, steps_per_epoch, total_steps
from headwater.stages.site import Site, task
from headwater.stages.stopping import EarlyStop
from headwater.topology.tree import ROOT


def judge(bench: Bench, rows: Examples) -> dict[str, float]:
    """Accuracy and loss of what the bench holds."""
    output = bench.outputs(rows.x)
    with torch.no_grad():
        loss = float(bench.loss(output, rows.y))
    return {"accuracy": float((output.argmax(1) == rows.y).double().mean()), "loss": loss}


@task("distill")
def distill(
    site: Site,
    start: Params,
    teachers: Mapping[str, Params],
    spec: DistillSpec,
    val: Examples | None = None,
    counts: Mapping[str, Tensor] | None = None,
    hold: float = 0.0,
) -> Params:
    """Teach a student, starting at `start`, the mean of its teachers on the home's inputs (the reference set at the
    server).

    Teachers are asked once and their outputs used in every epoch. True labels come in through validation: `val`, the
    server's own hold-out when this runs there, or a share `hold` of the home's rows that is then not distilled on; and,
    if `spec.labelled` is above 0, through the reference set. The result weighs what its teachers weigh together.
    """
    x = site.inputs
    if hold and site.data is not None:
        x, val = _hold_out(site, site.data, hold)
    elif val is None and site.home == ROOT:
        val = site.validation
    if val is not None and not len(val):
        val = None
    weight = sum(teacher.weight for teacher in teachers.values())
    if counts is not None:  # whose counts were lost on the way cannot be weighed by them
        teachers = {name: teacher for name, teacher in teachers.items() if name in counts}
    shares = _shares(site, teachers, spec, val) if spec.weights == "learned" else None
    ask = partial(ensemble, site, teachers, mix=spec.mix, weights=spec.weights, temperature=spec.temperature)
    ask = partial(ask, counts=counts, shares=shares, sharpen=spec.sharpen)
    if val is not None:
        site.note(teacher_accuracy=ask(val.x).accuracy(val.y))
    target = ask(x, batch=spec.batch) if total_steps(len(x), spec) else None
    student = site.bench(start)
    before = judge(student, val) if val is not None else None
    if target is not None:
        taught = _descend(site, student, x, target, spec, val, before)
        student = site.bench(taught)
    if val is not None and before is not None:
        site.note(student_before=before["accuracy"], student_after=judge(student, val)["accuracy"])
    return student.params(weight)


def _shares(site: Site, teachers: Mapping[str, Params], spec: DistillSpec, val: Examples | None) -> dict[str, float]:
    """What each teacher counts, by the labels of the validation set at this place."""
    if val is None:
        raise ConfigError("weights = 'learned' needs a validation set to learn from; set data.validation above 0")
    shares = learn(site, teachers, val, mix=spec.mix, temperature=spec.temperature)
    entropy = -sum(share * math.log(share) for share in shares.values() if share > 0)
    site.note(largest_share=max(shares.values()), share_entropy=entropy)
    return shares


def _descend(
    site: Site,
    student: Bench,
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
    labels = site.labels
    if spec.labelled and labels is None:
        raise ConfigError(
            f"labelled = {spec.labelled:g} needs a reference set with labels, and there are none at {site.home}; set "
            "labelled = 0, or data.reference = 'holdout' for distilling at the server"
        )
    if judged and before is not None:
        stop.begin(before[spec.metric], lambda: student.params(0.0))
    stepper, trail = Stepper(student, spec, total), Trail(spec)
    for batch in batches(len(x), spec, site.rng):
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
    site.note(distill_steps=stepper.taken)
    site.note(**({"swa_snapshots": trail.taken} if trail.taken else {}))
    return stop.chosen(lambda: trail.mean(student))


class Trail:
    """The mean of the weights that a student passes, every `swa_every` steps from `swa_from` on.

    Only what is trained is averaged. Batch-norm statistics are those of the student's last step, and so is everything
    where training ended before a first snapshot.
    """

    def __init__(self, spec: DistillSpec) -> None:
        self.spec, self.taken = spec, 0
        self._mean: Tensor | None = None

    def pass_by(self, step: int, student: Bench) -> None:
        since = None if self.spec.swa_from is None else step - self.spec.swa_from
        if since is None or since < 0 or since % self.spec.swa_every:
            return
        now = student.flat.detach()
        self.taken += 1
        self._mean = now.clone() if self._mean is None else self._mean.lerp_(now, 1 / self.taken)

    def mean(self, student: Bench) -> Params:
        found = student.params(0.0)
        if self._mean is not None:
            found.trainable.copy_(self._mean)
        return found


def _hold_out(site: Site, rows: Examples, share: float) -> tuple[Tensor, Examples]:
    """A leader's own validation: at least one row of it, and at least one row left to learn from."""
    order = torch.from_numpy(site.rng.permutation(len(rows)))
    held = min(max(1, round(share * len(rows))), max(1, len(rows) - 1))
    kept = order[held:] if len(rows) > 1 else order
    return rows.x[kept], rows.take(order[:held])


@task("evaluate")
def validation(site: Site) -> Examples:
    """The labelled hold-out at the server, as a value that can be moved."""
    return site.validation


@task("average")
def average_like(site: Site, models: Mapping[str, Params], like: Params, by: By = "samples") -> Params:
    """The mean of those models that have the architecture of `like`, or `like` itself where none has."""
    alike = {name: model for name, model in models.items() if model.layout.arch == like.layout.arch}
    return average_of(alike, by) if alike else like


@task("distill")
def drop_worst(site: Site, models: Mapping[str, Params]) -> dict[str, Params]:
    """FedDF's filter: members no better than 1.2 × chance on the server's validation set are left out.

    If nobody would remain, everybody does.
    """
    score = _scores(site, models)
    kept = [name for name in models if score[name] >= 1.2 / site.classes]
    site.note(dropped=len(score) - len(kept) if kept else 0, nobody_passed=not kept)
    return {name: models[name] for name in kept or score}


@task("distill")
def drop_outliers(site: Site, models: Mapping[str, Params]) -> dict[str, Params]:
    """The further rule of FedDF's code, for teachers only: members under mean − 1.5 std of the scores go, the best one
    being left out of both. Fewer than three have no outlier."""
    score = _scores(site, models)
    if len(score) < 3:
        return dict(models)
    others = torch.tensor(sorted(score.values())[:-1], dtype=torch.float64)
    kept = [name for name in models if score[name] >= float(others.mean() - 1.5 * others.std(correction=0))]
    site.note(outliers=len(score) - len(kept))
    return {name: models[name] for name in kept}


def _scores(site: Site, models: Mapping[str, Params]) -> dict[str, float]:
    rows = site.validation
    if not len(rows):
        raise LookupError("dropping the worst members needs a validation set; set data.validation above 0")
    return {name: judge(site.bench(model), rows)["accuracy"] for name, model in models.items()}
