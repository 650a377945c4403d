"""Events of a run, for progress displays."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headwater.engines.base import Done


class Event(NamedTuple):
    """One event of a run.

    Args:
        kind: start, task, warning, round or end.
        round: number of the round.
        rounds: number of rounds of the run.
        phase: phase of the task: train, distill, evaluate, …
        done: finished tasks of this phase in this round.
        total: submitted tasks of this phase in this round.
        accuracy: the last known test accuracy.
        seconds: since the run began.
        text: sentence of a warning.
    """

    kind: str
    round: int
    rounds: int
    phase: str = ""
    done: int = 0
    total: int = 0
    accuracy: float | None = None
    seconds: float = 0.0
    text: str = ""


class Progress:
    """Counts finished tasks and calls `watch`; without one it does nothing."""

    def __init__(self, watch: Callable[[Event], None] | None, rounds: int) -> None:
        self.watch, self.rounds = watch, rounds
        self.began = time.time()
        self.accuracy: float | None = None  # the last known
        self._finished: Counter[tuple[int, str]] = Counter()  # tasks of open rounds, by round and phase

    def say(self, kind: str, number: int, phase: str = "", done: int = 0, total: int = 0, text: str = "") -> None:
        if self.watch:
            seconds = time.time() - self.began
            self.watch(Event(kind, number, self.rounds, phase, done, total, self.accuracy, seconds, text))

    def task(self, done: Done, submitted: Mapping[tuple[int, str], int]) -> None:
        key = (done.round, done.phase)
        self._finished[key] += len(done.notes)
        self.say("task", *key, self._finished[key], max(self._finished[key], submitted[key]))

    def round_closed(self, number: int) -> None:
        for key in [key for key in self._finished if key[0] <= number]:
            del self._finished[key]
        self.say("round", number)
