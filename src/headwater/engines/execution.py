"""Execution of jobs at a home, the same on every engine: inputs, random seed, NaN check, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.engines.base import Done
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import LOST, Bundle, Call, Job, LostInput, Stream, resolve
from headwater.engines.nan_check import BAD, NonFiniteResult, all_finite
from headwater.engines.refs import Ref, RefGroup
from headwater.errors import ConfigError, Diverged, TaskError, UserError
from headwater.secure.protocol import TooFew
from headwater.tasks import device_memory, devices
from headwater.tasks.privacy import as_sent
from headwater.tasks.task import ALONE, RunContext, TaskContext

Fetch = Callable[[Ref], Any]
LEARNING_PHASES = ("train", "distill")  # their results must be finite, and availability delays them


def execute(
    job: Job, context: RunContext, fetch: Fetch, release: Callable[[Ref | RefGroup], None], worker: int = 0
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
            streams = {name: Stream(job, name, fetch, release, context.put) for name in streamed}
            value = _call(job, context, ctx, inputs, streams)
            value = as_sent(context, job, job.node, inputs, job.key, value, ctx.note)
    (value,) = _checked(job, context, {job.node: ctx}, [value])
    return value, _report(job, {job.node: ctx}, begun, worker)


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
    group = GroupExecution(JobGroup.of(tuple(jobs)), context)
    group.prepare(fetch)
    group.compute()
    values, done = group.results(worker)
    return {job.node: value for job, value in zip(jobs, values, strict=True)}, done


class GroupExecution:
    """Execution of a group in three steps: `prepare`, `compute`, `results`. Another thread may do the second.

    The first step does as much as it can of what needs Python's interpreter, which only one thread has at a time.

    The task's `together` computes the jobs that it can. The others are executed one by one in the last step, since
    they draw from the random generator of the whole process.
    """

    def __init__(self, group: JobGroup, context: RunContext) -> None:
        self._group, self._context = group, context
        self._inputs: dict[str, dict[str, Any]] = {}  # by node; lost ones are left out
        self._values: Sequence[Any] = ()
        self._finite: list[bool] | None = None  # result of the NaN check, if it is done already
        if group.broadcast:
            keys = {node: (node, (*group.key, node)) for node in group.nodes}
        else:
            keys = {job.node: (job.home, job.key) for job in group.jobs}
        self._task_contexts = {node: TaskContext(context, *of_task) for node, of_task in keys.items()}

    def prepare(self, fetch: Fetch) -> None:
        """Fetch the inputs, and begin what the task can begin beforehand."""
        self._fetch_broadcast(fetch) if self._group.broadcast else self._fetch_inputs(fetch)
        task: Any = self._group.task
        context, inputs = self._context, self._inputs
        if not context.on_host:
            inputs = device_memory.placed_once(inputs, context.device_rows)
        given = [self._task_contexts[node] for node in inputs], list(inputs.values())
        self._work = partial(task.together, *given)
        if getattr(task, "prepare", None) is not None:
            try:
                self._work = task.prepare(*given)
            except Exception as error:  # raised by a later call, as any error of a task
                self._work = partial(_raise, error)

    def _fetch_inputs(self, fetch: Fetch) -> None:
        known: dict[tuple[Any, ...], Any] = {}  # a broadcast value has one name for all jobs

        def fetch_once(ref: Ref) -> Any:
            key = (ref.name, ref.part, ref.member)
            if key not in known:
                known[key] = fetch(ref)
            return known[key]

        for job in self._group.jobs:
            with _task_errors(job):
                inputs = _resolved(job, fetch_once)
            if inputs is not None:
                self._inputs[job.node] = inputs

    def _fetch_broadcast(self, fetch: Fetch) -> None:
        group, inputs = self._group, dict(self._group.inputs)
        if len(group.lost) == len(group.nodes):
            return
        for name, item in group.inputs.items():
            if isinstance(item, RefGroup):
                inputs[name] = fetch(item.whole)
                if inputs[name] is LOST:
                    return
        self._inputs = {node: inputs for node in group.nodes if node not in group.lost}

    def compute(self) -> None:
        self._begun = time.time()
        group = self._group
        with _task_errors(group):
            self._values = self._work()
            if not self._context.on_host:
                self._values = device_memory.on_host(self._values)
            if self._context.attack is not None or self._context.privacy.clip:
                pairs = zip(self._inputs.items(), self._values, strict=True)
                own, run = self._task_contexts, self._context
                self._values = [as_sent(run, group, n, given, own[n].key, v, own[n].note) for (n, given), v in pairs]
        self._complete = len(self._inputs) == len(group.nodes) and not any(value is None for value in self._values)
        if self._complete and group.phase in LEARNING_PHASES:
            self._finite = all_finite(self._values)
        self._ended = time.time()

    def results(self, worker: int = 0) -> tuple[Sequence[Any], Done]:
        """Return the value of each node, `LOST` for a lost one, and the report."""
        group, values = self._group, self._values
        if not self._complete:
            found = dict(zip(self._inputs, values, strict=True))
            values = [self._single(node, found[node]) if node in found else LOST for node in group.nodes]
        values = _checked(group, self._context, self._task_contexts, values, self._finite)
        return values, _report(group, self._task_contexts, self._begun, worker, self._ended)

    def _single(self, node: str, value: Any) -> Any:
        """The value of a node, computed now if `together` could not."""
        if value is None:
            job = self._group.jobs[self._group.nodes.index(node)]
            with _task_errors(job):
                inputs = self._inputs[node]
                value = _call(job, self._context, self._task_contexts[node], inputs)
                value = as_sent(self._context, job, node, inputs, job.key, value, self._task_contexts[node].note)
            self._ended = time.time()
        return value


def _raise(error: Exception) -> Any:
    raise error


def as_read_back(job: Job, value: Any) -> Any:
    """Return a result as other engines and a resumed run get it: the same types, and strides, which select kernels."""
    try:
        return value if value is LOST else serialization.read_back(value)
    except TypeError as error:
        raise TaskError(f"{job.title} at {job.node} (home {job.home}) failed: TypeError: {error}") from error


def group_as_read_back(group: JobGroup, values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, ValueInfo | None]]:
    """Return a group's results by node as other engines get them, without lost ones, and the size of each."""
    nodes = group.nodes
    if serialization.as_rows_read(values):
        return dict(zip(nodes, values, strict=True)), dict.fromkeys(nodes, serialization.info(values[0]))
    try:
        found = {node: v if v is LOST else serialization.read_back(v) for node, v in zip(nodes, values, strict=True)}
    except TypeError:
        for job, value in zip(group.jobs, values, strict=True):
            as_read_back(job, value)  # names the job in question
        raise
    infos = {node: None if value is LOST else serialization.info(value) for node, value in found.items()}
    return {node: value for node, value in found.items() if value is not LOST}, infos


