"""A run before it is made: what it will send, how much it will compute, and what this machine would need for it.

Bytes come from the closed forms of `theory` with the clients that will really take part. Steps come from the method's
own code, which submits every task to an engine that does none of them. Memory and time are estimates from a second of
measuring. Nothing is trained and nothing is written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headwater.core.sampling import participants
from headwater.core.tree import ROOT
from headwater.engines import ENGINES, chosen
from headwater.planning.memory import memory_of, peak, resident
from headwater.planning.rehearsal import Rehearsed, rehearse
from headwater.planning.schedule import Unit, makespan
from headwater.planning.timing import ASKED, Measured, measure, together
from headwater.planning.traffic import Moved, Size, moved, sizes_of
from headwater.planning.work import Work
from headwater.training.evaluation import cautions
from headwater.training.experiment import Experiment

PHASES = ("train", "distill", "evaluate")


@dataclass(frozen=True)
class Steps:
    """Gradient steps of one task at one kind of place."""

    task: str
    at: str  # clients, leaders, sectors or server
    least: int  # of any round
    most: int
    total: int
    before: int  # the first round
    teachers: int  # the most that any of them has
    asked: int  # samples that teachers are asked about, in all
    stops: bool  # may end early on validation data
    exact: bool


@dataclass(frozen=True)
class Plan:
    """What is known of a run before it is made. `None` stands for what cannot be known."""

    method: str
    data: str
    seed: int
    rounds: int
    clients: Mapping[str, int]
    engine: Mapping[str, Any]
    stacking: Mapping[str, Any]
    models: tuple[Size, ...]
    moved: Moved | None
    steps: tuple[Steps, ...] | None
    memory: Mapping[str, int]
    seconds: Mapping[str, float]
    measured: Mapping[str, Any]
    uncounted: tuple[str, ...]  # tasks that the time leaves out
    cautions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "algorithm": self.method,
            "data": self.data,
            "seed": self.seed,
            "rounds": self.rounds,
            "clients": dict(self.clients),
            "engine": dict(self.engine),
            "stacking": dict(self.stacking),
            "models": [{k: v for k, v in asdict(size).items() if k != "width"} for size in self.models],
            "ledger": None if self.moved is None else self.moved.to_dict(),
            "steps": None if self.steps is None else [asdict(each) for each in self.steps],
            "memory": dict(self.memory),
            "seconds": dict(self.seconds),
            "measured": dict(self.measured),
            "uncounted": list(self.uncounted),
            "cautions": list(self.cautions),
        }


def plan(experiment: Experiment, *, startup: float = 0.0, bare: int | None = None) -> Plan:
    """Plan a run. `startup` and `bare` are the seconds and bytes that a process takes for loading the libraries alone,
    as every worker has to, where somebody knows."""
    config, tree = experiment.config, experiment.tree
    name, workers, why = chosen(config, [experiment])
    ENGINES.load(name)
    held, most = resident(), peak()
    sizes = sizes_of(experiment)
    found = rehearse(experiment)
    works = found.works if found is not None else ()
    began = time.perf_counter()
    measured = measure(experiment, works)
    took = time.perf_counter() - began
    pool = name != "inline"  # on Ray too: what is said is for workers on this machine
    about = memory_of(experiment, found, sizes, measured, pool=pool, workers=workers, now=held, before=most, bare=bare)
    active = participants(tree, config.partition.participation, config.seed, 1)
    return Plan(
        method=config.method,
        data=config.data.name,
        seed=config.seed,
        rounds=config.rounds,
        clients={
            "registered": len(tree.clients),
            "holding": len(tree.holders),
            "taking_part": len(active),
            "sectors": len(tree.sectors),
        },
        engine={
            "name": name,
            "why": why,
            "workers": workers if pool else 1,
            "threads": config.engine.threads,
            "server_threads": config.engine.server_threads or config.engine.threads,
        },
        stacking=experiment.stacking.to_dict(),
        models=tuple(sizes.values()),
        moved=moved(experiment, sizes),
        steps=None if found is None else steps_of(experiment, found),
        memory={"total": about.total, **about.parts},
        seconds=_seconds(experiment, found, measured, workers, startup if pool else 0.0, pool),
        measured={
            "seconds": took,
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            "cores": os.cpu_count() or 1,
            "task": measured.task,
            "step": {arch: rate.seconds(1, measured.batch[arch]) for arch, rate in measured.steps.items()},
            "batch": dict(measured.batch),
            "pass": {arch: rate.seconds(1, ASKED) for arch, rate in measured.passes.items()},
        },
        uncounted=tuple(sorted({work.title for work in works if not work.counted})),
        cautions=tuple(cautions(experiment)),
    )


def steps_of(experiment: Experiment, found: Rehearsed) -> tuple[Steps, ...]:
    """Gradient steps by task and place, in the order in which a round has them."""
    rounds, wanted = found.rounds, experiment.config.rounds
    lots: dict[tuple[str, str], list[Work]] = {}
    for work in found.works:
        if work.steps:
            lots.setdefault((work.title, _place(experiment, work)), []).append(work)
    exact = rounds == wanted and not experiment.config.faults.dropout
    result = []
    for (title, place), works in lots.items():
        each = [0] * (rounds + 1)
        asked = [0] * (rounds + 1)
        for work in works:
            each[work.round] += work.steps
            asked[work.round] += work.asked
        result.append(
            Steps(
                title,
                place,
                min(each[1:]),
                max(each[1:]),
                _whole(each, wanted),
                each[0],
                max(work.teachers for work in works),
                _whole(asked, wanted),
                any(work.stops for work in works),
                exact,
            )
        )
    return tuple(result)


def _whole(each: Sequence[int], wanted: int) -> int:
    """The sum over all rounds and what is before them; rounds beyond those known are like the mean of these."""
    rounds = each[1:]
    return sum(each) + round((wanted - len(rounds)) * sum(rounds[1:] or rounds) / max(1, len(rounds[1:] or rounds)))


def _place(experiment: Experiment, work: Work) -> str:
    if work.job.home == ROOT:
        return "server"
    if work.job.node in experiment.tree.sectors:
        return "leaders" if work.job.home != work.job.node else "sectors"
    return "clients"


def _seconds(
    experiment: Experiment, found: Rehearsed | None, measured: Measured, workers: int, startup: float, pool: bool
) -> dict[str, float]:
    """What each phase takes on one worker, and when all is done. Without a pool, threads share the groups of clients
    that are trained together, and nothing else."""
    if found is None:
        return {}
    hands, workers = (1, workers) if pool else (workers if experiment.stacking.way == "hand" else 1, 1)
    rounds, engine = experiment.config.rounds, experiment.config.engine
    groups, whole = together(found.works), rounds / found.rounds
    at = {group[0].group: position for position, group in enumerate(groups)}
    of = [work.group for work in found.works]
    calls = Counter(group[0].job.key[:-1] for group in groups if len(group) > 1)
    units = []
    phases = dict.fromkeys(PHASES, 0.0)
    for group in groups:
        seconds = measured.seconds(group)
        after = {at[of[number]] for work in group for number in work.after}
        shared = max(1, min(hands, calls[group[0].job.key[:-1]]))
        units.append(Unit(seconds / shared, tuple(sorted(after)), group[0].round))
        times = whole if group[0].round else 1.0  # what prepares a run happens once
        phases[group[0].phase if group[0].phase in phases else "evaluate"] += seconds * times
    first = makespan([unit for unit in units if not unit.round], workers, engine.overlap)
    span = first + (makespan(units, workers, engine.overlap) - first) * whole
    driver = found.seconds * rounds
    spent = startup + (span + driver if workers == 1 else max(span, driver))
    return {"total": spent / left_over(workers * engine.threads), **phases, "startup": startup}


def left_over(wanted: int) -> float:
    """The share of a core that each of so many threads gets, beside whatever else has been running of late."""
    others = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(1.0, (os.cpu_count() or 1) / (others + wanted))
