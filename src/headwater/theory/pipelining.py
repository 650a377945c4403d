"""Timing model of FedEED's pipelining, compared with sequential rounds and with FedDF.

FedEED keeps K models. A round assigns its active clients to K cohorts. Cohort k trains model k, and the server averages
its models once all of its clients are done. Then the server distils all K averages into model 0 and changes no other.

| schedule | cohort k of round t + 1 begins after |
|---|---|
| `sequential` | distill(t), whatever k |
| `pipelined` | distill(t) for k = 0; its own average of round t for the others, which need nothing else |
| `feddf` | distill(t): one cohort of all active clients, whose own models are the teachers |

Clients execute their jobs in the order of rounds, one at a time. A job starts as soon as the jobs before it have ended
and its client is available. So a job that ends earlier never delays another one, and pipelining is never slower for
the same draws. (If clients executed any job that is ready, a job of a later round could delay model 0.)

Model 0 is on the critical path: its cohort trains, the server distils, and only then its cohort can train again. With
clients that are always available, this takes c + s per round under every schedule. Pipelining shortens the wait for
clients: model 0 waits for the slowest client of one cohort instead of the slowest of all.

>>> there = PipelineSetting(clients=8, rounds=5, work=3.0, server=2.0, cohorts=4)
>>> {name: line.period for name, line in compare(there).items()}
{'sequential': 5.0, 'pipelined': 5.0, 'feddf': 5.0}
>>> scarce = PipelineSetting(8, 5, 3.0, 2.0, presence=scattered(8, share=0.25, period=20.0, seed=0))
>>> compare(scarce)["pipelined"].makespan < compare(scarce)["sequential"].makespan
True
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

Schedule = Literal["sequential", "pipelined", "feddf"]
What = Literal["train", "aggregate", "distill"]
Away = Literal["finish", "pause"]


@dataclass(frozen=True)
class Presence:
    """A client that is available for `on` of every `period`: at time x if (x + phase) mod period < on."""

    on: float
    period: float
    phase: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.on <= self.period < math.inf:
            raise ValueError(
                "a client must be available for more than 0 and at most all of its period, got "
                f"{self.on} of {self.period}"
            )
        if not math.isfinite(self.phase):
            raise ValueError(f"a phase must be finite, got {self.phase}")

    def there(self, time: float) -> bool:
        return self._since(time) < self.on

    def begin(self, time: float) -> float:
        """The first time from `time` on at which the client is available."""
        return time if self.there(time) else (time + self.phase) // self.period * self.period - self.phase + self.period

    def end(self, start: float, work: float, away: Away) -> float:
        """When work that begins at `start` is done. With "pause", it is suspended while the client is not available."""
        since = self._since(start)
        if since >= self.on:  # `start` is before the client is available, by a rounding error
            since = 0.0
        left = self.on - since
        if away == "finish" or work <= left or self.on == self.period:
            return start + work
        whole = math.ceil((work - left) / self.on) - 1  # later periods in which the client works all the time
        return start - since + (whole + 1) * self.period + (work - left - whole * self.on)

    def _since(self, time: float) -> float:
        return (time + self.phase) % self.period


ALWAYS = Presence(1.0, 1.0)


def scattered(clients: int, share: float, period: float, seed: int) -> tuple[Presence, ...]:
    """Clients that are available for this share of a common period, each with its own phase, drawn uniformly."""
    if not 0 < share <= 1:
        raise ValueError(f"the share of time that clients are available must be above 0 and at most 1, got {share}")
    if share == 1:
        return (ALWAYS,) * clients
    phases = np.random.default_rng([seed, 0]).uniform(0, period, size=clients)
    return tuple(Presence(share * period, period, float(phase)) for phase in phases)


@dataclass(frozen=True)
class PipelineSetting:
    """Clients, rounds and durations of a simulated run. All times have the same unit."""

    clients: int  # N
    rounds: int
    work: float | tuple[float, ...]  # c: of every client, or of each
    server: float  # s: a distillation, apart from the teachers' outputs
    cohorts: int = 4  # K
    active: int | None = None  # clients per round; None for all
    presence: tuple[Presence, ...] | None = None  # None: always available
    away: Away = "finish"  # what happens to a job whose client becomes unavailable
    forward: float = 0.0  # added to s for every member of the teacher: K·R models, or FedDF's active clients
    history: int = 1  # R, rounds whose averages teach
    lookahead: int | None = None  # rounds by which pipelined training may be ahead of distillation; None: any, 0: waits
    seed: int = 0  # of who is active and in which cohort

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "cohorts", "history"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.active is not None and not 1 <= self.active <= self.clients:
            raise ValueError(f"active must be from 1 to the {self.clients} clients there are, got {self.active}")
        for name, given in (("work", self.work), ("presence", self.presence)):
            if isinstance(given, tuple) and len(given) != self.clients:
                raise ValueError(f"{name} must be given for each of {self.clients} clients or once, got {len(given)}")
        if not all(0 < each < math.inf for each in self.works):
            raise ValueError(f"work must take a time above 0, got {min(self.works)} to {max(self.works)}")
        for name in ("server", "forward"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a time of 0 or more, got {getattr(self, name)}")
        if self.lookahead is not None and self.lookahead < 0:
            raise ValueError(f"lookahead must be 0 rounds or more, or None, got {self.lookahead}")
        if self.away not in get_args(Away):
            raise ValueError(f'away must be "finish" or "pause", got {self.away!r}')

    @property
    def works(self) -> tuple[float, ...]:
        return self.work if isinstance(self.work, tuple) else (self.work,) * self.clients

    def deal(self, round: int) -> tuple[tuple[int, ...], ...]:
        """The cohorts of a round: clients drawn without replacement, sizes that differ by one at most, larger first."""
        drawn = np.random.default_rng([self.seed, 1, round]).permutation(self.clients)[: self.active]
        return tuple(tuple(int(client) for client in part) for part in np.array_split(drawn, self.cohorts))

    def members(self, schedule: Schedule, round: int) -> int:
        """How many models teach in a round (from 1): each costs a forward pass for every distillation sample."""
        if schedule == "feddf":
            return self.clients if self.active is None else self.active
        return self.cohorts * min(self.history, round)


@dataclass(frozen=True)
class ScheduledJob:
    """One bar of the time line. Averaging takes no time; the server's jobs have no client."""

    what: What
    round: int  # from 1
    cohort: int  # of a distillation, 0: the model it changes
    start: float
    end: float
    client: int | None = None

    @property
    def who(self) -> str:
        return "server" if self.client is None else f"c{self.client}"


