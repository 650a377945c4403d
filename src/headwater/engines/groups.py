"""Groups of jobs that are carried out as one: those that wait for their inputs, and those that are being computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from headwater.engines.base import Done, Job, Ref
from headwater.engines.execution import Fetch, Group
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.task import RunContext


class Jobs:
    """Several jobs of one task that are carried out as one, under one name."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.jobs, self.name = jobs, jobs[0].name
        self._refs = tuple(ref for job in jobs for ref in job.refs())
        self.uses = Counter([ref.name for ref in self._refs])
        self.needs = dict.fromkeys(ref.name for job in jobs if not job.lost for ref in job.refs())

    def refs(self) -> tuple[Ref, ...]:
        return self._refs


class Waiting(NamedTuple):
    group: Group
    helped: bool  # whether a helper computes it: all that takes longer than to wait for one who is free


class Groups:
    """Those of one run. With `helpers`, a stack is computed by one of them; other groups are computed at once."""

    def __init__(self, context: RunContext, helpers: Helpers | None) -> None:
        self._context, self._helpers = context, helpers
        self._waiting: dict[str, tuple[Jobs, Waiting]] = {}  # in the order of submission
        self._begun: dict[str, tuple[Group, Future[None]]] = {}

    def __bool__(self) -> bool:
        """Whether any of them waits."""
        return bool(self._waiting)

    def add(self, jobs: Jobs) -> None:
        """A group that is to be computed."""
        helped = self._helpers is not None and getattr(jobs.jobs[0].task, "stacked", False)
        self._waiting[jobs.name] = jobs, Waiting(Group(jobs.jobs, self._context), helped)

    def claim(self, name: str) -> Waiting:
        """A group that is going to be begun, and that nobody else should begin."""
        return self._waiting.pop(name)[1]

    def begin(self, name: str, waiting: Waiting, fetch: Fetch) -> None:
        """Bring a group's inputs together, and have it computed."""
        group, helped = waiting
        group.take(fetch)
        if self._helpers is None or not helped:
            ready: Future[None] = Future()
            group.work()
            ready.set_result(None)
        else:
            ready = self._helpers.begin(group.work)
        self._begun[name] = group, ready

    def next_ready(self, there: Callable[[str], bool]) -> Jobs | None:
        """A group that helpers should begin, since they soon have nothing to do, and whose inputs are all there."""
        if self._helpers is None or len(self._begun) > self._helpers.count:
            return None
        for jobs, waiting in self._waiting.values():
            if waiting.helped and all(map(there, jobs.needs)):
                return jobs
        return None

    def begun(self, name: str) -> bool:
        return name in self._begun

    def finished(self, name: str) -> tuple[Mapping[str, Any], Done]:
        """Values by node and the report of a group that was begun. Rather than wait, this thread computes what nobody
        is at yet."""
        group, ready = self._begun[name]
        for other, turn in ((group, ready), *self._begun.values()):
            if not ready.done() and not turn.done() and turn.cancel():
                other.work()
        if not ready.cancelled():
            ready.result()
        del self._begun[name]
        return group.finished()
