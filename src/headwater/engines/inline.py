"""One after the other, here: the specification of every other engine.

Jobs wait until something asks for a value and are then carried out backwards from what was asked, each value let go
after its last use. So an average that reads its models in order pulls them one at a time and never holds more than two.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from headwater import codecs
from headwater.codecs import Info
from headwater.engines.base import LOST, Done, Job, Ref, execute, pick, refs_in
from headwater.engines.presence import Presence
from headwater.errors import TaskError
from headwater.stages.site import Context

DEEPEST = 40  # waiting jobs on top of each other before some are carried out ahead of need: each takes stack frames


class Inline:
    def __init__(self, threads: int = 1) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._threads, self._outer_threads = threads, torch.get_num_threads()

    def start(self, context: Context) -> None:
        torch.set_num_threads(self._threads)  # results depend on it, so it is the same on every engine
        self._context, self._presence = context, Presence(context)
        self._jobs: dict[str, Job] = {}  # not yet carried out
        self._values: dict[str, Any] = {}
        self._infos: dict[str, Info | None] = {}  # of what was not told by `finish` yet
        self._depth: dict[str, int] = {}  # how many jobs wait below a job
        self._uses: Counter[str] = Counter()  # by jobs and moves that wait
        self._dropped: set[str] = set()
        self._files: dict[str, str] = {}  # what is on disk already, by name
        self.done.clear()

    def submit(self, job: Job) -> None:
        depth = self._depth_of(job)
        if depth > DEEPEST:
            for ref in job.refs():
                self._fetch(ref)
            depth = 1
        self._jobs[job.name], self._depth[job.name] = job, depth
        self._uses.update(ref.name for ref in job.refs())

    def move(self, ref: Ref, home: str, name: str) -> None:
        self.submit(Job(name, _same, home, home, {"value": Ref(ref.name, home, ref.part)}, (), lost=False))

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.submit(Job(name, _either, new.home, new.home, {"new": new, "old": old}, (), lost=False))

    def info(self, name: str) -> Info | None:
        if name in self._jobs:
            self._carry_out(name)
        return self._infos[name] if name in self._infos else _info(self._values[name])

    def read(self, ref: Ref) -> Any:
        return self._fetch(ref)

    def drop(self, names: Iterable[str]) -> None:
        names = [name for name in names if name in self._values or name in self._jobs]
        self._dropped.update(names)
        for name in names:
            self._let_go(name)

    def finish(self, names: Iterable[str]) -> dict[str, Info | None]:
        asked = list(names)
        while left := [name for name in asked if name in self._jobs]:
            needed = {ref.name for name in left for ref in self._jobs[name].refs()}
            for name in left:
                if name not in needed and name in self._jobs:  # it pulls the rest, except what lost jobs need
                    self._carry_out(name)
        infos = {name: self.info(name) for name in asked}
        for name in asked:
            self._infos.pop(name)
            self._let_go(name)
        for name, job in self._jobs.items():  # in the order of submission, so inputs come before their users
            self._depth[name] = self._depth_of(job)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> dict[str, str]:
        files = {}
        for name in names:
            value, known = self._fetch(Ref(name, "")), self._files.get(name, "")
            if value is LOST:
                files[name] = ""
            else:
                files[name] = known if known and (directory / known).exists() else codecs.store(value, directory)
        self._files |= files
        return files

    def load(self, files: Mapping[str, str], directory: Path) -> None:
        values = {name: codecs.read(directory / file) if file else LOST for name, file in files.items()}
        self._values |= values
        self._files |= files

    def close(self) -> None:
        self._values, self._jobs = {}, {}
        torch.set_num_threads(self._outer_threads)

    def _depth_of(self, job: Job) -> int:
        return 1 + max((self._depth.get(ref.name, 0) for ref in job.refs()), default=0)

    def _fetch(self, ref: Ref) -> Any:
        if ref.name in self._jobs:
            self._carry_out(ref.name)
        return pick(self._values[ref.name], ref)

    def _carry_out(self, name: str) -> None:
        job = self._jobs.pop(name)
        self._depth.pop(name)
        waiting = Counter(ref.name for ref in job.refs())

        def release(ref: Ref) -> None:
            waiting[ref.name] -= 1
            self._uses[ref.name] -= 1
            self._let_go(ref.name)

        if job.task is _same:
            value = self._fetch(job.inputs["value"])
        elif job.task is _either:
            value = self._fetch(job.inputs["new"])
            value = self._fetch(job.inputs["old"]) if value is LOST else value
        else:
            self._prepare(job)
            if not job.lost and (seconds := self._presence.wait(job)):
                time.sleep(seconds)
            value, done = execute(job, self._context, self._fetch, release)
            value = _as_read_back(job, value)
            self.done.append(done)
            if self.watch:
                self.watch(done)
        self._values[name] = value
        self._infos[name] = _info(value)
        for used in [name for name, times in waiting.items() if times]:  # a stream has let its own go
            self._uses[used] -= waiting[used]
            self._let_go(used)

    def _prepare(self, job: Job) -> None:
        """Have the inputs ready, so that the time of a job is its own and not that of all it waits for."""
        streamed = getattr(job.task, "streaming", ())
        for ref in refs_in({} if job.lost else {name: x for name, x in job.inputs.items() if name not in streamed}):
            if ref.name in self._jobs:
                self._carry_out(ref.name)

    def _let_go(self, name: str) -> None:
        if name in self._dropped and name not in self._jobs and self._uses[name] <= 0:
            self._values.pop(name, None)
            self._files.pop(name, None)
            self._uses.pop(name, None)
            self._dropped.discard(name)


def _as_read_back(job: Job, value: Any) -> Any:
    """A value as other engines and a resumed run find it: the same types, and strides, by which kernels are chosen."""
    if value is LOST:
        return LOST
    try:
        skeleton, tensors = codecs.flatten(value)
    except TypeError as error:
        raise TaskError(f"{job.title} at {job.node} (home {job.home}) failed: TypeError: {error}") from error
    return codecs.rebuild(skeleton, [tensor.view(-1).view(tensor.shape) for tensor in tensors])


def _info(value: Any) -> Info | None:
    return None if value is LOST else codecs.info(value)


def _same(value: Any) -> Any:
    """A move."""
    return value


def _either(new: Any, old: Any) -> Any:
    """A choice between two names."""
    return old if new is LOST else new
