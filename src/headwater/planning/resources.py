"""What a run needs on this machine: the sizes of its models, its memory and its time.

The time is that of a simulated engine, which gives works with measured durations to workers.
"""

from __future__ import annotations

import heapq
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.engines.workers.spill_cache import budget_of
from headwater.models.base import ModelSpec
from headwater.planning.rehearsal import Rehearsal
from headwater.planning.timing import Measured, together
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.cost import shaped_model
from headwater.tasks.devices import CPU, meant
from headwater.tasks.frozen_part import frozen_size
from headwater.training.experiment import Experiment

OPTIMIZER_STATE = {"sgd": 0, "adam": 2, "adamw": 2}  # vectors that an optimiser keeps beside the model
STREAMED = 2  # models that an average holds: the sum so far and the one that is added
PHASES = ("train", "distill", "evaluate")
LOOKS, PAUSE = 20, 0.01  # how often the threads that want a core are counted, and seconds in between


@dataclass(frozen=True)
class ModelSize:
    """A model as it is trained and as it travels.

    Args:
        name: its architecture.
        numbers: trainable parameters.
        bytes: of all parameters, buffers and counters that travel.
        clients: how many clients train it.
        frozen: bytes of what is frozen, which is sent once.
    """

    name: str
    numbers: int
    bytes: int
    clients: int
    frozen: int = 0


def model_size(spec: ModelSpec, name: str, clients: int = 0) -> ModelSize:
    """Size of a model that so many clients train."""
    outline = shaped_model(spec, name)
    return ModelSize(name, outline.layout.size, outline.nbytes, clients, frozen_size(spec))


def model_sizes(experiment: Experiment) -> dict[str, ModelSize]:
    """Sizes of all architectures of a run, by name."""
    tree = experiment.tree
    clients = Counter({tree.archs[0]: len(tree.holders)})
    if len(tree.archs) > 1:
        clients = Counter(tree.arch(client) for client in tree.holders)
    return {name: model_size(spec, name, clients[name]) for name, spec in experiment.models.items()}


def resident() -> int:
    """Bytes of this process in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak()
    return pages * resource.getpagesize()


def peak() -> int:
    """The most bytes that this process ever had in memory."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def data_bytes(experiment: Experiment) -> int:
    """Bytes of all data of a run."""
    split = experiment.split
    tables = [split.train.x, split.train.y, split.validation.x, split.validation.y, split.reference]
    return int(sum(table.nbytes for table in (*tables, split.test.x, split.test.y)))


def memory_of(
    experiment: Experiment,
    rehearsal: Rehearsal | None,
    sizes: Mapping[str, ModelSize],
    measured: Measured,
    *,
    pool: bool,
    workers: int,
    now: int,
    before: int,
    bare: int | None,
) -> dict[str, int]:
    """Bytes that a run needs in all processes together, by what they are for. Shared memory is counted once.

    Args:
        experiment: the run.
        rehearsal: its tasks, if they are known.
        sizes: sizes of its models.
        measured: what a step keeps for its backward pass.
        pool: whether workers are processes of their own.
        workers: how many there are.
        now: bytes of this process before anything was measured: interpreter, libraries and data.
        before: the most that this process had until then.
        bare: bytes of a process that has loaded the libraries and no data, if known.
    """
    model = max(size.bytes for size in sizes.values())
    data = data_bytes(experiment)
    specs = [getattr(experiment.method, name, None) for name in experiment.method.__dataclass_fields__]  # type: ignore[attr-defined]
    stages = [spec for spec in specs if isinstance(spec, LocalSpec | DistillSpec)]
    state = max((OPTIMIZER_STATE[spec.optimizer] + bool(spec.momentum) for spec in stages), default=0)
    works = rehearsal.works if rehearsal is not None else ()
    at_once = max((work.models for work in works), default=0)
    first = [work for work in works if work.job.round == 1]
    trained = max(1, sum(work.job.phase == "train" and work.cost.steps > 0 for work in first))
    kept = rehearsal.kept if rehearsal is not None else 1
    largest = max((work.cost.samples and _rows(experiment, work.job.home) for work in first), default=0)
    row = experiment.split.train.x[0].nbytes + 8 if len(experiment.split.train) else 0
    # Per worker: the module with its gradients, the optimiser's state, a copy to return and one to restore.
    frozen = sum(size.frozen for size in sizes.values())  # once a process
    # Stacks of another kind are of models so small that they do not matter here.
    by_vmap = experiment.stacking.way == "vmap" and meant(experiment.config.engine.device)[0] == CPU
    stacked = min(trained, experiment.stacking.width) if by_vmap else 1
    training = frozen + stacked * ((4 + state) * model + max(measured.saved.values(), default=0) + largest * row)
    models = (kept + (trained if pool else max(at_once, STREAMED))) * model
    models = min(models, budget_of(experiment.config.engine.memory))  # values beyond it are on disk
    parts = {"process and data": now, "models": models, "training": training * (workers if pool else 1)}
    if pool:
        parts["workers"] = workers * (max(0, now - data) if bare is None else bare)
        parts["data for workers"] = data
    if (more := before - sum(parts.values())) > 0:  # the run itself needs less than reading its data did
        parts["reading the data"] = more
    return {"total": sum(parts.values()), **parts}


