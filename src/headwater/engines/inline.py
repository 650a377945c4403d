"""Runs jobs sequentially in this process. Reference implementation for all engines.

Evaluation is lazy: jobs wait until a value is needed, and are then executed backwards from it. Each value is released
after its last use, so an average that streams its models has one model, or one stack of clients, in memory at a time.

With several `workers`, threads compute groups of clients that are trained together. No bit depends on which and when.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core import sealed, serialization
from headwater.engines.availability import Availability
from headwater.engines.base import Done, Files, Infos, infos_of
from headwater.engines.execution import as_read_back, execute, group_as_read_back
from headwater.engines.groups import GroupScheduler
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import EVERY, LOST, Job, Ref, pick
from headwater.engines.refs import RefGroup
from headwater.engines.workers.spill_cache import SpillCache, budget_of
from headwater.registry import Info
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.devices import settle
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.config.sections import EngineConfig

MAX_DEPTH = 40  # pending jobs that depend on each other before some are executed early: each takes stack frames


class Inline:
    """Engine that executes jobs in this process, one after the other.

    Args:
        threads: torch threads of every task. Results may depend on it in the last digits.
        workers: groups of jobs that are computed at a time, each by one thread.
        memory: megabytes of values in memory before others go to disk; 0 for a quarter of the memory.
    """

    INFO = Info("inline", "one after the other, in this process: the specification")

    def __init__(self, threads: int = 1, workers: int = 1, memory: float = 0.0) -> None:
        self._values = SpillCache(budget_of(memory))
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._threads, self._workers = threads, workers
        self._helpers: Helpers | None = None  # created by the first run that can use them, until `close`
        self._restore_torch: Callable[[], None] = lambda: None  # settings before the run

    @classmethod
    def from_config(cls, options: EngineConfig, workers: int) -> Inline:
        return cls(options.threads, workers, options.memory)

    def start(self, context: RunContext) -> None:
        self._restore_torch()
        self._restore_torch = settle(context.device, self._threads)  # the same on every engine
        # Other ways to train swap the parameters of one module, and other threads would share one device.
        if self._workers > 1 and context.stack == "hand" and context.on_host:
            self._helpers = self._helpers or Helpers(self._workers - 1, self._threads)
            context = replace(context, helpers=self._helpers)
            for arch in context.models:  # in this thread: building a module draws from a generator that tasks use too
                context.flat_module(arch, 0)
        self._context, self._availability, self._delayed = context, Availability(context), context.availability < 1
        self._jobs: dict[str, Job | JobGroup] = {}  # not executed yet, in the order of submission
        self._groups = GroupScheduler(context, context.helpers)
        self._group_names: set[str] = set()  # names of groups that were executed or loaded
        self._values.close()
        self._aliases: dict[str, Ref] = {}  # names made by `move` → the value, or part of it, under its first name
        self._pending_aliases: dict[str, dict[str, Ref]] = {}  # aliases of a value that is not computed yet
        self._sources: dict[str, str] = {}  # alias → first name, until `finish` has returned its size
        self._infos: dict[str, Infos] = {}  # sizes that `finish` has not returned yet
        self._depth: dict[str, int] = {}  # length of the longest chain of pending jobs that ends at a job
        self._uses: defaultdict[str, int] = defaultdict(int)  # by pending jobs and by aliases
        self._dropped: set[str] = set()
        self._files: dict[str, dict[str, str]] = {}  # files that hold a value already, by name and member
        self.done.clear()

    def submit(self, *jobs: Job) -> None:
        self._accept(jobs[0]) if len(jobs) == 1 else self.submit_group(JobGroup.of(jobs))

    def submit_group(self, group: JobGroup) -> None:
        several = len(group.nodes) > 1  # the result of one is a value, not {node: value}
        self._accept(group if several else group.jobs[0])
        if several:
            self._groups.add(group)
            self._begin_ready()

    def _accept(self, job: Job | JobGroup) -> None:
        depth = self._depth_of(job)
        if depth > MAX_DEPTH:
            self._execute_pending(job.uses)
            depth = 1
        self._jobs[job.name], self._depth[job.name] = job, depth
        for name, count in job.uses.items():
            self._uses[name] += count

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        ref = self._origin(ref)
        self._aliases[name], self._sources[name] = ref, ref.name
        self._uses[ref.name] += 1
        if ref.name in self._jobs:
            self._pending_aliases.setdefault(ref.name, {})[name] = ref
        else:
            self._infos[name] = infos_of(pick(self._values[ref.name], ref), ref)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.submit(Job(name, _either, new.home, new.home, {"new": new, "old": old}, (), lost=False))

    def info(self, ref: Ref) -> serialization.ValueInfo | None:
        value = self._fetch(ref)
        return None if value is LOST else serialization.info(value)

    def read(self, ref: Ref) -> Any:
        return self._fetch(ref)

    def drop(self, names: Iterable[str]) -> None:
        names = [name for name in names if name in self._values or name in self._jobs or name in self._aliases]
        self._dropped.update(names)
        for name in names:
            self._release_unused(name)

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        for name, kept in members.items():
            if name in self._values and not self._uses.get(name) and len(kept) < len(group := self._values[name]):
                self._values[name] = {node: serialization.on_its_own(group[node]) for node in kept if node in group}

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        names = list(names)
        wanted = dict.fromkeys(self._sources.pop(name, name) for name in names)
        while left := [name for name in wanted if name in self._jobs]:
            needed = {self._root(used) for name in left for used in self._jobs[name].uses}
            for name in left:
                if name not in needed and name in self._jobs:  # it executes its inputs first, except for lost jobs
                    self._execute(name)
        for name in names:
            if name not in self._infos:
                self._fetch(Ref(name, ""))
        infos = {name: self._infos.pop(name) for name in names}
        for name in names:
            self._release_unused(name)
            self._values.detach(name)
        for name, job in self._jobs.items():  # in the order of submission, so inputs come before their users
            self._depth[name] = self._depth_of(job)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> Files:
        files: dict[str, dict[str, str]] = {}
        stores, groups = {}, set()
        for name in names:
            ref = self._origin(Ref(name, ""))
            values = {"": self._fetch(ref)}
            if ref.member == EVERY or (ref.name in self._group_names and not ref.member):
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
        return {name: members if name in groups else members[""] for name, members in files.items()}

    def load(self, files: Files, directory: Path) -> None:
        read = sealed.read_all(files, directory)
        for name, file in files.items():
            members = {"": file} if isinstance(file, str) else file
            values = {node: read[each] for node, each in members.items() if each}
            self._values.put_mapped(name, values.get("", LOST) if isinstance(file, str) else values)
            self._files[name] = dict(members)
            if members is file:
                self._group_names.add(name)

    def close(self) -> None:
        if self._helpers is not None:
            self._helpers.close()
            self._helpers = None
        self._values.close()
        self._jobs = {}
        self._restore_torch()

    def _depth_of(self, job: Job | JobGroup) -> int:
        depth = 0
        for name in job.uses:
            depth = max(depth, self._depth.get(self._root(name), 0))
        return 1 + depth

    def _root(self, name: str) -> str:
        """First name of a value."""
        return name if (alias := self._aliases.get(name)) is None else alias.name

    def _origin(self, ref: Ref) -> Ref:
        """The same value under its first name, at the home that computed it."""
        return ref if (alias := self._aliases.get(ref.name)) is None else ref.under(alias)

    def _fetch(self, ref: Ref) -> Any:
        ref = self._origin(ref)
        if ref.name in self._jobs:
            self._execute(ref.name)
        return pick(self._values[ref.name], ref)

    def _execute(self, name: str) -> None:
        job = self._jobs[name]
        if isinstance(job, JobGroup):
            self._execute_group(job)
            return
        del self._jobs[name], self._depth[name]
        released: list[str] = []  # inputs that a stream released by itself

        def release(ref: Ref | RefGroup) -> None:
            released.append(ref.name)
            self._release(ref.name)

        if job.task is _either:
            value = self._fetch(job.inputs["new"])
            value = self._fetch(job.inputs["old"]) if value is LOST else value
        else:
            self._execute_pending(job.needs)  # beforehand, so that the reported time of a job is its own
            if self._delayed:
                self._availability.sleep((job,))
            value, done = execute(job, self._context, self._fetch, release)
            value = as_read_back(job, value)
            self._report(done)
        infos = None if value is LOST else serialization.info(value)
        self._values.put(name, value, 0 if infos is None else infos.bytes)
        self._complete(job, value, infos, released)

    def _execute_group(self, group: JobGroup) -> None:
        if not self._groups.begun(group.name):
            self._begin(group)
        self._begin_ready()
        results, done = self._groups.results(group.name)
        del self._jobs[group.name], self._depth[group.name]
        value, infos = group_as_read_back(group, results)
        self._report(done)
        self._group_names.add(group.name)
        self._values.put(group.name, value, sum(info.bytes for info in infos.values() if info is not None))
        self._complete(group, value, infos, [])

    def _begin(self, group: JobGroup) -> None:
        pending = self._groups.claim(group.name)
        self._execute_pending(group.needs)
        if self._delayed:
            self._availability.sleep(group.jobs)
        self._groups.begin(group.name, pending, self._fetch)

    def _begin_ready(self) -> None:
        """Have helper threads begin groups whose inputs are available: one more than they can compute at a time."""
        if self._delayed:
            return
        while (group := self._groups.next_ready(lambda name: self._root(name) in self._values)) is not None:
            self._begin(group)

    def _report(self, done: Done) -> None:
        self.done.append(done)
        if self.watch:
            self.watch(done)

    def _complete(self, job: Job | JobGroup, value: Any, infos: Infos, released: list[str]) -> None:
        """Note the size of a result under all of its names, and release the inputs of its job."""
        self._infos[job.name] = infos
        for alias, ref in self._pending_aliases.pop(job.name, {}).items():
            whole = not ref.part and ref.member in ("", EVERY)
            self._infos[alias] = infos if whole else infos_of(pick(value, ref), ref)
        for used, count in (job.uses - Counter(released) if released else job.uses).items():
            self._release(used, count)
        if self._groups:
            self._begin_ready()

    def _release(self, name: str, count: int = 1) -> None:
        self._uses[name] -= count
        self._release_unused(name)

    def _execute_pending(self, names: Iterable[str]) -> None:
        for name in names:
            if (root := self._root(name)) in self._jobs:
                self._execute(root)

    def _release_unused(self, name: str) -> None:
        """Delete a value that was dropped, once no pending job and no alias uses it."""
        if name in self._dropped and name not in self._jobs and self._uses.get(name, 0) <= 0:
            self._files.pop(name, None)
            self._uses.pop(name, None)
            self._dropped.discard(name)
            self._group_names.discard(name)
            alias = self._aliases.pop(name, None)
            self._values.discard(name) if alias is None else self._release(alias.name)


def _either(new: Any, old: Any) -> Any:
    """Marks the job of `either`, which is never called as a task."""
    return old if new is LOST else new
