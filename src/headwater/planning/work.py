"""How much a task will do, from its inputs alone: gradient steps, the samples that they read, and plain passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.core.tree import ROOT
from headwater.engines.base import Bundle, Job, Perhaps, Ref
from headwater.specs import Descent, DistillSpec, LocalSpec
from headwater.tasks.optimizers import steps_per_epoch, total_steps
from headwater.training.experiment import Experiment


@dataclass(frozen=True)
class Value:
    """What is known of a value before it exists."""

    arch: str  # of the model that it is, or of the models in it
    members: int = 1  # models in it
    rows: int = 0  # examples in it
    number: int = -1  # of the work that makes it
    job: Job | None = None  # for what a method reads before it goes on
    given: Mapping[str, Value] = field(default_factory=dict)  # by the names that the job uses


@dataclass(frozen=True)
class Work:
    """One task. `after` names the works whose results it needs, by their number."""

    job: Job
    arch: str
    after: tuple[int, ...] = ()
    steps: int = 0
    samples: int = 0  # that the steps read
    gradients: int = 0  # batches whose gradient is taken without a step
    asked: int = 0  # samples that teachers are asked about
    passes: Mapping[str, int] = field(default_factory=dict)  # samples by the architecture that they go through
    teachers: int = 0
    stops: bool = False  # may end early on validation data
    members: int = 0  # models that it needs at the same time
    counted: bool = True  # whether its cost is known
    group: int = -1  # the number of the first work that it is carried out with, or its own

    @property
    def round(self) -> int:
        return self.job.round

    @property
    def phase(self) -> str:
        return self.job.phase

    @property
    def title(self) -> str:
        return self.job.title


def samples_read(n: int, spec: Descent) -> int:
    """How many samples all steps together read, of n at hand."""
    total, each = total_steps(n, _known(spec)), steps_per_epoch(n, _known(spec))
    if not each:
        return 0
    whole, left = divmod(total, each)
    return whole * min(n, each * spec.batch) + min(left * spec.batch, n)


def _known(spec: Descent) -> LocalSpec | DistillSpec:
    assert isinstance(spec, LocalSpec | DistillSpec)
    return spec


def held_out(n: int, share: float) -> int:
    """A leader's own validation rows, as distilling takes them out."""
    return min(max(1, round(share * n)), max(1, n - 1)) if share else 0