def device_of(experiment: Experiment, sizes: Mapping[str, ModelSize], measured: Measured) -> dict[str, Any]:
    """The device of a run, whether this machine has it, and bytes that one process needs on a GPU, estimated."""
    engine = experiment.config.engine
    device, present = meant(engine.device)
    facts: dict[str, Any] = {"name": str(device), "present": present, "precision": engine.precision}
    if device == CPU:
        return facts
    model, split = max(size.bytes for size in sizes.values()), experiment.split
    specs = (value for value in vars(experiment.method).values() if isinstance(value, LocalSpec | DistillSpec))
    state = max((OPTIMIZER_STATE[spec.optimizer] + bool(spec.momentum) for spec in specs), default=0)
    width = experiment.stacking.width
    training = width * ((3 + state) * model + max(measured.saved.values(), default=0))  # inputs, weights, gradients
    outputs = len(split.reference) * split.classes * 4 * 3  # mean, targets and one teacher's
    rows = data_bytes(experiment)
    parts = {"training": training, "teachers' outputs": outputs, "rows": rows}
    return facts | {"memory": {"total": sum(parts.values()), **parts}}


def _rows(experiment: Experiment, home: str) -> int:
    tree = experiment.tree
    return int(tree.client_sizes[home]) if home in tree.sector_of else len(experiment.split.train)


def seconds_of(
    experiment: Experiment,
    rehearsal: Rehearsal | None,
    measured: Measured,
    workers: int,
    startup: float,
    pool: bool,
    others: float,
) -> dict[str, float]:
    """Seconds of each phase on one worker, and of the whole run: beside `others` that want a core, and without them.

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
    used = max(workers, threads) * engine.threads
    idle = spent / _cpu_share(used, 0.0)
    return {"total": spent / _cpu_share(used, others), "idle": idle, **phases, "startup": startup}


def _cpu_share(threads: int, others: float) -> float:
    """CPU share per thread beside so many other threads that want a core."""
    return min(1.0, (os.cpu_count() or 1) / (others + threads))


def load() -> float:
    """How many other threads want a core; 0 where the system does not tell.

    The load average of the last minute still holds what ended meanwhile, such as the run that one has just looked at,
    and what is running at this moment may be a short burst, so the smaller of both counts.
    """
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    running = []
    for _ in range(LOOKS if average else 0):
        try:
            lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return average
        running += [int(line.split()[1]) for line in lines if line.startswith("procs_running")]
        time.sleep(PAUSE)
    return min(average, max(0.0, sum(running) / len(running) - 1)) if running else average  # without this process


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
