"""How long a run takes: its works, with the measured times, are given to workers as an engine does it."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.planning.rehearsal import Rehearsal
from headwater.planning.timing import Measured, together
from headwater.training.experiment import Experiment

PHASES = ("train", "distill", "evaluate")


def seconds_of(
    experiment: Experiment, rehearsal: Rehearsal | None, measured: Measured, workers: int, startup: float, pool: bool
) -> dict[str, float]:
    """Seconds of each phase on one worker, and of the whole run.

    Without a pool, threads share only the groups of clients that are trained together.
    """
    if rehearsal is None:
        return {}
    threads, workers = (1, workers) if pool else (workers if experiment.stacking.way == "hand" else 1, 1)
    rounds, engine = experiment.config.rounds, experiment.config.engine
    groups, repeated = together(rehearsal.works), rounds / rehearsal.rounds
    position = {group[0].group: at for at, group in enumerate(groups)}
    group_of = [work.group for work in rehearsal.works]
    calls = Counter(group[0].job.key[:-1] for group in groups if len(group) > 1)
    timed = []
    phases = dict.fromkeys(PHASES, 0.0)
    for group in groups:
        job, seconds = group[0].job, measured.seconds(group)
        after = {position[group_of[number]] for work in group for number in work.after}
        shared = max(1, min(threads, calls[job.key[:-1]]))
        timed.append(TimedWork(seconds / shared, tuple(sorted(after)), job.round))
        times = repeated if job.round else 1.0  # the setup happens once
        phases[job.phase if job.phase in phases else "evaluate"] += seconds * times
    setup = makespan([work for work in timed if not work.round], workers, engine.overlap)
    span = setup + (makespan(timed, workers, engine.overlap) - setup) * repeated
    driver = rehearsal.seconds * rounds
    spent = startup + (span + driver if workers == 1 else max(span, driver))
    return {"total": spent / _cpu_share(workers * engine.threads), **phases, "startup": startup}


def _cpu_share(threads: int) -> float:
    """CPU share per thread, given the current load average."""
    return min(1.0, (os.cpu_count() or 1) / (load() + threads))


def load() -> float:
    """The load average of the last minute; 0 where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


@dataclass(frozen=True)
class TimedWork:
    """What one worker does without a break. `after` are positions of earlier works that it needs."""

    seconds: float
    after: tuple[int, ...] = ()
    round: int = 0


def makespan(units: Sequence[TimedWork], workers: int, overlap: bool = True) -> float:
    """Seconds until all works are done, if a free worker takes the first one that can begin.

    >>> makespan([TimedWork(3), TimedWork(2), TimedWork(2), TimedWork(1, after=(0, 1, 2))], workers=2)
    5.0
    """
    if workers <= 1:
        return float(sum(unit.seconds for unit in units))
    if not overlap:  # a round waits for all of the one before
        rounds = sorted({unit.round for unit in units})
        return sum(_span([(at, u) for at, u in enumerate(units) if u.round == number], workers) for number in rounds)
    return _span(list(enumerate(units)), workers)


def _span(units: Sequence[tuple[int, TimedWork]], workers: int) -> float:
    here = {at for at, _ in units}
    waits = {at: {other for other in unit.after if other in here} for at, unit in units}
    users: dict[int, list[int]] = {}
    for at, others in waits.items():
        for other in others:
            users.setdefault(other, []).append(at)
    lengths = {at: unit.seconds for at, unit in units}
    ready = [at for at, others in waits.items() if not others]
    heapq.heapify(ready)
    busy: list[tuple[float, int]] = []
    now = 0.0
    while ready or busy:
        while ready and len(busy) < workers:
            at = heapq.heappop(ready)
            heapq.heappush(busy, (now + lengths[at], at))
        now, done = heapq.heappop(busy)
        for user in users.get(done, ()):
            waits[user].discard(done)
            if not waits[user]:
                heapq.heappush(ready, user)
    return now
