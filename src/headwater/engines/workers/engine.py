"""Base class of engines with workers: names of values, waiting for inputs, reports and errors.

A work item goes to a worker once its inputs are available, in the order of submission, while the method's code goes on
submitting. Reports of finished jobs (`done`, `watch`) are passed on by the thread that calls the engine, whenever it
waits.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from headwater.core import sealed, serialization
from headwater.core.rng import Key
from headwater.engines.availability import Availability
from headwater.engines.base import Done, Files, Infos
from headwater.engines.jobs import EVERY, Job, Ref
from headwater.engines.workers.scheduler import (
    GroupView,
    ReadyQueue,
    StoredValue,
    ValueSlot,
    ValueView,
    WorkItem,
    choose,
    views_of,
)
from headwater.errors import TaskError

MAX_DEATHS = 3  # workers that may die over one work item, or before they are ready


class WorkerEngine(ABC):
    """An engine whose jobs are executed by workers. A subclass starts workers, sends them items and takes replies.

    The lock `_changed` guards the workers and all state of a run. A subclass calls `ValueSlot.fill` when a result is
    there, `_worker_died` when an item has to be repeated and `_fail` when the run cannot go on; then it notifies
    `_changed`.
    """

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._count = self._run = 0  # work items and other stored values; runs
        self._reset()

    def _reset(self, availability: Availability | None = None) -> None:
        """Forget all state of a run."""
        self._names: dict[str, ValueView | GroupView] = {}
        self._unreported: set[str] = set()  # names whose size `finish` has not returned yet
        self._dropped: dict[str, ValueView | GroupView] = {}  # those of them that were dropped
        self._ready = ReadyQueue(availability, self._client_available)
        self._reports: list[Done] = []  # not passed on yet
        self._error: Exception | None = None
        self._failed_starts = 0
        self._call: tuple[int, tuple[Key, ...]] = (0, ())  # first item of the last call of a task, and the call's key

    # -- provided by a subclass; called with the lock held ------------------------------------------------------------

    @abstractmethod
    def _dispatch(self) -> None:
        """Send items of the ready queue to idle workers."""

    @abstractmethod
    def _store_file(self, path: Path) -> StoredValue:
        """Store the value in a file of a checkpoint."""

    # -- the contract of engines; called in one thread ----------------------------------------------------------------

    def submit(self, *jobs: Job) -> None:
        try:
            pickled = cloudpickle.dumps(jobs)
        except Exception as error:
            title = f"{jobs[0].title} at {jobs[0].node}"
            raise TaskError(f"{title} cannot be sent to a worker process: {error}") from error
        with self._changed:
            if self._error is not None:
                raise self._error.with_traceback(None)
            self._count += 1
            if jobs[0].key[:-1] != self._call[1]:  # otherwise another item of the same call of a task
                self._call = self._count, jobs[0].key[:-1]
            inputs = {ref.key: self._view(ref) for job in jobs for ref in job.refs()}
            slots = tuple(ValueSlot() for _ in jobs)
            item = WorkItem(self._count, self._call[0], self._run, jobs, pickled, inputs, slots)
            members = {job.node: ValueView(slot) for job, slot in zip(jobs, slots, strict=True)}
            self._assign(jobs[0].name, GroupView(members) if len(jobs) > 1 else ValueView(slots[0]))
            for view in inputs.values():
                view.slot.references += 1
            self._ready.push_when_available(item, inputs.values())
            self._dispatch()

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        with self._changed:
            view = self._names[ref.name]
            if ref.member == EVERY and isinstance(view, GroupView):
                parts = {node: ValueView(slot, part + ref.part) for node, (slot, part) in view.members.items()}
                moved: ValueView | GroupView = GroupView(parts)
            else:
                slot, part = self._view(ref)
                moved = ValueView(slot, part + ref.part)
            for each in views_of(moved):
                each.slot.references += 1
            self._assign(name, moved)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        with self._changed:
            views = [self._view(ref) for ref in (new, old)]
            parts = [ValueView(slot, part + ref.part) for (slot, part), ref in zip(views, (new, old), strict=True)]
            self._assign(name, ValueView(choose(*parts)))

    def info(self, ref: Ref) -> serialization.ValueInfo | None:
        return self._available(self._view(ref)).info()

    def read(self, ref: Ref) -> Any:
        return self._available(self._view(ref)).value(ref.part)

    def drop(self, names: Iterable[str]) -> None:
        with self._changed:
            for name in names:
                view = self._names.pop(name, None)
                if view is None:
                    continue
                if name in self._unreported:
                    self._dropped[name] = view
                for each in views_of(view):
                    if not self._needed_for_size(name, each):
                        each.slot.release()

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        with self._changed:
            for name, kept in members.items():
                view = self._names.get(name)
                if not isinstance(view, GroupView) or name in self._unreported:
                    continue
                for node in [node for node in view.members if node not in kept]:
                    view.members.pop(node).slot.release()

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        infos: dict[str, Infos] = {}
        for name in names:
            view = self._names[name] if name in self._names else self._dropped[name]
            if isinstance(view, GroupView):
                infos[name] = {node: self._available(each).info() for node, each in view.members.items()}
            else:
                infos[name] = self._available(view).info()
        with self._changed:
            for name in infos:
                if name in self._dropped:
                    for each in views_of(self._dropped.pop(name)):
                        if self._needed_for_size(name, each):
                            each.slot.release()
                self._unreported.discard(name)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> Files:
        views = {name: self._names[name] for name in names}  # after an error, available values can still be saved
        members = {name: x.members if isinstance(x, GroupView) else {"": x} for name, x in views.items()}
        each = {(name, node): view for name, group in members.items() for node, view in group.items()}
        resolved = {key: x.resolved if x.slot.available else self._available(x) for key, x in each.items()}
        files = serialization.store_all({key: partial(x.save, directory) for key, x in resolved.items()})
        return {
            name: {node: files[name, node] for node in x.members} if isinstance(x, GroupView) else files[name, ""]
            for name, x in views.items()
        }

    def load(self, files: Files, directory: Path) -> None:
        infos = {path: serialization.info(value) for path, value in sealed.read_all(files, directory).items()}
        slots = {"": ValueSlot(0, available=True)}
        with self._changed:
            for path, info in infos.items():
                stored = self._store_file(directory / path)
                slots[path] = ValueSlot(0, True, stored, info, {(directory, ()): path})
            for name, file in files.items():
                if isinstance(file, str):
                    view: ValueView | GroupView = ValueView(slots[file])
                else:
                    view = GroupView({node: ValueView(slots[one]) for node, one in file.items()})
                for each in views_of(view):
                    each.slot.references += 1
                self._names[name] = view

    # -- names and waiting --------------------------------------------------------------------------------------------

    def _view(self, ref: Ref) -> ValueView:
        """The value of a ref, perhaps a member of a group; `ref.part` is not applied."""
        view = self._names[ref.name]
        return view.members[ref.member] if isinstance(view, GroupView) else view

    def _available(self, view: ValueView) -> ValueView:
        """Wait for a value; return where it is stored."""
        self._wait(lambda: view.slot.available)
        return view.resolved

    def _assign(self, name: str, view: ValueView | GroupView) -> None:
        self._names[name] = view
        self._unreported.add(name)

    def _needed_for_size(self, name: str, view: ValueView) -> bool:
        """Whether `finish` needs a dropped value: the size of a part, or of a choice, is read from what is stored."""
        return name in self._unreported and (bool(view.part) or view.slot.choice)

    def _wait(self, until: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._reports) or self._error is not None or until())
                reports, self._reports = self._reports, []
                error, over = self._error, until()
            for done in reports:
                self.done.append(done)
                if self.watch:
                    self.watch(done)
            if error is not None:
                raise error.with_traceback(None)
            if over:
                return

    def _client_available(self) -> None:
        with self._changed:
            if not self._closing:
                self._dispatch()

    # -- failures; with the lock held ---------------------------------------------------------------------------------

    def _worker_died(self, item: WorkItem, how: str) -> None:
        """Repeat an item whose worker died, unless it has killed too many workers.

        Args:
            item: what the worker was executing.
            how: how it died, for the message.
        """
        item.deaths += 1
        if item.deaths < MAX_DEATHS:
            self._ready.push(item)
        else:
            failure = f"{item.title} failed: a worker process died over it {MAX_DEATHS} times, the last {how}"
            self._fail(TaskError(f"{failure}; memory may be short, so try fewer workers or smaller batches"))

    def _fail(self, error: Exception) -> None:
        """End the run: the thread that calls the engine raises the first error, and nothing more is started."""
        self._error = self._error or error
        self._ready.clear()
