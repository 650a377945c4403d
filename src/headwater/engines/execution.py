"""How jobs are carried out: all that happens at a home, on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from headwater.engines.base import LOST, Bundle, Done, Job, LostInput, Ref, Stream, resolve
from headwater.engines.health import BAD, Complaint, all_sound
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
    (value,) = _judged([job], context, [site], [value])
    return value, _reports([job], [site], begun, worker)[0]


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
            found = _given(job, fetch)
        if found is not None:
            given[at] = found
    with _told(jobs[0], len(jobs)):
        together = jobs[0].task.together([sites[at] for at in given], list(given.values()), hands)  # type: ignore[attr-defined]
    for at, value in zip(given, together, strict=True):
        if value is None:
            with _told(jobs[at]):
                value = _alone(jobs[at], context, sites[at], given[at])
        values[at] = value
    values = _judged(jobs, context, sites, values)
    return list(zip(values, _reports(jobs, sites, begun, worker), strict=True))


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


def _alone(job: Job, context: Context, site: Site, given: dict[str, Any]) -> Any:
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(derive(context.seed, "torch", *job.key))
        return job.task(site, **given)
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


def _judged(jobs: Sequence[Job], context: Context, sites: Sequence[Site], values: list[Any]) -> list[Any]:
    """A value that is not made of numbers counts as lost, or ends the run; the jobs are of one task."""
    if jobs[0].phase not in ("train", "distill"):
        return values
    found = []
    for job, site, value, fine in zip(jobs, sites, values, all_sound(values), strict=True):
        if not fine and context.bad_update == "stop":
            raise Diverged(Complaint(context, job.phase, job.title, job.node, job.round).ended)
        if not fine:
            site.note(**{BAD: 1})
        found.append(value if fine else LOST)
    return found


def _reports(jobs: Sequence[Job], sites: Sequence[Site], begun: float, worker: int) -> list[Done]:
    """Of jobs of one task in one round, each with an equal part of the time since they were begun."""
    title, phase, round = jobs[0].title, jobs[0].phase, jobs[0].round
    each = (time.time() - begun) / len(jobs)
    return [
        Done(job.name, title, phase, job.node, round, site.notes, begun + at * each, begun + (at + 1) * each, worker)
        for at, (job, site) in enumerate(zip(jobs, sites, strict=True))
    ]
