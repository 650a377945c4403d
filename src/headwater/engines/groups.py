"""Job groups of the inline engine: those that wait for inputs, and those that are being computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from headwater.engines.base import Done
from headwater.engines.execution import Fetch, GroupExecution
from headwater.engines.jobs import Job, Ref, refs_in
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.task import RunContext


class JobGroup:
    """Several jobs of one task that are executed as one, under one name."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.jobs, self.name = jobs, jobs[0].name
        self._refs = tuple(ref for job in jobs for ref in job.refs())
        self.uses = Counter([ref.name for ref in self._refs])
        self.needs = dict.fromkeys(ref.name for job in jobs if not job.lost for ref in job.refs())

    def refs(self) -> tuple[Ref, ...]:
        return self._refs


def uses_of(job: Job | JobGroup) -> Counter[str]:
    """Return how often a job names each of its inputs."""
    return job.uses if isinstance(job, JobGroup) else Counter([ref.name for ref in job.refs()])


def unstreamed_refs(job: Job) -> Sequence[Ref]:
    """Return the refs of a job, without those of its streaming inputs."""
    streamed = getattr(job.task, "streaming", ())
    return refs_in([x for name, x in job.inputs.items() if name not in streamed]) if streamed else job.refs()


class PendingGroup(NamedTuple):
    execution: GroupExecution
    threaded: bool  # whether a helper thread computes it, which pays only for groups that take long enough


class GroupScheduler:
    """Groups of one run.

    Args:
        context: the run.
        helpers: threads that compute stacked groups. Other groups, or all without helpers, are computed at once by the
            calling thread.
    """

    def __init__(self, context: RunContext, helpers: Helpers | None) -> None:
        self._context, self._helpers = context, helpers
        self._pending: dict[str, tuple[JobGroup, PendingGroup]] = {}  # in the order of submission
        self._begun: dict[str, tuple[GroupExecution, Future[None]]] = {}

    def __bool__(self) -> bool:
        """Whether any group is pending."""
        return bool(self._pending)

    def add(self, group: JobGroup) -> None:
        threaded = self._helpers is not None and getattr(group.jobs[0].task, "stacked", False)
        self._pending[group.name] = group, PendingGroup(GroupExecution(group.jobs, self._context), threaded)

    def claim(self, name: str) -> PendingGroup:
        """Remove a group from the pending ones, so that it is begun only once."""
        return self._pending.pop(name)[1]

    def begin(self, name: str, pending: PendingGroup, fetch: Fetch) -> None:
        """Fetch a group's inputs and have it computed."""
        execution, threaded = pending
        execution.fetch_inputs(fetch)
        if self._helpers is None or not threaded:
            computed: Future[None] = Future()
            execution.compute()
            computed.set_result(None)
        else:
            computed = self._helpers.begin(execution.compute)
        self._begun[name] = execution, computed

    def next_ready(self, available: Callable[[str], bool]) -> JobGroup | None:
        """Return a pending group whose inputs are all available, if helper threads are or will soon be idle."""
        if self._helpers is None or len(self._begun) > self._helpers.count:
            return None
        for group, pending in self._pending.values():
            if pending.threaded and all(map(available, group.needs)):
                return group
        return None

    def begun(self, name: str) -> bool:
        return name in self._begun

    def results(self, name: str) -> tuple[Mapping[str, Any], Done]:
        """Return node → value, and the report, of a group that was begun.

        Rather than wait, the calling thread computes groups that no helper thread has taken yet.
        """
        execution, computed = self._begun[name]
        for other, future in ((execution, computed), *self._begun.values()):
            if not computed.done() and not future.done() and future.cancel():
                other.compute()
        if not computed.cancelled():
            computed.result()
        del self._begun[name]
        return execution.results()
