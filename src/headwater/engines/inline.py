"""Runs jobs in this process, one after the other. It is the reference for all other engines.

Jobs wait until something asks for a value and are then carried out backwards from what was asked, each value let go
after its last use. So an average that reads its models in order pulls them one at a time, or one stack of clients that
are trained together, and holds no more.

With several `hands`, groups of clients that are trained together are computed by that many threads, of which this one
is the last to take a group; each is computed by one thread alone. They begin as soon as their inputs are there, beside
whatever else is done in this thread. Which thread takes a group, and when, changes no bit.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.availability import Presence
from headwater.engines.base import EVERY, LOST, Done, Files, Infos, Job, Ref, pick, refs_in
from headwater.engines.execution import execute
from headwater.engines.groups import Groups, Jobs
from headwater.engines.workers.spill_cache import SpillCache, budget_of
from headwater.errors import TaskError
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.task import RunContext

DEEPEST = 40  # waiting jobs on top of each other before some are carried out ahead of need: each takes stack frames


class Inline:
    def __init__(self, threads: int = 1, hands: int = 1, memory: float = 0.0) -> None:
        """`hands` groups of jobs that are carried out together are computed at a time; `memory` as engine.memory."""
        self._values = SpillCache(budget_of(memory))
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._threads, self._outer_threads, self._hands = threads, torch.get_num_threads(), hands
        self._helpers: Helpers | None = None  # from the first run that can use them to `close`

    def start(self, context: RunContext) -> None:
        torch.set_num_threads(self._threads)  # results depend on it, so it is the same on every engine
        helped = self._hands > 1 and context.stack == "hand"  # other ways to train swap the parameters of one module
        if helped:
            self._helpers = self._helpers or Helpers(self._hands - 1, self._threads)
            context = replace(context, helpers=self._helpers)
            for arch in context.models:  # here: to make one draws from a generator that tasks use too
                context.flat_module(arch, 0)
        self._context, self._presence = context, Presence(context)
        self._jobs: dict[str, Job | Jobs] = {}  # not yet carried out
        self._groups = Groups(context, context.helpers)
        self._several: set[str] = set()  # names of groups that were made
        self._values.close()
        self._moved: dict[str, Ref] = {}  # other names of values, or of parts of them
        self._expected: dict[str, dict[str, Ref]] = {}  # those of a value that is not there yet
        self._source: dict[str, str] = {}  # the value behind such a name, until `finish` has told its size
        self._infos: dict[str, Infos] = {}  # of what was not told by `finish` yet
        self._depth: dict[str, int] = {}  # how many jobs wait below a job
        self._uses: defaultdict[str, int] = defaultdict(int)  # by jobs and moves that wait
        self._dropped: set[str] = set()
        self._files: dict[str, dict[str, str]] = {}  # what is on disk already, by name and member
        self.done.clear()

    def submit(self, *jobs: Job) -> None:
        job = jobs[0] if len(jobs) == 1 else Jobs(jobs)
        refs, depth = job.refs(), self._depth_of(job)
        if depth > DEEPEST:
            for ref in refs:
                self._fetch(ref)
            depth = 1
        self._jobs[job.name], self._depth[job.name] = job, depth
        for name, count in uses_of(job).items():
            self._uses[name] += count
        if isinstance(job, Jobs):
            self._groups.add(job)
            self._begin_ready()

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        ref = self._origin(ref)
        self._moved[name], self._source[name] = ref, ref.name
        self._uses[ref.name] += 1
        if ref.name in self._jobs:
            self._expected.setdefault(ref.name, {})[name] = ref
        else:
            self._infos[name] = infos_of(pick(self._values[ref.name], ref), ref)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.submit(Job(name, _either, new.home, new.home, {"new": new, "old": old}, (), lost=False))

    def info(self, ref: Ref) -> Info | None:
        value = self._fetch(ref)
        return None if value is LOST else serialization.info(value)

    def read(self, ref: Ref) -> Any:
        return self._fetch(ref)

    def drop(self, names: Iterable[str]) -> None:
        names = [name for name in names if name in self._values or name in self._jobs or name in self._moved]
        self._dropped.update(names)
        for name in names:
            self._let_go(name)

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        for name, kept in members.items():
            if name in self._values and not self._uses.get(name) and len(kept) < len(held := self._values[name]):
                self._values[name] = {node: serialization.on_its_own(held[node]) for node in kept if node in held}

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        asked = list(names)
        wanted = dict.fromkeys(self._source.pop(name, name) for name in asked)
        while left := [name for name in wanted if name in self._jobs]:
            needed = {self._root(ref.name) for name in left for ref in self._jobs[name].refs()}
            for name in left:
                if name not in needed and name in self._jobs:  # it pulls the rest, except what lost jobs need
                    self._carry_out(name)
        for name in asked:
            if name not in self._infos:
                self._fetch(Ref(name, ""))
        infos = {name: self._infos.pop(name) for name in asked}
        for name in asked:
            self._let_go(name)
            self._values.settle(name)
        for name, job in self._jobs.items():  # in the order of submission, so inputs come before their users
            self._depth[name] = self._depth_of(job)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> Files:
        files: dict[str, dict[str, str]] = {}
        stores, groups = {}, set()
        for name in names:
            ref = self._origin(Ref(name, ""))
            values = {"": self._fetch(ref)}
            if ref.member == EVERY or (ref.name in self._several and not ref.member):
                values = values[""]
                groups.add(name)
            known = self._files.get(name, {})
            files[name] = {node: known.get(node, "") for node in values}
            for node, value in values.items():
                if value is not LOST and not ((file := files[name][node]) and (directory / file).exists()):
                    stores[name, node] = partial(serialization.store, value, directory)
        for (name, node), file in serialization.store_all(stores).items():
            files[name][node] = file
        self._files |= files
        return {name: held if name in groups else held[""] for name, held in files.items()}

    def load(self, files: Files, directory: Path) -> None:
        def read(file: str) -> Any:
            return serialization.read(directory / file) if file else LOST

        for name, file in files.items():
            if isinstance(file, str):
                self._values.take_up({name: read(file)})
                self._files[name] = {"": file}
            else:
                self._values.take_up({name: {node: read(each) for node, each in file.items() if each}})
                self._files[name] = dict(file)
                self._several.add(name)

    def close(self) -> None:
        if self._helpers is not None:
            self._helpers.close()
            self._helpers = None
        self._values.close()
        self._jobs = {}
        torch.set_num_threads(self._outer_threads)

    def _depth_of(self, job: Job | Jobs) -> int:
        depth = 0
        for name in uses_of(job):
            depth = max(depth, self._depth.get(self._root(name), 0))
        return 1 + depth

    def _root(self, name: str) -> str:
        """The name that a value was made with."""
        moved = self._moved.get(name)
        return name if moved is None else moved.name

    def _origin(self, ref: Ref) -> Ref:
        """A value, or a part of one, under the name that it was made with, where it was made."""
        moved = self._moved.get(ref.name)
        return ref if moved is None else ref.under(moved)

    def _fetch(self, ref: Ref) -> Any:
        ref = self._origin(ref)
        if ref.name in self._jobs:
            self._carry_out(ref.name)
        return pick(self._values[ref.name], ref)

    def _carry_out(self, name: str) -> None:
        job = self._jobs[name]
        if isinstance(job, Jobs):
            self._carry_out_together(job)
            return
        del self._jobs[name], self._depth[name]
        released: list[str] = []  # by a stream, which lets its own go

        def release(ref: Ref) -> None:
            released.append(ref.name)
            self._used(ref.name)

        if job.task is _either:
            value = self._fetch(job.inputs["new"])
            value = self._fetch(job.inputs["old"]) if value is LOST else value
        else:
            self._prepare(job)
            self._await((job,))
            value, done = execute(job, self._context, self._fetch, release)
            value = _as_read_back(job, value)
            self._reported(done)
        infos = None if value is LOST else serialization.info(value)
        self._values.put(name, value, 0 if infos is None else infos.bytes)
        self._keep(job, value, infos, released)

    def _carry_out_together(self, jobs: Jobs) -> None:
        if not self._groups.begun(jobs.name):
            self._begin(jobs)
        self._begin_ready()
        found, done = self._groups.finished(jobs.name)
        del self._jobs[jobs.name], self._depth[jobs.name]
        value = {job.node: _as_read_back(job, found[job.node]) for job in jobs.jobs if found[job.node] is not LOST}
        self._reported(done)
        infos = {job.node: serialization.info(value[job.node]) if job.node in value else None for job in jobs.jobs}
        self._several.add(jobs.name)
        self._values.put(jobs.name, value, sum(info.bytes for info in infos.values() if info is not None))
        self._keep(jobs, value, infos, [])

    def _begin(self, jobs: Jobs) -> None:
        """Have a group computed: by a helper, if there is one."""
        waiting = self._groups.claim(jobs.name)
        for name in jobs.needs:
            if (root := self._root(name)) in self._jobs:
                self._carry_out(root)
        self._await(jobs.jobs)
        self._groups.begin(jobs.name, waiting, self._fetch)

    def _begin_ready(self) -> None:
        """Let helpers begin groups whose inputs are there: one more than they can compute, so that nobody waits."""
        if self._context.availability < 1:
            return
        while (jobs := self._groups.next_ready(lambda name: self._root(name) in self._values)) is not None:
            self._begin(jobs)

    def _await(self, jobs: tuple[Job, ...]) -> None:
        """Until every client has come."""
        if self._context.availability >= 1:
            return
        if seconds := max((self._presence.wait(job) for job in jobs if not job.lost), default=0.0):
            time.sleep(seconds)

    def _reported(self, done: Done) -> None:
        self.done.append(done)
        if self.watch:
            self.watch(done)

    def _keep(self, job: Job | Jobs, value: Any, infos: Infos, released: list[str]) -> None:
        self._infos[job.name] = infos
        for other, ref in self._expected.pop(job.name, {}).items():
            whole = not ref.part and ref.member in ("", EVERY)
            self._infos[other] = infos if whole else infos_of(pick(value, ref), ref)
        uses = uses_of(job)
        for used, count in (uses - Counter(released) if released else uses).items():
            self._used(used, count)
        if self._groups:
            self._begin_ready()

    def _used(self, name: str, count: int = 1) -> None:
        self._uses[name] -= count
        self._let_go(name)

    def _prepare(self, job: Job) -> None:
        """Have the inputs ready, so that the time of a job is its own and not that of all it waits for."""
        if job.lost:
            return
        streamed = getattr(job.task, "streaming", ())
        refs = refs_in([x for name, x in job.inputs.items() if name not in streamed]) if streamed else job.refs()
        for ref in refs:
            if (name := self._root(ref.name)) in self._jobs:
                self._carry_out(name)

    def _let_go(self, name: str) -> None:
        if name in self._dropped and name not in self._jobs and self._uses.get(name, 0) <= 0:
            self._files.pop(name, None)
            self._uses.pop(name, None)
            self._dropped.discard(name)
            self._several.discard(name)
            moved = self._moved.pop(name, None)
            if moved is None:
                self._values.discard(name)
            else:
                self._used(moved.name)


def uses_of(job: Job | Jobs) -> Counter[str]:
    """How often a job names each of its inputs."""
    return job.uses if isinstance(job, Jobs) else Counter([ref.name for ref in job.refs()])


def _as_read_back(job: Job, value: Any) -> Any:
    """A value as other engines and a resumed run find it: the same types, and strides, by which kernels are chosen."""
    try:
        return value if value is LOST else serialization.read_back(value)
    except TypeError as error:
        raise TaskError(f"{job.title} at {job.node} (home {job.home}) failed: TypeError: {error}") from error


def infos_of(value: Any, ref: Ref) -> Infos:
    """Size and kind of what a ref picked: of one value, or of each member of a group."""
    if ref.member == EVERY:
        return {node: serialization.info(held) for node, held in value.items()}
    return None if value is LOST else serialization.info(value)


def _either(new: Any, old: Any) -> Any:
    """A choice between two names."""
    return old if new is LOST else new
