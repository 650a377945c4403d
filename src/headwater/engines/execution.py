"""How jobs are carried out: all that happens at a home, on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from headwater.core.rng import derive
from headwater.engines.base import LOST, Bundle, Done, Job, LostInput, Ref, Stream, resolve
from headwater.engines.nan_check import BAD, Complaint, all_sound
from headwater.errors import Diverged, TaskError, UserError
from headwater.tasks.task import ALONE, RunContext, TaskContext

Fetch = Callable[[Ref], Any]
JUDGED = ("train", "distill")  # phases whose results have to be made of numbers


def execute(
    job: Job, context: RunContext, fetch: Fetch, release: Callable[[Ref], None], worker: int = 0
) -> tuple[Any, Done]:
    """Carry out one job: its value and the report.

    A task that is done together with others elsewhere is done in the same way for one alone, so that a client gets
    the same bits whether it is simulated among others or is a party of its own.
    """
    task: Any = job.task
    if getattr(task, "together", None) is not None and (context.stack != ALONE or not task.stacked):
        found, done = execute_together([job], context, fetch, worker)
        return found[job.node], done
    begun = time.time()
    ctx = TaskContext(context, job.home, job.key)
    streamed = {name for name in getattr(job.task, "streaming", ()) if isinstance(job.inputs.get(name), Bundle)}
    value: Any = LOST
    with _told(job):
        given = _given(job, fetch, streamed)
        if given is not None:
            given |= {name: Stream(job.inputs[name].refs, fetch, release) for name in streamed}
            value = _alone(job, context, ctx, given)
    (value,) = _judged([job], context, [ctx], [value])
    return value, _report([job], [ctx], begun, worker)


def execute_together(
    jobs: Sequence[Job], context: RunContext, fetch: Fetch, worker: int = 0
) -> tuple[dict[str, Any], Done]:
    """Carry out jobs of one task as one: their values by node and the report."""
    group = Group(jobs, context)
    group.take(fetch)
    group.work()
    return group.finished(worker)


class Group:
    """Jobs of one task that are carried out as one, in three steps, of which another thread may take the second:
    `take`, `work` and `finished`.

    The task's `together` takes the jobs that it can; the others are carried out one by one, in the last step, since
    they draw from a random generator of the whole process.
    """

    def __init__(self, jobs: Sequence[Job], context: RunContext) -> None:
        self._jobs, self._context = jobs, context
        self._sites = [TaskContext(context, job.home, job.key) for job in jobs]
        self._given: dict[int, dict[str, Any]] = {}
        self._found: Sequence[Any] = ()
        self._fine: list[bool] | None = None  # whether values are sound, where that is known

    def take(self, fetch: Fetch) -> None:
        """Bring the inputs together."""
        known: dict[tuple[Any, ...], Any] = {}  # what was broadcast has one name for all of them

        def fetch_once(ref: Ref) -> Any:
            key = (ref.name, ref.part, ref.member)
            if key not in known:
                known[key] = fetch(ref)
            return known[key]

        for at, job in enumerate(self._jobs):
            with _told(job):
                inputs = _given(job, fetch_once)
            if inputs is not None:
                self._given[at] = inputs

    def work(self) -> None:
        self._begun = time.time()
        task: Any = self._jobs[0].task
        with _told(self._jobs[0], len(self._jobs)):
            self._found = task.together([self._sites[at] for at in self._given], list(self._given.values()))
        whole = len(self._given) == len(self._jobs) and not any(value is None for value in self._found)
        if whole and self._jobs[0].phase in JUDGED:
            self._fine = all_sound(self._found)
        self._ended = time.time()

    def finished(self, worker: int = 0) -> tuple[dict[str, Any], Done]:
        """Values by node, and the report."""
        jobs, values = self._jobs, [LOST] * len(self._jobs)
        for at, value in zip(self._given, self._found, strict=True):
            if value is None:
                with _told(jobs[at]):
                    value = _alone(jobs[at], self._context, self._sites[at], self._given[at])
                self._ended = time.time()
            values[at] = value
        values = _judged(jobs, self._context, self._sites, values, self._fine)
        done = _report(jobs, self._sites, self._begun, worker, self._ended)
        return {job.node: value for job, value in zip(jobs, values, strict=True)}, done


def _given(job: Job, fetch: Fetch, streamed: Collection[str] = ()) -> dict[str, Any] | None:
    """The inputs with values in place of names; None where the job or an input was lost."""
    for ref in job.refs():
        if ref.home != job.home:
            raise TaskError(f"{job.title} at {job.node} was given a value that lives at {ref.home}, not at {job.home}")
    if job.lost:
        return None
    try:
        return {
            name: item if name in job.plain else resolve(item, fetch)
            for name, item in job.inputs.items()
            if name not in streamed
        }
    except LostInput:
        return None


def _alone(job: Job, context: RunContext, ctx: TaskContext, given: dict[str, Any]) -> Any:
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(derive(context.seed, "torch", *job.key))
        return job.task(ctx, **given)
    except LostInput:
        return LOST
    finally:  # chance outside tasks is not ours
        torch.default_generator.set_state(before)


class _told:  # noqa: N801 (used as a statement)
    """Whatever goes wrong in a task is told with its name and place."""

    def __init__(self, job: Job, count: int = 1) -> None:
        self._job, self._count = job, count

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, TaskError | UserError):
            return
        job, others = self._job, f" and {self._count - 1} more" if self._count > 1 else ""
        raise TaskError(
            f"{job.title} at {job.node} (home {job.home}){others} failed: {type(error).__name__}: {error}"
        ) from error


def _judged(
    jobs: Sequence[Job],
    context: RunContext,
    contexts: Sequence[TaskContext],
    values: list[Any],
    sound: list[bool] | None = None,
) -> list[Any]:
    """A value that is not made of numbers counts as lost, or ends the run; the jobs are of one task."""
    if jobs[0].phase not in JUDGED:
        return values
    sound = all_sound(values) if sound is None else sound
    if all(sound):
        return values
    found = []
    for job, ctx, value, fine in zip(jobs, contexts, values, sound, strict=True):
        if not fine and context.bad_update == "stop":
            raise Diverged(Complaint(context, job.phase, job.title, job.node, job.round).ended)
        if not fine:
            ctx.note(**{BAD: 1})
        found.append(value if fine else LOST)
    return found


def _report(
    jobs: Sequence[Job], contexts: Sequence[TaskContext], begun: float, worker: int, ended: float | None = None
) -> Done:
    """Of a job, or of several of one task in one round."""
    first, notes = jobs[0], {job.node: ctx.notes for job, ctx in zip(jobs, contexts, strict=True)}
    return Done(first.name, first.title, first.phase, notes, first.round, begun, ended or time.time(), worker)
