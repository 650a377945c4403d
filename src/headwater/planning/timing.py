"""How fast this machine is at one run's work: a few steps and passes of each model, timed and thrown away.

A step costs so much for being taken and so much for each sample; the same holds for a pass. Two sizes of each give both
numbers. What is timed is the processor's time, since a short burst of work gets more of a busy machine than a long run
will. Nothing that a run would use is changed: the models are drawn for the purpose, and torch's generator and number
of threads are put back.
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
from headwater.engines.base import Job, refs_in
from headwater.engines.execution import execute, execute_together
from headwater.planning.work import Work
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment

BUDGET = 0.8  # seconds for all measurements together, if one of each takes no longer
ASKED = 256  # samples of a pass that is measured
TIMES, LEAST = 15, 3  # timings, at most and at least
MOST = 50  # calls that are timed as one
LONG = 0.3  # seconds of a call that is not repeated


@dataclass(frozen=True)
class Rate:
    """Seconds of one call and of each sample in it."""

    call: float = 0.0
    sample: float = 0.0
    fixed: float = 0.0  # and of what is done once, however many calls there are

    def seconds(self, calls: float, samples: float) -> float:
        return calls * self.call + samples * self.sample


@dataclass(frozen=True)
class Measured:
    """By architecture: rates of steps, of steps of a stack, and of passes; and what any task costs."""

    steps: Mapping[str, Rate]
    stacks: Mapping[str, Rate]
    passes: Mapping[str, Rate]
    task: float
    saved: Mapping[str, int]  # bytes that a step keeps for its backward pass, for the batch of training
    batch: Mapping[str, int]

    def seconds(self, group: Sequence[Work]) -> float:
        """What works that are carried out together take on one worker."""
        if len(group) > 1 and group[0].arch in self.stacks:
            rate = self.stacks[group[0].arch]
            work = rate.seconds(max(each.steps for each in group), sum(each.samples for each in group))
            return work + rate.fixed * len(group)
        asked = sum(self._pass(arch, n) for each in group for arch, n in each.passes.items())
        return sum(self._steps(each) for each in group) + asked + self.task * len(group)

    def _steps(self, work: Work) -> float:
        rate = self.steps.get(work.arch) or next(iter(self.steps.values()), Rate())
        return rate.seconds(work.steps + work.gradients, work.samples)

    def _pass(self, arch: str, samples: int) -> float:
        rate = self.passes.get(arch) or next(iter(self.passes.values()), Rate())
        return rate.seconds(samples / ASKED, samples)


def measure(experiment: Experiment, works: Sequence[Work]) -> Measured:
    """Time what these works consist of."""
    groups = together(works)
    trained = {name: _sample(groups, name) for name in experiment.tree.archs}
    present = {name: group for name, group in trained.items() if group}
    engine = experiment.config.engine
    context = replace(experiment.context(), stack=experiment.stacking.way)
    each = BUDGET / max(1, sum(3 if len(group) > 1 else 2 for group in present.values()))
    steps: dict[str, Rate] = {}
    stacks: dict[str, Rate] = {}
    passes: dict[str, Rate] = {}
    saved: dict[str, int] = {}
    batch: dict[str, int] = {}
    overhead = 0.0
    with torch.random.fork_rng(devices=[]), _threads(engine.threads):
        for name, group in present.items():
            lead = max(group, key=lambda work: work.samples)
            first = Trial(context, lead, experiment)
            steps[name] = _rate(first.step, (first.most, max(1, first.most // 4)), each)
            overhead = max(overhead, timed(lambda first=first: first.run(0), each / 10))  # type: ignore[misc]
            if len(group) > 1 and experiment.stacking.width > 1:
                stacks[name] = _stack_rate(context, group, each)
            passes[name] = _rate(first.ask, (ASKED, ASKED // 8), each)
            saved[name], batch[name] = first.saved(), first.most
    return Measured(steps, stacks, passes, overhead, saved, batch)


def together(works: Sequence[Work]) -> list[list[Work]]:
    """Works by the group that they are carried out in, in order."""
    found: dict[int, list[Work]] = {}
    for work in works:
        found.setdefault(work.group, []).append(work)
    return list(found.values())


def _sample(groups: Sequence[Sequence[Work]], arch: str) -> Sequence[Work]:
    """The largest training of an architecture, in the first round that has any."""
    fit = [g for g in groups if g[0].arch == arch and isinstance(g[0].job.inputs.get("spec"), LocalSpec)]
    return max(fit, key=lambda g: (-g[0].round, sum(work.samples for work in g)), default=())


class Trial:
    """One training, cut down to some steps on some rows."""

    def __init__(self, context: RunContext, work: Work, experiment: Experiment) -> None:
        self.context, self.work = context, work
        self.spec: LocalSpec = work.job.inputs["spec"]
        self.start = context.initial(work.arch, 0)
        table, rows = experiment.split.train, context.rows.get(work.job.home)
        own = torch.arange(min(len(table), self.spec.batch)) if rows is None else torch.as_tensor(rows)
        self.most = max(1, min(self.spec.batch, len(own)))
        self.rows = table.take(own[: self.most])
        self.inputs = experiment.split.test.x if len(experiment.split.test) else table.x
        terms = work.job.inputs.get("terms", ())
        self.terms = () if refs_in(terms) else terms  # what is not there yet cannot be tried

    def run(self, steps: int, rows: int = 1, terms: bool = False) -> None:
        spec = replace(self.spec, epochs=steps, steps=None, drop_last=False, batch=max(1, rows))
        data = Examples(self.rows.x[:rows], self.rows.y[:rows])
        given = {"start": self.start, "spec": spec, "terms": self.terms if terms else (), "data": data}
        execute(_job(self.work, given), self.context, _nothing, _nothing)

    def step(self, rows: int) -> tuple[Callable[[int], None], int]:
        return lambda times: self.run(times, rows, terms=True), rows

    def ask(self, rows: int) -> tuple[Callable[[int], None], int]:
        x = self.inputs[:rows]
        net = self.context.flat_module(self.work.arch, 0).load(self.start)

        def call(times: int) -> None:
            for _ in range(times):
                net.outputs(x)

        return call, len(x)

    def saved(self) -> int:
        """Bytes that one step keeps for its backward pass, without the model itself and its inputs."""
        net = self.context.flat_module(self.work.arch, 0).load(self.start)
        own = {net.vector.untyped_storage().data_ptr(), self.rows.x.untyped_storage().data_ptr()}
        found: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            net.train(self.most)
            net.loss(net(self.rows.x), self.rows.y)
        largest = max(found.values(), default=0)
        return sum(found.values()) + 2 * largest  # and gradients of two layers on the way back


def _stack_rate(context: RunContext, group: Sequence[Work], budget: float) -> Rate:
    start = context.initial(group[0].arch, 0)

    def part(width: int) -> tuple[Callable[[int], None], int]:
        members = group[:: max(1, len(group) // width)][:width]
        spec: LocalSpec = members[0].job.inputs["spec"]
        one = replace(spec, epochs=None, steps=1)
        samples = sum(min(len(context.rows[work.job.home]), spec.batch) for work in members)

        def call(times: int) -> None:
            given = {"start": start, "spec": replace(one, steps=times)}
            execute_together([_job(work, given) for work in members], context, _nothing)

        return call, samples

    widest = len(group)
    found = _rate(part, (widest, max(2, widest // 4)), budget)
    return replace(found, fixed=found.fixed / widest)


def _job(work: Work, given: Mapping[str, Any]) -> Job:
    return Job("plan", local_train, work.job.node, work.job.home, given, (0, "plan", 0, work.job.node))


def _nothing(_: Any) -> Any:
    return None


def _rate(make: Callable[[int], tuple[Callable[[int], None], int]], sizes: tuple[int, int], budget: float) -> Rate:
    """From calls with many and with few samples: what a call costs, what a sample, and what is there to do anyway."""
    (large, many), (small, few) = (make(size) for size in sizes)
    slow, fixed = _each(large, budget / 2)
    if few >= many:
        return Rate(slow, 0.0, fixed)
    quick = min(slow, _each(small, budget / 2)[0])
    sample = (slow - quick) / (many - few)
    call = slow - many * sample
    return Rate(call, sample, fixed) if call > 0 else Rate(0.0, slow / many, fixed)


def _each(call: Callable[[int], None], budget: float) -> tuple[float, float]:
    """Seconds of one more call, several being made at once where they are short, and of none at all."""
    none, one = timed(lambda: call(0), budget / 6), timed(lambda: call(1), budget / 6)
    times = max(1, min(MOST, int(budget / 3 / max(one - none, 1e-6))))
    several = timed(lambda: call(times), budget / 2) if times > 1 else one
    return max(several - none, several / 10) / times, none


def timed(call: Callable[[], None], budget: float) -> float:
    """The median of some calls after a first one, which has more to do; of long ones the first is the only one."""
    found: list[float] = []
    ends = time.perf_counter() + budget
    while len(found) < LEAST or (time.perf_counter() < ends and len(found) <= TIMES):
        begun = time.thread_time()
        call()
        found.append(time.thread_time() - begun)
        if found[0] > LONG:
            break
    return statistics.median(found[1:] or found)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
