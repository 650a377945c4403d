"""One after the other, here: the specification of every other engine.

Jobs wait until something asks for a value and are then carried out backwards from what was asked, each value let go
after its last use. So an average that reads its models in order pulls them one at a time and never holds more than two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from headwater import codecs
from headwater.codecs import Info
from headwater.engines.base import LOST, Done, Job, Ref, execute, pick, refs_in
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
        self._context = context
        self._jobs: dict[str, Job] = {}  # not yet carried out
        self._values: dict[str, Any] = {}
        self._infos: dict[str, Info | None] = {}
        self._depth: dict[str, int] = {}  # how many jobs wait below a job
        self._uses: Counter[str] = Counter()  # by jobs and moves that wait
        self._dropped: set[str] = set()
        self._files: dict[str, str] = {}  # what is on disk already, by name
        self.done.clear()

    def submit(self, job: Job) -> None:
        depth = 1 + max((self._depth.get(ref.name, 0) for ref in job.refs()), default=0)
        if depth > DEEPEST:
            for ref in job.refs():
                self._fetch(ref)
            depth = 1
        self._jobs[job.name], self._depth[job.name] = job, depth
        self._uses.update(ref.name for ref in job.refs())

    def move(self, ref: Ref, home: str, name: str) -> None:
        self.submit(Job(name, _same, home, home, {"value": Ref(ref.name, home, ref.part)}, (), lost=False))

    def info(self, name: str) -> Info | None:
        if name in self._jobs:
            self._carry_out(name)
        return self._infos[name]

    def read(self, ref: Ref) -> Any:
        return self._fetch(ref)

    def drop(self, names: Iterable[str]) -> None:
        self._infos = {name: info for name, info in self._infos.items() if name in self._values}
        self._dropped.update(names)
        while unused := [n for n in self._jobs if not self._uses[n]]:  # they pull the rest, except what lost jobs need
            for name in unused:
                self._carry_out(name)
        for name in list(self._dropped):
            self._let_go(name)

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
        self._infos |= {name: None if value is LOST else codecs.info(value) for name, value in values.items()}
        self._files |= files

    def close(self) -> None:
        self._values, self._jobs = {}, {}
        torch.set_num_threads(self._outer_threads)

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
        else:
            self._prepare(job)
            value, done = execute(job, self._context, self._fetch, release)
            value = _as_read_back(job, value)
            self.done.append(done)
            if self.watch:
                self.watch(done)
        self._values[name] = value
        self._infos[name] = None if value is LOST else codecs.info(value)
        for used, times in waiting.items():
            self._uses[used] -= times
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


def _same(value: Any) -> Any:
    return value
