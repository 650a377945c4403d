"""Execution of jobs at a home, the same on every engine: availability, inputs, random seed, NaN check, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from headwater.core import serialization
from headwater.core.rng import derive, stream
from headwater.engines.base import Done
from headwater.engines.jobs import LOST, Bundle, Job, LostInput, Ref, Stream, resolve
from headwater.engines.nan_check import BAD, Complaint, all_sound
from headwater.errors import Diverged, TaskError, UserError
from headwater.tasks.task import ALONE, RunContext, TaskContext

Fetch = Callable[[Ref], Any]
LEARNING_PHASES = ("train", "distill")  # their results must be finite, and availability delays them


class Availability:
    """Simulated client availability: delays the start of tasks, never changes results.

    A client is available for the first `availability` of each period. Every client's periods have an offset of their
    own. Only training and distilling at a client are delayed.

    Args:
        context: the run; `availability` is a share of the time, `period` is in seconds.
    """

    def __init__(self, context: RunContext) -> None:
        self._context, self._began = context, time.monotonic()
        self._offsets: dict[str, float] = {}

    def delay(self, job: Job) -> float:
        """Return the seconds until this job may begin."""
        context = self._context
        if context.availability >= 1 or job.phase not in LEARNING_PHASES or job.home not in context.rows:
            return 0.0
        if job.home not in self._offsets:
            self._offsets[job.home] = stream(context.seed, "availability", job.home).random() * context.period
        since = (time.monotonic() - self._began + self._offsets[job.home]) % context.period
        return 0.0 if since < context.availability * context.period else context.period - since

    def sleep(self, jobs: Sequence[Job]) -> None:
        """Wait until the client of every job has been available once."""
        if seconds := max((self.delay(job) for job in jobs if not job.lost), default=0.0):
            time.sleep(seconds)


def execute(
    job: Job, context: RunContext, fetch: Fetch, release: Callable[[Ref], None], worker: int = 0
) -> tuple[Any, Done]:
    """Execute one job.

    A task that can be executed for a group (`together`) is executed in the same way for one job alone, so that a client
    gets the same bits whether it is simulated among others or is a party of its own.

    Args:
        job: the job. All of its inputs can be fetched.
        context: the run.
        fetch: returns the value of a ref; `LOST` for a lost one.
        release: called with each ref of a streaming input after use; other inputs are the caller's to release.
        worker: number for the report.

    Returns:
        The value, `LOST` if the job or an input it needs was lost, and the report.

    Raises:
        TaskError: the task raised an exception; the message names task, node and home.
        Diverged: the result is not finite and faults.bad_update is "stop".
    """
    task: Any = job.task
    if getattr(task, "together", None) is not None and (context.stack != ALONE or not task.stacked):
        values, done = execute_together([job], context, fetch, worker)
        return values[job.node], done
    begun = time.time()
    ctx = TaskContext(context, job.home, job.key)
    streamed = {name for name in getattr(job.task, "streaming", ()) if isinstance(job.inputs.get(name), Bundle)}
    value: Any = LOST
    with _task_errors(job):
        inputs = _resolved(job, fetch, streamed)
        if inputs is not None:
            inputs |= {name: Stream(job, name, fetch, release) for name in streamed}
            value = _call(job, context, ctx, inputs)
    (value,) = _checked([job], context, [ctx], [value])
    return value, _report([job], [ctx], begun, worker)


def execute_together(
    jobs: Sequence[Job], context: RunContext, fetch: Fetch, worker: int = 0
) -> tuple[dict[str, Any], Done]:
    """Execute jobs of one task as one group, by the task's `together`.

    Args:
        jobs: they have one name.
        context: the run.
        fetch: returns the value of a ref. Called once for each distinct ref of the group.
        worker: number for the report.

    Returns:
        node → value, `LOST` for a lost one, and one report for all.
    """
    group = GroupExecution(jobs, context)
    group.fetch_inputs(fetch)
    group.compute()
    return group.results(worker)


class GroupExecution:
    """Execution of a group in three steps: `fetch_inputs`, `compute`, `results`. Another thread may do the second.

    The task's `together` computes the jobs that it can. The others are executed one by one in the last step, since
    they draw from the random generator of the whole process.
    """

    def __init__(self, jobs: Sequence[Job], context: RunContext) -> None:
        self._jobs, self._context = jobs, context
        self._task_contexts = [TaskContext(context, job.home, job.key) for job in jobs]
        self._inputs: dict[int, dict[str, Any]] = {}  # by position in jobs; lost ones are left out
        self._values: Sequence[Any] = ()
        self._finite: list[bool] | None = None  # result of the NaN check, if it is done already

    def fetch_inputs(self, fetch: Fetch) -> None:
        known: dict[tuple[Any, ...], Any] = {}  # a broadcast value has one name for all jobs

        def fetch_once(ref: Ref) -> Any:
            key = (ref.name, ref.part, ref.member)
            if key not in known:
                known[key] = fetch(ref)
            return known[key]

        for at, job in enumerate(self._jobs):
            with _task_errors(job):
                inputs = _resolved(job, fetch_once)
            if inputs is not None:
                self._inputs[at] = inputs

    def compute(self) -> None:
        self._begun = time.time()
        task: Any = self._jobs[0].task
        with _task_errors(self._jobs[0], len(self._jobs)):
            self._values = task.together([self._task_contexts[at] for at in self._inputs], list(self._inputs.values()))
        complete = len(self._inputs) == len(self._jobs) and not any(value is None for value in self._values)
        if complete and self._jobs[0].phase in LEARNING_PHASES:
            self._finite = all_sound(self._values)
        self._ended = time.time()

    def results(self, worker: int = 0) -> tuple[dict[str, Any], Done]:
        """Return node → value, and the report."""
        jobs, values = self._jobs, [LOST] * len(self._jobs)
        for at, value in zip(self._inputs, self._values, strict=True):
            if value is None:
                with _task_errors(jobs[at]):
                    value = _call(jobs[at], self._context, self._task_contexts[at], self._inputs[at])
                self._ended = time.time()
            values[at] = value
        values = _checked(jobs, self._context, self._task_contexts, values, self._finite)
        done = _report(jobs, self._task_contexts, self._begun, worker, self._ended)
        return {job.node: value for job, value in zip(jobs, values, strict=True)}, done


def as_read_back(job: Job, value: Any) -> Any:
    """Return a result as other engines and a resumed run get it: the same types, and strides, which select kernels."""
    try:
        return value if value is LOST else serialization.read_back(value)
    except TypeError as error:
        raise TaskError(f"{job.title} at {job.node} (home {job.home}) failed: TypeError: {error}") from error


def _resolved(job: Job, fetch: Fetch, streamed: Collection[str] = ()) -> dict[str, Any] | None:
    """Inputs with values in place of refs; None if the job or an input it needs was lost."""
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


def _call(job: Job, context: RunContext, ctx: TaskContext, inputs: dict[str, Any]) -> Any:
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(derive(context.seed, "torch", *job.key))
        return job.task(ctx, **inputs)
    except LostInput:
        return LOST
    finally:  # the generator's state outside tasks belongs to the user
        torch.default_generator.set_state(before)


class _task_errors:  # noqa: N801 (used as a statement; a class, since a generator is slower)
    """Raises any exception of a task as a TaskError that names task, node and home."""

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


def _checked(
    jobs: Sequence[Job],
    context: RunContext,
    contexts: Sequence[TaskContext],
    values: list[Any],
    finite: list[bool] | None = None,
) -> list[Any]:
    """Replace values that are not finite by `LOST`, or end the run. The jobs are of one task."""
    if jobs[0].phase not in LEARNING_PHASES:
        return values
    finite = all_sound(values) if finite is None else finite
    if all(finite):
        return values
    checked = []
    for job, ctx, value, fine in zip(jobs, contexts, values, finite, strict=True):
        if not fine and context.bad_update == "stop":
            raise Diverged(Complaint(context, job.phase, job.title, job.node, job.round).ended)
        if not fine:
            ctx.note(**{BAD: 1})
        checked.append(value if fine else LOST)
    return checked


def _report(
    jobs: Sequence[Job], contexts: Sequence[TaskContext], begun: float, worker: int, ended: float | None = None
) -> Done:
    """Report of a job, or of several of one task in one round."""
    first, notes = jobs[0], {job.node: ctx.notes for job, ctx in zip(jobs, contexts, strict=True)}
    return Done(first.name, first.title, first.phase, notes, first.round, begun, ended or time.time(), worker)
