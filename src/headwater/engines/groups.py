"""The scheduler of job groups in the inline engine; `job_groups` says what such a group is.

It holds groups that wait for inputs, and groups that are being computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from headwater.engines.base import Done
from headwater.engines.execution import Fetch, GroupExecution
from headwater.engines.job_groups import JobGroup
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.task import RunContext


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
        threaded = self._helpers is not None and getattr(group.task, "stacked", False)
        self._pending[group.name] = group, PendingGroup(GroupExecution(group, self._context), threaded)

    def claim(self, name: str) -> PendingGroup:
        """Remove a group from the pending ones, so that it is begun only once."""
        return self._pending.pop(name)[1]

    def begin(self, name: str, pending: PendingGroup, fetch: Fetch) -> None:
        """Prepare a group and have it computed."""
        execution, threaded = pending
        execution.prepare(fetch)
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

    def results(self, name: str) -> tuple[Sequence[Any], Done]:
        """Return the value of each node, and the report, of a group that was begun.

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
