"""The contract of an engine, so that a new one can be written from this file.

An engine keeps named, immutable values at homes (the server, sectors, clients) and executes jobs there. It knows tasks
and homes; it does not know sectors, methods or the ledger. Where and when jobs are executed never changes a result: all
engines return the same bits.

Life of an engine, all calls from one thread:

1. `start(context)` begins a run and forgets the values of the run before.
2. In every round the federation calls `submit`, `move`, `either`, `drop` and `trim` in the order of the method's code.
   These never wait. A job may name values that are not computed yet, but never a value that was not submitted.
3. `finish(names)` waits until those values are there. The training loop calls it once per round, and then takes the
   reports out of `done`. `info` and `read` wait for one value; `save` and `load` belong to checkpoints.
4. `close()` releases everything. A closed engine can be started again.

To write an engine:

- Implement the methods of `Engine`. `headwater.engines.inline` is the shortest engine and the reference for all others;
  `headwater.engines.workers.engine.WorkerEngine` has all the bookkeeping for engines with worker processes.
- Execute jobs with `execute`, and groups of jobs with `execute_together` (`headwater.engines.execution`). They replace
  names by values, seed the random streams by `Job.key`, and check results for NaN.
- Optionally add `submit_group(group)`, which takes a `JobGroup` in place of its jobs. Broadcast values, and results of
  groups, then come as groups of refs (`headwater.engines.refs`), and `read` takes a ref with `member == EVERY`.
- Pass values on as `headwater.core.serialization` would read them back, so that strides and alignment are the same on
  every engine.
- Add `INFO = ValueInfo(name, summary)` and the class method `from_config` (see `ConfiguredEngine`). An engine in this
  package is then listed; one of your own is chosen as `engine.name = "package.module:Name"`.
- Run `tests/engines/test_contract.py` with it: it tests every sentence of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from headwater import registry
from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.engines.jobs import EVERY, LOST, Job, Ref
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.config.sections import EngineConfig


class Done(NamedTuple):
    """Report of one finished job, or of a group that was executed as one: for progress, notes and the time line.

    Args:
        name: name of the result.
        title: name of the task function.
        phase: phase of the task.
        notes: node → numbers that the task noted there.
        round: round that the job belongs to.
        start: when execution began, in seconds since the epoch.
        end: when it ended.
        worker: number of the worker that executed it.
    """

    name: str
    title: str
    phase: str
    notes: Mapping[str, Mapping[str, float]]
    round: int
    start: float
    end: float
    worker: int = 0

    @property
    def node(self) -> str:
        """The node, or the first node of a group."""
        return next(iter(self.notes))


Files = Mapping[str, str | Mapping[str, str]]  # name → file name; for a group {node: file name}; "" for a lost value
# Size and kind of one value, or of each member of a group by node.
Infos = ValueInfo | None | Mapping[str, ValueInfo | None]


class Engine(Protocol):
    """Named values at homes, and the jobs that compute them. See the module's docstring for the order of calls.

    Attributes:
        done: reports of finished jobs, in order of completion. The training loop removes them.
        watch: called with every report, in the thread that calls the engine; may be None.
    """

    done: list[Done]
    watch: Callable[[Done], None] | None

    def start(self, context: RunContext) -> None:
        """Begin a run: forget every value, job and report of the run before. Called before anything else.

        Args:
            context: data, architectures and seed of the run. Never changed while the run lasts.
        """

    def submit(self, *jobs: Job) -> None:
        """Accept a job, or a group of jobs of one task that have one name and are executed as one. Does not wait.

        The engine decides when to execute it. An error of the task is raised by a later call as `TaskError`.

        Args:
            *jobs: all values that they name were submitted or moved before, and are at the job's home.
        """

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        """Give a value another name, at another home. Does not wait; the value need not be computed yet.

        Args:
            ref: the value, or a part of it. With `member == EVERY` a group is moved as one, and the new name is that of
                a group.
            home: where it goes. A value that goes to several homes is moved once: the new name is valid at all of them
                (except on an engine whose homes are separate parties).
            name: the new name.
            tiers: edges of the tree that the move is charged on. Engines that simulate ignore it.
        """

    def either(self, new: Ref, old: Ref, name: str) -> None:
        """Give another name to `new` or, if that is lost, to `old`. No task is executed and nothing is reported.

        Args:
            new: preferred value.
            old: value at the same home that replaces it.
            name: the new name.
        """

    def info(self, ref: Ref) -> ValueInfo | None:
        """Wait for a value and return its size and kind; None for a lost value.

        Raises:
            KeyError: the name is unknown or was dropped.
        """

    def read(self, ref: Ref) -> Any:
        """Wait for a value and return it; `LOST` for a lost value. The caller must not change it.

        Raises:
            KeyError: the name is unknown or was dropped.
        """

    def drop(self, names: Iterable[str]) -> None:
        """Forget names. Does not wait.

        Guarantee: jobs that were submitted before still get the values, and `finish` still returns their sizes.

        Args:
            names: no later call but `finish` uses them. Unknown names are ignored.
        """

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        """Allow the engine to forget members of groups. It may also keep them.

        Args:
            members: name of a group → the nodes whose results are used later.
        """

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        """Wait for values, and for nothing that they do not need. Their reports are then in `done`.

        Args:
            names: results of `submit`, `move` and `either`, each of them once in a run, dropped or not.

        Returns:
            name → size and kind; None for a lost value. For a group {node: size and kind}.
        """

    def save(self, names: Iterable[str], directory: Path) -> Files:
        """Wait for values and write each to a file named by its content. A file that exists is not written again.

        Args:
            names: the values.
            directory: exists already.

        Returns:
            name → file name, "" for a lost value. For a group {node: file name}.
        """

    def load(self, files: Files, directory: Path) -> None:
        """Restore values that `save` wrote, under the same names. Called after `start`, before the first `submit`.

        Args:
            files: what `save` returned.
            directory: where the files are.
        """

    def close(self) -> None:
        """Release everything: values, files, processes and threads. Safe to call twice, and without `start`."""


class ConfiguredEngine(Engine, Protocol):
    """An engine that can be chosen by name, in a configuration or on the command line."""

    INFO: ClassVar[registry.Info]

    @classmethod
    def from_config(cls, options: EngineConfig, workers: int) -> Engine:
        """Return a new engine. Nothing is started before `start`.

        Args:
            options: the section `engine` of the configuration.
            workers: `engine.workers`, or the number of available CPUs if that is 0.
        """


def infos_of(value: Any, ref: Ref) -> Infos:
    """Return size and kind of what `ref` selected: of one value, or of each member of a group."""
    if ref.member == EVERY:
        return {node: serialization.info(held) for node, held in value.items()}
    return None if value is LOST else serialization.info(value)