class Account:
    """Works out the work of jobs; `look` finds what is known of an input."""

    def __init__(self, experiment: Experiment, look: Callable[[Ref], Value]) -> None:
        self.split, self.tests, self.tree = experiment.split, experiment.test_rows, experiment.tree
        self.look = look

    def of(self, job: Job, number: int) -> tuple[Work, Value]:
        """The work of a job, and what is known of its result."""
        known = {name: tuple(self._values(item)) for name, item in job.inputs.items()}
        arch = self._arch(job, known)
        needed = [value for values in known.values() for value in values]
        after = tuple(sorted({value.number for value in needed if value.number >= 0}))
        streamed = getattr(job.task, "streaming", ())
        at_once = sum(value.members for name, values in known.items() if name not in streamed for value in values)
        ours = getattr(job.task, "__module__", "").startswith("headwater.")
        rule = RULES.get(job.title, Account._other) if ours else Account._other
        work = Work(job, arch, after, members=at_once, **rule(self, job, arch, known))
        return work, self._result(job, arch, known, number)

    # -- what is known of values

    def _values(self, item: Any) -> Iterator[Value]:
        if isinstance(item, Ref):
            held = self.look(item)
            yield Value(held.arch, 1 if item.part else held.members, held.rows, held.number)
        elif isinstance(item, Bundle):
            for ref in item.refs.values():
                yield from self._values(ref)
        elif isinstance(item, Perhaps):
            yield from self._values(item.held)
        elif isinstance(item, Mapping):
            for part in item.values():
                yield from self._values(part)
        elif isinstance(item, tuple | list):
            for part in item:
                yield from self._values(part)
        elif hasattr(item, "__dataclass_fields__") and not isinstance(item, type):  # a loss term with values of its own
            for name in item.__dataclass_fields__:
                yield from self._values(getattr(item, name))

    def _arch(self, job: Job, known: Mapping[str, tuple[Value, ...]]) -> str:
        if isinstance(named := job.inputs.get("arch"), str):
            return named
        if job.home in self.tree.sector_of:
            return self.tree.arch(job.home)
        for name in ("generator", "start", "like", "model", "models"):
            if known.get(name):
                return known[name][0].arch
        return next((values[0].arch for values in known.values() if values), self.tree.archs[0])

    def _result(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]], number: int) -> Value:
        rows = {"public": len(self.split.reference), "pooled": int(self.tree.sizes[ROOT])}.get(job.title, 0)
        members = sum(value.members for value in known.get("models", ()))
        several = {"drop_worst": members, "drop_outliers": members, "sample_models": job.inputs.get("count", 0)}
        several["with_swag"] = members + job.inputs.get("count", 0)
        several["remember"] = min(job.inputs.get("most", 1), 1 + sum(value.members for value in known.get("old", ())))
        return Value(arch, several.get(job.title, 1), rows, number)

    # -- one rule a task; a task without one costs what any task costs

    def _own(self, job: Job) -> int:
        return int(self.tree.client_sizes[job.home]) if job.home in self.tree.sector_of else 0

    def _other(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        """A task of somebody else's method: what it is told to do with a spec, on the rows of its home."""
        spec = job.inputs.get("spec")
        if not isinstance(spec, LocalSpec | DistillSpec) or job.phase not in ("train", "distill"):
            return {"counted": job.phase not in ("train", "distill") or job.title in CHEAP}
        n = len(self.split.reference) if job.home == ROOT else self._own(job)
        return {"steps": total_steps(n, spec), "samples": samples_read(n, spec)}

    def _local_train(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        spec: LocalSpec = job.inputs["spec"]
        n = known["data"][0].rows if known.get("data") else self._own(job)
        steps, samples, passes = total_steps(n, spec), samples_read(n, spec), {}
        for term in job.inputs.get("terms", ()):
            name = type(term).__name__
            if name == "Contrast" and term.mu:  # features of all rows by the global and by earlier models, once
                passes = {arch: n * (1 + max(1, sum(own.members for own in self._values(term.previous))))}
            elif name == "Heed" and term.target is not None:  # a public batch beside each of its own
                public = min(term.rows.most, len(self.split.reference))
                samples += samples_read(public, LocalSpec(steps=steps, batch=term.batch))
        return {"steps": steps, "samples": samples, "passes": passes}

    def _digest(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        n, spec = min(job.inputs["rows"].most, len(self.split.reference)), job.inputs["spec"]
        if job.inputs["target"] is None:
            return {}
        return {"steps": total_steps(n, spec), "samples": samples_read(n, spec)}

    def _distill(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        spec: DistillSpec = job.inputs["spec"]
        n = len(self.split.reference) if job.home == ROOT else self._own(job)
        held = held_out(n, job.inputs.get("hold", 0.0)) if job.home != ROOT else 0
        n -= held if n > 1 else 0
        told = job.home == ROOT or known.get("val")
        val = held or (len(self.split.validation) if told else 0)
        steps = total_steps(n, spec)
        team = known["teachers"]
        unit = 1 if spec.steps is not None else steps_per_epoch(n, spec)
        every = (spec.eval_every or (100 if spec.steps is not None else 1)) * unit
        judged = math.ceil(steps / every) if spec.judged and steps else 0
        asked = (n if steps else 0) + val
        passes = Counter({arch: val * (2 + judged)})
        if job.inputs.get("answers") is None:  # else others have asked them
            passes.update(_through(team, asked))
        teachers = sum(teacher.members for teacher in team)
        return {
            "steps": steps,
            "samples": samples_read(n, spec),
            "passes": passes,
            "asked": teachers * asked,
            "teachers": teachers,
            "stops": spec.patience is not None and val > 0,
        }

    def _teach_generator(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        spec, teachers = job.inputs["lesson"].spec, sum(value.members for value in known["teachers"])
        samples = (spec.steps or 0) * spec.batch
        return {"steps": spec.steps or 0, "samples": samples, "teachers": teachers, "asked": teachers * samples}

    def _gradient_at(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        n = self._own(job)
        return {"gradients": math.ceil(n / job.inputs["spec"].batch), "samples": n}

    def _variate(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return self._gradient_at(job, arch, known) if job.inputs.get("gradient") else {}

    def _knowledge(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return {"passes": {arch: self._own(job)}}

    def _predict(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return {"passes": {arch: min(job.inputs["rows"].most, len(self.split.reference))}}

    def _drop_worst(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        if job.inputs.get("scores") is not None:
            return {}
        return {"passes": _through(known["models"], len(self.split.validation))}

    def _answer(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        """Teachers, asked in a job of their own."""
        n = len(self.split.reference) if job.home == ROOT else self._own(job)
        told = not job.inputs.get("hold") and (job.home == ROOT or known.get("val"))
        rows = n + (len(self.split.validation) if told else 0)
        return {"passes": _through(known["members"], rows, job.inputs.get("part"))}

    def _score(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        return {"passes": _through(known["members"], len(self.split.validation), job.inputs.get("part"))}

    def _on_test(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        return {"passes": _through(known["members"], len(self.split.test), job.inputs.get("part"))}

    def _evaluate(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return {"passes": {arch: len(self.split.test)}}

    def _evaluate_team(self, job: Job, arch: str, known: Mapping[str, tuple[Value, ...]]) -> dict[str, Any]:
        if job.inputs.get("answers") is not None:
            return {}
        return {"passes": _through(known["members"], len(self.split.test))}

    def _own_accuracy(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return {"passes": {arch: len(self.tests.get(job.home, ()))}}

    def _match_layer(self, job: Job, arch: str, known: Any) -> dict[str, Any]:
        return {"counted": False}


def _through(models: Iterable[Value], rows: int, part: tuple[int, int] | None = None) -> Counter[str]:
    """Passes by architecture, of all these models or of one part of so many."""
    found: Counter[str] = Counter()
    for value in models:
        number, parts = part or (0, 1)
        members = (number + 1) * value.members // parts - number * value.members // parts
        found[value.arch] += members * rows
    return found


RULES: dict[str, Callable[..., dict[str, Any]]] = {
    "local_train": Account._local_train,
    "train_collecting": Account._local_train,
    "retrain": Account._local_train,
    "digest": Account._digest,
    "distill": Account._distill,
    "distill_per_class": Account._distill,
    "teach_generator": Account._teach_generator,
    "gradient_at": Account._gradient_at,
    "variate": Account._variate,
    "knowledge": Account._knowledge,
    "prototypes": Account._knowledge,
    "predict": Account._predict,
    "drop_worst": Account._drop_worst,
    "drop_outliers": Account._drop_worst,
    "evaluate": Account._evaluate,
    "score_on": Account._evaluate,
    "evaluate_team": Account._evaluate_team,
    "own_accuracy": Account._own_accuracy,
    "answer": Account._answer,
    "score": Account._score,
    "on_test": Account._on_test,
    "match_layer": Account._match_layer,
}
# Tasks of training and distilling that only add, count or choose.
CHEAP = {"label_counts", "own_rows", "pooled", "minus", "corrected", "dual", "mean_of", "pool", "with_swag"}