@dataclass(frozen=True)
class Timeline:
    """All jobs of a run under one schedule."""

    schedule: Schedule
    setting: PipelineSetting
    jobs: tuple[ScheduledJob, ...]

    @cached_property
    def round_ends(self) -> tuple[float, ...]:
        """When each round's distillation was done."""
        return tuple(job.end for job in self.jobs if job.what == "distill")

    @property
    def makespan(self) -> float:
        return self.round_ends[-1]

    @property
    def period(self) -> float:
        """Mean time from one round's end to the next; of a single round, its length."""
        ends = self.round_ends
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else ends[0]

    @property
    def ahead(self) -> int:
        """The most rounds by which training was ahead of distillation: averages that the server had to keep."""
        return max(job.round - 1 - bisect_right(self.round_ends, job.start) for job in self.jobs if job.what == "train")


def simulate(setting: PipelineSetting, schedule: Schedule) -> Timeline:
    """Simulate all rounds. Nothing depends on a later round, so rounds and cohorts are processed in order."""
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {schedule!r}")
    presence = setting.presence or (ALWAYS,) * setting.clients
    free = [0.0] * setting.clients  # when each client's last job ends
    averaged = [0.0] * setting.cohorts  # when each cohort's latest average is computed
    distilled = [0.0]  # when each round's distillation ends; before round 1 there is nothing to wait for
    ahead = setting.lookahead if schedule == "pipelined" else 0
    jobs: list[ScheduledJob] = []
    for number in range(1, setting.rounds + 1):
        cohorts: Sequence[Sequence[int]] = setting.deal(number)
        if schedule == "feddf":
            cohorts = [[client for cohort in cohorts for client in cohort]]
        for k, cohort in enumerate(cohorts):
            ready = distilled[-1]
            if k and ahead is None:
                ready = averaged[k]
            elif k and ahead:
                ready = max(averaged[k], distilled[max(0, number - 1 - ahead)])
            done = ready  # of a cohort without clients: its model stays as it is
            for client in cohort:
                start = presence[client].begin(max(ready, free[client]))
                free[client] = presence[client].end(start, setting.works[client], setting.away)
                jobs.append(ScheduledJob("train", number, k, start, free[client], client))
                done = max(done, free[client])
            averaged[k] = done
            jobs.append(ScheduledJob("aggregate", number, k, done, done))
        start = max(averaged[: len(cohorts)])
        distilled.append(start + setting.server + setting.forward * setting.members(schedule, number))
        jobs.append(ScheduledJob("distill", number, 0, start, distilled[-1]))
    return Timeline(schedule, setting, tuple(jobs))


def compare(setting: PipelineSetting) -> dict[Schedule, Timeline]:
    """Simulate every schedule with the same draws."""
    return {schedule: simulate(setting, schedule) for schedule in get_args(Schedule)}