def _resolved(job: Job, fetch: Fetch, streamed: Collection[str] = ()) -> dict[str, Any] | None:
    """Inputs with values in place of refs; None if the job or an input it needs was lost."""
    for leaf in job.leaves:
        if leaf.home != job.home:
            raise TaskError(
                f"{job.title} at {job.node} was given a value that is stored at {leaf.home}, not at {job.home}"
            )
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


def _call(
    job: Job, context: RunContext, ctx: TaskContext, inputs: dict[str, Any], streams: Mapping[str, Stream] | None = None
) -> Any:
    before, seed = torch.default_generator.get_state(), ctx.torch_seed
    try:
        torch.default_generator.manual_seed(seed)
        if context.on_host:
            return job.task(ctx, **inputs, **(streams or {}))
        with devices.seeded(context.device, seed):
            return device_memory.on_host(job.task(ctx, **context.put(inputs), **(streams or {})))
    except (LostInput, TooFew):
        return LOST
    finally:  # the generator's state outside tasks belongs to the user
        torch.default_generator.set_state(before)


class _task_errors:  # noqa: N801 (used as a statement; a class, since a generator is slower)
    """Raises any exception of a task as a TaskError that names task, node and home."""

    def __init__(self, job: Job | JobGroup) -> None:
        self._job = job

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, TaskError | UserError):
            return
        jobs = self._job.jobs if isinstance(self._job, JobGroup) else (self._job,)
        job, others = jobs[0], f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
        if devices.out_of_memory(error):
            what = f"{job.title} at {job.node}{others} needs more memory than the device has free"
            raise ConfigError(f"{what}; {devices.LESS_MEMORY}") from error
        raise TaskError(
            f"{job.title} at {job.node} (home {job.home}){others} failed: {type(error).__name__}: {error}"
        ) from error


def _checked(
    call: Call,
    context: RunContext,
    contexts: Mapping[str, TaskContext],
    values: Sequence[Any],
    finite: list[bool] | None = None,
) -> Sequence[Any]:
    """Replace values that are not finite by `LOST`, or end the run. The contexts are by node."""
    if call.phase not in LEARNING_PHASES:
        return values
    finite = all_finite(values) if finite is None else finite
    if all(finite):
        return values
    checked = []
    for (node, ctx), value, fine in zip(contexts.items(), values, finite, strict=True):
        if not fine and context.bad_update == "stop":
            raise Diverged(NonFiniteResult(context, call.phase, call.title, node, call.round).ended)
        if not fine:
            ctx.note(**{BAD: 1})
        checked.append(value if fine else LOST)
    return checked


def _report(
    job: Job | JobGroup, contexts: Mapping[str, TaskContext], begun: float, worker: int, ended: float | None = None
) -> Done:
    """Report of a job, or of several of one task in one round."""
    notes = {node: ctx.notes for node, ctx in contexts.items()}
    return Done(job.name, job.title, job.phase, notes, job.round, begun, ended or time.time(), worker)
