"""How fast this machine is at one run's work: a few steps and passes of each model are timed.

A step has a fixed cost and a cost per sample, and so has a pass; both follow from timing two batch sizes. Processor
time is measured instead of wall-clock time, because a short measurement gets a larger share of a busy machine than a
long run. A run is not affected: models are initialised anew, and torch's random state and number of threads are
restored.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.engines.execution import execute, execute_together
from headwater.engines.jobs import Job, refs_in
from headwater.planning.rehearsal import Work
from headwater.specs import LocalSpec
from headwater.tasks.cost import Cost
from headwater.tasks.devices import CPU, meant
from headwater.tasks.local import local_train
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment

BUDGET = 0.8  # seconds for all measurements together; more if single calls take longer
ASKED = 256  # samples of a pass that is measured
TIMES, LEAST = 15, 3  # largest and smallest number of timings
MOST = 50  # most calls in one timing
LONG = 0.3  # seconds above which a call is not repeated


@dataclass(frozen=True)
class TimePerCall:
    """Seconds per call, per sample, and of the fixed part that does not depend on the number of calls."""

    call: float = 0.0
    sample: float = 0.0
    fixed: float = 0.0

    def seconds(self, calls: float, samples: float) -> float:
        return calls * self.call + samples * self.sample


@dataclass(frozen=True)
class Measured:
    """What was measured, by architecture.

    Args:
        steps: gradient steps.
        stacks: steps of several clients that are trained as one.
        passes: passes without a gradient.
        task: seconds of a task that does nothing.
        saved: bytes that a step keeps for its backward pass.
        batch: samples of the steps that were measured.
    """

    steps: Mapping[str, TimePerCall]
    stacks: Mapping[str, TimePerCall]
    passes: Mapping[str, TimePerCall]
    task: float
    saved: Mapping[str, int]
    batch: Mapping[str, int]

    def seconds(self, group: Sequence[Work]) -> float:
        """Seconds of tasks that one worker executes as a group."""
        costs = [work.cost for work in group]
        if len(group) > 1 and costs[0].arch in self.stacks:
            rate = self.stacks[costs[0].arch]
            stacked = rate.seconds(max(cost.steps for cost in costs), sum(cost.samples for cost in costs))
            return stacked + rate.fixed * len(group)
        passes = sum(self._pass(arch, n) for cost in costs for arch, n in cost.passes.items())
        return sum(map(self._steps, costs)) + passes + self.task * len(group)

    def _steps(self, cost: Cost) -> float:
        rate = self.steps.get(cost.arch) or next(iter(self.steps.values()), TimePerCall())
        return rate.seconds(cost.steps + cost.gradients, cost.samples)

    def _pass(self, arch: str, samples: int) -> float:
        rate = self.passes.get(arch) or next(iter(self.passes.values()), TimePerCall())
        return rate.seconds(samples / ASKED, samples)


def measure(experiment: Experiment, works: Sequence[Work]) -> Measured:
    """Time the steps and passes that these works consist of."""
    groups = together(works)
    trained = {name: _sample(groups, name) for name in experiment.tree.archs}
    present = {name: group for name, group in trained.items() if group}
    engine = experiment.config.engine
    on_cpu = meant(engine.device)[0] == CPU  # stacks on a device take another time there
    context = replace(experiment.context(), stack=experiment.stacking.way)
    each = BUDGET / max(1, sum(3 if len(group) > 1 else 2 for group in present.values()))
    steps: dict[str, TimePerCall] = {}
    stacks: dict[str, TimePerCall] = {}
    passes: dict[str, TimePerCall] = {}
    saved: dict[str, int] = {}
    batch: dict[str, int] = {}
    overhead = 0.0
    with torch.random.fork_rng(devices=[]), _threads(engine.threads):
        for name, group in present.items():
            largest = max(group, key=lambda work: work.cost.samples)
            first = SampleTraining(context, largest, experiment)
            steps[name] = _rate(first.step, (first.most, max(1, first.most // 4)), each)
            overhead = max(overhead, timed(lambda first=first: first.run(0), each / 10))  # type: ignore[misc]
            if len(group) > 1 and experiment.stacking.width > 1 and on_cpu:
                stacks[name] = _stack_rate(context, group, each)
            passes[name] = _rate(first.ask, (ASKED, ASKED // 8), each)
            saved[name], batch[name] = first.saved(), first.most
    return Measured(steps, stacks, passes, overhead, saved, batch)


def together(works: Sequence[Work]) -> list[list[Work]]:
    """Tasks by the group that they are executed in, in order."""
    groups: dict[int, list[Work]] = {}
    for work in works:
        groups.setdefault(work.group, []).append(work)
    return list(groups.values())


def _sample(groups: Sequence[Sequence[Work]], arch: str) -> Sequence[Work]:
    """The group that trains an architecture on the most samples, in the first round that trains it."""
    fit = [g for g in groups if g[0].cost.arch == arch and isinstance(g[0].cost.spec, LocalSpec)]
    return max(fit, key=lambda g: (-g[0].job.round, sum(work.cost.samples for work in g)), default=())


class SampleTraining:
    """One local training, shortened to some steps on some rows."""

    def __init__(self, context: RunContext, work: Work, experiment: Experiment) -> None:
        self.context, self.work = context, work
        self.spec, self.start = _spec(work), context.initial(work.cost.arch, 0)
        table, rows = experiment.split.train, context.rows.get(work.job.home)
        own = torch.arange(min(len(table), self.spec.batch)) if rows is None else torch.as_tensor(rows)
        self.most = max(1, min(self.spec.batch, len(own)))
        self.rows = table.take(own[: self.most])
        self.inputs = experiment.split.test.x if len(experiment.split.test) else table.x
        terms = work.job.inputs.get("terms", ()) if work.job.task is local_train else ()
        self.terms = () if refs_in(terms) else terms  # values that do not exist yet cannot be used

    def run(self, steps: int, rows: int = 1, terms: bool = False) -> None:
        spec = replace(self.spec, epochs=steps, steps=None, drop_last=False, batch=max(1, rows))
        data = Examples(self.rows.x[:rows], self.rows.y[:rows])
        inputs = {"start": self.start, "spec": spec, "terms": self.terms if terms else (), "data": data}
        execute(_job(self.work, inputs), self.context, _nothing, _nothing)

    def step(self, rows: int) -> tuple[Callable[[int], None], int]:
        return lambda times: self.run(times, rows, terms=True), rows

    def ask(self, rows: int) -> tuple[Callable[[int], None], int]:
        x = self.inputs[:rows]
        net = self.context.flat_module(self.work.cost.arch, 0).load(self.start)

        def call(times: int) -> None:
            for _ in range(times):
                net.outputs(x)

        return call, len(x)

    def saved(self) -> int:
        """Bytes that one step keeps for its backward pass, without the model itself and its inputs."""
        net = self.context.flat_module(self.work.cost.arch, 0).load(self.start)
        own = {net.vector.untyped_storage().data_ptr(), self.rows.x.untyped_storage().data_ptr()}
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            net.train(self.most)
            net.loss(net(self.rows.x), self.rows.y)
        largest = max(sizes.values(), default=0)
        return sum(sizes.values()) + 2 * largest  # plus gradients of two layers in the backward pass


def _stack_rate(context: RunContext, group: Sequence[Work], budget: float) -> TimePerCall:
    start = context.initial(group[0].cost.arch, 0)

    def part(width: int) -> tuple[Callable[[int], None], int]:
        members = group[:: max(1, len(group) // width)][:width]
        spec = _spec(members[0])
        one = replace(spec, epochs=None, steps=1)
        samples = sum(min(len(context.rows[work.job.home]), spec.batch) for work in members)

        def call(times: int) -> None:
            inputs = {"start": start, "spec": replace(one, steps=times)}
            execute_together([_job(work, inputs) for work in members], context, _nothing)

        return call, samples

    widest = len(group)
    rate = _rate(part, (widest, max(2, widest // 4)), budget)
    return replace(rate, fixed=rate.fixed / widest)


def _spec(work: Work) -> LocalSpec:
    assert isinstance(work.cost.spec, LocalSpec)
    return work.cost.spec


def _job(work: Work, inputs: Mapping[str, Any]) -> Job:
    return Job("plan", local_train, work.job.node, work.job.home, inputs, (0, "plan", 0, work.job.node))


def _nothing(_: Any) -> Any:
    return None


def _rate(
    make: Callable[[int], tuple[Callable[[int], None], int]], sizes: tuple[int, int], budget: float
) -> TimePerCall:
    """Compute the time per call, per sample and the fixed time, from calls with many and with few samples."""
    (large, many), (small, few) = (make(size) for size in sizes)
    slow, fixed = _each(large, budget / 2)
    if few >= many:
        return TimePerCall(slow, 0.0, fixed)
    quick = min(slow, _each(small, budget / 2)[0])
    sample = (slow - quick) / (many - few)
    call = slow - many * sample
    return TimePerCall(call, sample, fixed) if call > 0 else TimePerCall(0.0, slow / many, fixed)


def _each(call: Callable[[int], None], budget: float) -> tuple[float, float]:
    """Seconds of one further call, and of zero calls. Several short calls are timed together."""
    none, one = timed(lambda: call(0), budget / 6), timed(lambda: call(1), budget / 6)
    times = max(1, min(MOST, int(budget / 3 / max(one - none, 1e-6))))
    several = timed(lambda: call(times), budget / 2) if times > 1 else one
    return max(several - none, several / 10) / times, none


def timed(call: Callable[[], None], budget: float) -> float:
    """Median seconds of some calls, without the first, which is a warm-up. A long call is made only once."""
    seconds: list[float] = []
    ends = time.perf_counter() + budget
    while len(seconds) < LEAST or (time.perf_counter() < ends and len(seconds) <= TIMES):
        begun = time.thread_time()
        call()
        seconds.append(time.thread_time() - begun)
        if seconds[0] > LONG:
            break
    return statistics.median(seconds[1:] or seconds)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
