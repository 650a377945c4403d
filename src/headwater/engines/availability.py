"""When clients are there: each comes and goes at its own times, which decide when a task begins and nothing else."""

from __future__ import annotations

import time

from headwater.core.rng import stream
from headwater.engines.base import Job
from headwater.tasks.task import RunContext


class Presence:
    """A client is there for the first `availability` of each period; its periods begin at a moment of its own."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._began = context, time.monotonic()
        self._shift: dict[str, float] = {}

    def wait(self, job: Job) -> float:
        """Seconds until this job may begin: only training and distilling at a client ever wait."""
        context = self._context
        if context.availability >= 1 or job.phase not in ("train", "distill") or job.home not in context.rows:
            return 0.0
        if job.home not in self._shift:
            self._shift[job.home] = stream(context.seed, "availability", job.home).random() * context.period
        since = (time.monotonic() - self._began + self._shift[job.home]) % context.period
        return 0.0 if since < context.availability * context.period else context.period - since
