"""One after the other, here: the specification of every other engine.

Jobs wait until something asks for a value and are then carried out backwards from what was asked, each value let go
after its last use. So an average that reads its models in order pulls them one at a time, or one stack of clients that
are trained together, and holds no more.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwater import codecs
from headwater.codecs import Info
from headwater.engines.base import LOST, Done, Job, Ref, pick, refs_in
from headwater.engines.execution import execute, execute_together
from headwater.engines.presence import Presence
from headwater.engines.shelf import Shelf, budget_of
from headwater.errors import TaskError
from headwater.stages.site import Context

DEEPEST = 40  # waiting jobs on top of each other before some are carried out ahead of need: each takes stack frames


class Inline:
    def __init__(self, threads: int = 1, hands: int = 1, memory: float = 0.0) -> None:
        """`hands` jobs that are carried out together may be worked on at a time; `memory` as engine.memory."""
        self._values = Shelf(budget_of(memory))
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._threads, self._outer_threads, self._hands = threads, torch.get_num_threads(), hands

    def start(self, context: Context) -> None:
        torch.set_num_threads(self._threads)  # results depend on it, so it is the same on every engine
        self._context, self._presence = context, Presence(context)
        self._jobs: dict[str, Job] = {}  # not yet carried out
        self._groups: dict[str, tuple[Job, ...]] = {}  # those of them that are carried out together
        self._values.close()
        self._moved: dict[str, Ref] = {}  # other names of values, or of parts of them
        self._expected: dict[str, dict[str, Ref]] = {}  # those of a value that is not there yet
        self._source: dict[str, str] = {}  # the value behind such a name, until `finish` has told its size
        self._infos: dict[str, Info | None] = {}  # of what was not told by `finish` yet
        self._depth: dict[str, int] = {}  # how many jobs wait below a job
        self._uses: defaultdict[str, int] = defaultdict(int)  # by jobs and moves that wait
        self._dropped: set[str] = set()
        self._files: dict[str, str] = {}  # what is on disk already, by name
        self.done.clear()

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            refs, depth = job.refs(), self._depth_of(job)
            if depth > DEEPEST:
                for ref in refs:
                    self._fetch(ref)
                depth = 1
            self._jobs[job.name], self._depth[job.name] = job, depth
            for ref in refs:
                self._uses[ref.name] += 1
        if len(jobs) > 1:
            self._groups |= dict.fromkeys([job.name for job in jobs], jobs)

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        ref = self._origin(ref)
        self._moved[name], self._source[name] = ref, ref.name
        self._uses[ref.name] += 1
        if ref.name in self._jobs:
            self._expected.setdefault(ref.name, {})[name] = ref
        else:
            self._infos[name] = _info(pick(self._values[ref.name], ref))

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.submit(Job(name, _either, new.home, new.home, {"new": new, "old": old}, (), lost=False))

    def info(self, name: str) -> Info | None:
        if name not in self._infos:
            value = self._fetch(Ref(name, ""))
        return self._infos[name] if name in self._infos else _info(value)

    def read(self, ref: Ref) -> Any:
        return self._fetch(ref)

    def drop(self, names: Iterable[str]) -> None:
        names = [name for name in names if name in self._values or name in self._jobs or name in self._moved]
        self._dropped.update(names)
        for name in names:
            self._let_go(name)

    def finish(self, names: Iterable[str]) -> dict[str, Info | None]:
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

    def save(self, names: Iterable[str], directory: Path) -> dict[str, str]:
        files, stores = {}, {}
        for name in names:
            value, known = self._fetch(Ref(name, "")), self._files.get(name, "")
            files[name] = known
            if value is not LOST and not (known and (directory / known).exists()):
                stores[name] = partial(codecs.store, value, directory)
        files |= codecs.store_all(stores)
        self._files |= files
        return files

    def load(self, files: Mapping[str, str], directory: Path) -> None:
        self._values.take_up({n: codecs.read(directory / file) if file else LOST for n, file in files.items()})
        self._files |= files

    def close(self) -> None:
        self._values.close()
        self._jobs = {}
        torch.set_num_threads(self._outer_threads)

    def _depth_of(self, job: Job) -> int:
        depth = 0
        for ref in job.refs():
            depth = max(depth, self._depth.get(self._root(ref.name), 0))
        return 1 + depth

    def _root(self, name: str) -> str:
        """The name that a value was made with."""
        moved = self._moved.get(name)
        return name if moved is None else moved.name

    def _origin(self, ref: Ref) -> Ref:
        """A value, or a part of one, under the name that it was made with, where it was made."""
        moved = self._moved.get(ref.name)
        if moved is None:
            return ref
        return Ref(moved.name, moved.home, moved.part + ref.part) if ref.part else moved

    def _fetch(self, ref: Ref) -> Any:
        ref = self._origin(ref)
        if ref.name in self._jobs:
            self._carry_out(ref.name)
        return pick(self._values[ref.name], ref)

    def _carry_out(self, name: str) -> None:
        if name in self._groups:
            self._carry_out_together(self._groups[name])
            return
        job = self._jobs.pop(name)
        self._depth.pop(name)
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
            value = self._reported(job, value, done)
        self._keep(job, value, released)

    def _carry_out_together(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            del self._jobs[job.name], self._depth[job.name], self._groups[job.name]
        for job in jobs:
            self._prepare(job)
        self._await(jobs)
        found = execute_together(jobs, self._context, self._fetch, hands=self._hands)
        for job, (value, done) in zip(jobs, found, strict=True):
            self._keep(job, self._reported(job, value, done), [])

    def _await(self, jobs: tuple[Job, ...]) -> None:
        """Until every client has come."""
        if seconds := max((self._presence.wait(job) for job in jobs if not job.lost), default=0.0):
            time.sleep(seconds)

    def _reported(self, job: Job, value: Any, done: Done) -> Any:
        value = _as_read_back(job, value)
        self.done.append(done)
        if self.watch:
            self.watch(done)
        return value

    def _keep(self, job: Job, value: Any, released: list[str]) -> None:
        self._infos[job.name] = info = _info(value)
        self._values.put(job.name, value, 0 if info is None else info.bytes)
        for other, ref in self._expected.pop(job.name, {}).items():
            self._infos[other] = _info(pick(value, ref)) if ref.part else info
        held = Counter(ref.name for ref in job.refs()) - Counter(released) if released else None
        for used in (ref.name for ref in job.refs()) if held is None else held.elements():
            self._used(used)

    def _used(self, name: str) -> None:
        self._uses[name] -= 1
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
            moved = self._moved.pop(name, None)
            if moved is None:
                self._values.discard(name)
            else:
                self._used(moved.name)


def _as_read_back(job: Job, value: Any) -> Any:
    """A value as other engines and a resumed run find it: the same types, and strides, by which kernels are chosen."""
    try:
        return value if value is LOST else codecs.read_back(value)
    except TypeError as error:
        raise TaskError(f"{job.title} at {job.node} (home {job.home}) failed: TypeError: {error}") from error


def _info(value: Any) -> Info | None:
    return None if value is LOST else codecs.info(value)


def _either(new: Any, old: Any) -> Any:
    """A choice between two names."""
    return old if new is LOST else new
