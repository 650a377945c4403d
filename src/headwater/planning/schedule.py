"""When a run would be done: the works of its rounds, handed to workers as a pool of them does it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Something that one worker does at a stretch. `after` are positions of earlier units."""

    seconds: float
    after: tuple[int, ...] = ()
    round: int = 0


def makespan(units: Sequence[Unit], workers: int, overlap: bool = True) -> float:
    """Seconds until all is done: whoever is free takes the first unit that can begin.

    >>> makespan([Unit(3), Unit(2), Unit(2), Unit(1, after=(0, 1, 2))], workers=2)
    5.0
    """
    if workers <= 1:
        return float(sum(unit.seconds for unit in units))
    if not overlap:  # a round waits for all of the one before
        rounds = sorted({unit.round for unit in units})
        return sum(_span([(at, u) for at, u in enumerate(units) if u.round == number], workers) for number in rounds)
    return _span(list(enumerate(units)), workers)


def _span(units: Sequence[tuple[int, Unit]], workers: int) -> float:
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
