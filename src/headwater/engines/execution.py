"""How jobs are carried out: all that happens at a home, on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from headwater.engines.base import LOST, Bundle, Done, Job, LostInput, Ref, Stream, resolve
from headwater.engines.health import BAD, Complaint, sound
from headwater.errors import Diverged, TaskError, UserError
from headwater.rng import derive
from headwater.stages.site import Context, Site

Fetch = Callable[[Ref], Any]


def execute(
    job: Job, context: Context, fetch: Fetch, release: Callable[[Ref], None], worker: int = 0
) -> tuple[Any, Done]:
    """Carry out one job: its value and the report."""
    begun = time.time()
    site = Site(context, job.home, job.key)
    streamed = {name for name in getattr(job.task, "streaming", ()) if isinstance(job.inputs.get(name), Bundle)}
    value: Any = LOST
    with _told(job):
        given = _given(job, fetch, streamed)
        if given is not None:
            given |= {name: Stream(job.inputs[name].refs, fetch, release) for name in streamed}
            value = _alone(job, context, site, given)
    value = _judged(job, context, site, value)
    return value, _report(job, site, begun, time.time(), worker)


def execute_together(
    jobs: Sequence[Job], context: Context, fetch: Fetch, worker: int = 0, hands: int = 1
) -> list[tuple[Any, Done]]:
    """Carry out jobs of one task as one, `hands` of them at a time where that is of use.

    The task's `together` takes the jobs that it can; the others are carried out one by one. In the time line every job
    has an equal part of the time that all took.
    """
    begun = time.time()
    sites = [Site(context, job.home, job.key) for job in jobs]
    values: list[Any] = [LOST] * len(jobs)
    given: dict[int, dict[str, Any]] = {}
    for at, job in enumerate(jobs):
        with _told(job):
            found = _given(job, fetch, set())
        if found is not None:
            given[at] = found
    with _told(jobs[0], len(jobs)):
        together = jobs[0].task.together([sites[at] for at in given], list(given.values()), hands)  # type: ignore[attr-defined]
    for at, value in zip(given, together, strict=True):
        if value is None:
            with _told(jobs[at]):
                value = _alone(jobs[at], context, sites[at], given[at])
        values[at] = _judged(jobs[at], context, sites[at], value)
    each = (time.time() - begun) / len(jobs)
    spans = [(begun + at * each, begun + (at + 1) * each) for at in range(len(jobs))]
    reports = [_report(job, site, *span, worker) for job, site, span in zip(jobs, sites, spans, strict=True)]
    return list(zip(values, reports, strict=True))


def _given(job: Job, fetch: Fetch, streamed: set[str]) -> dict[str, Any] | None:
    """The inputs with values in place of names; None where the job or an input was lost."""
    for ref in job.refs():
        if ref.home != job.home:
            raise TaskError(f"{job.title} at {job.node} was given a value that lives at {ref.home}, not at {job.home}")
    if job.lost:
        return None
    rest = [(name, item) for name, item in job.inputs.items() if name not in streamed]
    try:
        return {name: item if name in job.plain else resolve(item, fetch) for name, item in rest}
    except LostInput:
        return None


def _alone(job: Job, context: Context, site: Site, given: dict[str, Any]) -> Any:
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(derive(context.seed, "torch", *job.key))
        return job.task(site, **given)
    except LostInput:
        return LOST
    finally:  # chance outside tasks is not ours
        torch.default_generator.set_state(before)


@contextmanager
def _told(job: Job, count: int = 1) -> Iterator[None]:
    """Whatever goes wrong in a task is told with its name and place."""
    try:
        yield
    except (KeyboardInterrupt, TaskError, UserError):
        raise
    except Exception as error:
        others = f" and {count - 1} more" if count > 1 else ""
        raise TaskError(
            f"{job.title} at {job.node} (home {job.home}){others} failed: {type(error).__name__}: {error}"
        ) from error


def _judged(job: Job, context: Context, site: Site, value: Any) -> Any:
    """A value that is not made of numbers counts as lost, or ends the run."""
    if job.phase not in ("train", "distill") or value is LOST or sound(value):
        return value
    if context.bad_update == "stop":
        raise Diverged(Complaint(context, job.phase, job.title, job.node, job.round).ended)
    site.note(**{BAD: 1})
    return LOST


def _report(job: Job, site: Site, start: float, end: float, worker: int) -> Done:
    return Done(job.name, job.title, job.phase, job.node, job.round, site.notes, start, end, worker)
