"""Simulated client availability."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headwater.core.rng import stream
from headwater.engines.execution import LEARNING_PHASES
from headwater.engines.jobs import Job
from headwater.tasks.task import RunContext


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
