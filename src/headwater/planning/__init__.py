"""Plans a run: what it will send, how much it will compute, and the memory and time that it needs on this machine.

Bytes and steps come from a rehearsal of the method's own code: it submits every task and makes every move, but no task
is executed. Memory and time are estimated from measurements of about one second. Nothing is trained or written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headwater.core.ledger import DOWN, TIERS, UP
from headwater.core.links import Links
from headwater.core.sampling import participants
from headwater.core.tree import ROOT
from headwater.engines import ENGINES, choose_engine
from headwater.planning.planned_traffic import PlannedTraffic
from headwater.planning.rehearsal import Rehearsal, Work, rehearse
from headwater.planning.resources import ModelSize, device_of, load, memory_of, model_sizes, peak, resident, seconds_of
from headwater.planning.timing import ASKED, measure
from headwater.report.notebook import bar, card, sectors
from headwater.report.numbers import count, duration, size
from headwater.tasks.devices import CPU, meant
from headwater.training.experiment import Experiment
from headwater.training.remarks import cautions
from headwater.training.spending import Spending

LINKS = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}


@dataclass(frozen=True)
class Steps:
    """Gradient steps of one task at one kind of place.

    Args:
        task: name of the task.
        at: "clients", "leaders", "sectors" or "server".
        least: fewest steps in any round.
        most: most steps in any round.
        total: steps in the whole run.
        before: steps before the first round.
        teachers: the most teachers that any of these tasks has.
        asked: samples for which teachers give outputs, in the whole run.
        stops: whether they may end early on validation data.
        exact: whether these numbers contain no estimate.
    """

    task: str
    at: str
    least: int
    most: int
    total: int
    before: int
    teachers: int
    asked: int
    stops: bool
    exact: bool


@dataclass(frozen=True, repr=False)
class Plan:
    """Plan of a run. None stands for a quantity that cannot be predicted.

    Args:
        method: name of the method.
        data: name of the data set.
        seed: of the run.
        rounds: of the run.
        clients: how many are registered, hold data and take part in the first round, and how many sectors there are.
        engine: its name, why it was chosen, workers and threads.
        device: where tasks compute, whether this machine has it, and for a GPU the bytes that one process needs there.
        stacking: how clients are trained.
        models: sizes of the architectures.
        traffic: what is moved.
        steps: gradient steps by task and place.
        memory: bytes by purpose.
        seconds: seconds by phase, and in total.
        transfer: simulated seconds of sending over the links of `[links]`, of a round and in total.
        measured: measurements that the time is estimated from.
        uncounted: tasks that are not included in the time.
        unknown: tasks whose results are moved but have no known size.
        cautions: warnings about the configuration.
        privacy: what the noise of `[privacy]` will be worth, as the result will say it; empty without noise.
    """

    method: str
    data: str
    seed: int
    rounds: int
    clients: Mapping[str, int]
    engine: Mapping[str, Any]
    device: Mapping[str, Any]
    stacking: Mapping[str, Any]
    models: tuple[ModelSize, ...]
    traffic: PlannedTraffic | None
    steps: tuple[Steps, ...] | None
    memory: Mapping[str, int]
    seconds: Mapping[str, float]
    transfer: Mapping[str, float]
    measured: Mapping[str, Any]
    uncounted: tuple[str, ...]
    unknown: tuple[str, ...]
    cautions: tuple[str, ...]
    privacy: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        clients = f"{self.clients['holding']} clients, {self.rounds} rounds"
        sent = size(_sent(self.traffic)) if self.traffic else "not known"
        memory, seconds = size(self.memory["total"]), duration(self.seconds.get("total"))
        return f"<Plan of {self.method} on {self.data}: {clients}\n {sent} sent, {memory} of memory, about {seconds}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str]] = [
            ("clients", f"{count(self.clients['holding'])} in {sectors(self.clients['sectors'])}"),
            ("model", ", ".join(f"{m.name}: {count(m.numbers)} numbers, {size(m.bytes)}" for m in self.models)),
        ]
        totals = {t: [self.traffic.total[t][f"{d}_bytes"] for d in (UP, DOWN)] for t in TIERS} if self.traffic else {}
        most = max(map(sum, totals.values()), default=0) or 1
        for tier, words in LINKS.items() if totals else ():
            up, down = totals[tier]
            rows.append((words, f"{size(up)} up, {size(down)} down in {count(self.rounds)} rounds"))
            rows.append(("", bar((up + down) / most, f"{words}: {size(up + down)}")))
        for each in self.steps or ():
            what = "local" if each.task == "local_train" else each.task
            rows.append((f"{what} steps", f"{count(each.total)} at {each.at}, up to {count(each.most)} a round"))
        if self.transfer:
            rows.append(("simulated sending", f"{duration(self.transfer['a_round'])} a round"))
        if self.privacy:
            rows.append(("privacy", self.privacy["sentence"]))
        rows.append(("memory", f"about {size(self.memory['total'])}"))
        rows.append(("time", f"about {duration(self.seconds.get('total'))} on {self.engine['name']}"))
        return card(f"Plan of {self.method} on {Path(self.data).name}", rows, notes=self.cautions)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        names = {"method": "algorithm", "traffic": "ledger"}
        values = {
            names.get(key, key): list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key != "unknown"
        }
        return values | {"ledger": None if self.traffic is None else self.traffic.to_dict()}


def plan(experiment: Experiment, *, startup: float = 0.0, bare: int | None = None) -> Plan:
    """Plan a run.

    Args:
        experiment: the run.
        startup: seconds that a process takes to load the libraries, as every worker has to.
        bare: bytes of a process that has loaded the libraries and no data, if known.
    """
    config, tree = experiment.config, experiment.tree
    name, workers, why = choose_engine(config, [experiment])
    ENGINES.load(name)
    now, before = resident(), peak()
    sizes = model_sizes(experiment)
    rehearsal = rehearse(experiment)
    works = rehearsal.works if rehearsal is not None else ()
    began = time.perf_counter()
    others = load()
    measured = measure(experiment, works)
    took = time.perf_counter() - began
    on_cpu = meant(config.engine.device)[0] == CPU
    pool = name != "inline"  # on Ray too: the estimate is for workers on this machine
    active = participants(tree, config.partition.participation, config.seed, 1)
    traffic = None if rehearsal is None else rehearsal.traffic
    spending = Spending(experiment)
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
        device=device_of(experiment, sizes, measured),
        stacking=experiment.stacking.to_dict(),
        models=tuple(sizes.values()),
        traffic=traffic,
        steps=None if rehearsal is None else steps_of(experiment, rehearsal),
        memory=memory_of(
            experiment, rehearsal, sizes, measured, pool=pool, workers=workers, now=now, before=before, bare=bare
        ),
        # What is measured is the CPU: it tells nothing about the time of a GPU.
        seconds=seconds_of(experiment, rehearsal, measured, workers, startup if pool else 0.0, pool, others)
        if on_cpu
        else {},
        transfer={} if traffic is None else traffic.transfer(Links(**config.links.model_dump()), len(tree.sectors)),
        measured={
            "seconds": took,
            "load": others,
            "cores": os.cpu_count() or 1,
            "task": measured.task,
            "step": {arch: rate.seconds(1, measured.batch[arch]) for arch, rate in measured.steps.items()},
            "batch": dict(measured.batch),
            "pass": {arch: rate.seconds(1, ASKED) for arch, rate in measured.passes.items()},
        },
        uncounted=tuple(sorted({work.job.title for work in works if not work.cost.known})),
        unknown=() if rehearsal is None else rehearsal.unknown,
        cautions=tuple(cautions(experiment, spending)),
        privacy=spending.report(spending.last),
    )


def steps_of(experiment: Experiment, rehearsal: Rehearsal) -> tuple[Steps, ...]:
    """Gradient steps by task and place, in the order in which a round has them."""
    rounds, wanted = rehearsal.rounds, experiment.config.rounds
    by_task: dict[tuple[str, str], list[Work]] = {}
    for work in rehearsal.works:
        if work.cost.steps:
            by_task.setdefault((work.job.title, _place(experiment, work)), []).append(work)
    exact = rounds == wanted and not experiment.config.faults.dropout
    result = []
    for (title, place), works in by_task.items():
        steps = [0] * (rounds + 1)
        asked = [0] * (rounds + 1)
        for work in works:
            steps[work.job.round] += work.cost.steps
            asked[work.job.round] += work.cost.asked
        result.append(
            Steps(
                title,
                place,
                min(steps[1:]),
                max(steps[1:]),
                _whole(steps, wanted),
                steps[0],
                max(work.cost.teachers for work in works),
                _whole(asked, wanted),
                any(work.cost.stops for work in works),
                exact,
            )
        )
    return tuple(result)


def _sent(traffic: PlannedTraffic) -> int:
    return sum(traffic.total[tier][f"{way}_bytes"] for tier in TIERS for way in (UP, DOWN))


def _whole(each: Sequence[int], wanted: int) -> int:
    """The sum over the setup and all rounds. Rounds that were not rehearsed count as a mean of those that were."""
    rounds = each[1:]
    return sum(each) + round((wanted - len(rounds)) * sum(rounds[1:] or rounds) / max(1, len(rounds[1:] or rounds)))


def _place(experiment: Experiment, work: Work) -> str:
    if work.job.home == ROOT:
        return "server"
    if work.job.node in experiment.tree.sectors:
        return "leaders" if work.job.home != work.job.node else "sectors"
    return "clients"
