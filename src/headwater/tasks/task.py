"""What a task finds where it runs, and what marks a function as a task.

A task is a pure function of a `TaskContext` and its inputs. It knows nothing of sectors, engines or ledgers; it sees
the data of the home it runs at and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from headwater.core.params import Params
from headwater.core.rng import Key, derive, stream, streams
from headwater.core.serialization import aligned
from headwater.core.tree import ROOT
from headwater.data.base import Examples, Split
from headwater.models.base import ModelSpec
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.flat_module import FlatModule

Function = TypeVar("Function", bound=Callable[..., Any])
ALONE = "loop"  # the way of training in which every client is computed by itself


@dataclass(frozen=True)
class Ask:
    """What a task would do for every value of its mapping input `of`, and another task, `by`, may do beforehand.

    That one takes `members`, which `part` of how many of them, and inputs of the first that it names itself. It gives
    {name: answer} from a pass over rows of this kind: inputs, validation or test. `when` tells from the task's inputs
    whether it is needed.
    """

    of: str
    by: Callable[..., Any]
    on: str
    when: Callable[[Mapping[str, Any]], bool] = lambda given: True


def task(
    phase: str,
    streaming: tuple[str, ...] = (),
    together: Callable[..., Any] | None = None,
    asks: Mapping[str, Ask] | None = None,
    stacked: bool = False,
) -> Callable[[Function], Function]:
    """Mark a function as a task. `streaming` names the mapping inputs that it reads once and in order.

    `together(contexts, inputs)` does it at several homes at once, and gives None where it cannot. With `stacked`
    it computes their models as one, which is done in groups of the width that the run's stacking allows; without, a
    group has any number of homes. `asks` names inputs that other tasks may make: {group: {name: answer}}, or nothing
    where it does not pay.
    """

    def mark(function: Function) -> Function:
        function.phase, function.streaming = phase, streaming  # type: ignore[attr-defined]
        function.together, function.stacked, function.asks = together, stacked, asks or {}  # type: ignore[attr-defined]
        return function

    return mark


@dataclass
class RunContext:
    """All that a process needs to serve any home: the data, the architectures and the seed. Never changed."""

    split: Split
    rows: Mapping[str, np.ndarray]  # client → its rows of the training set
    test_rows: Mapping[str, np.ndarray]  # client → rows kept for its own test
    models: Mapping[str, ModelSpec]  # by architecture
    seed: int
    method: str = ""  # as it is named in sentences
    bad_update: str = "drop"  # what becomes of a result that is not finite: "drop" or "stop"
    causes: Mapping[str, str] = field(default_factory=dict)  # phase → the settings that may be behind such a result
    stack: str = ALONE  # how models of clients are trained, a way of stages.stacking
    server_threads: int = 0  # of a student that is trained at the server; 0: as any task
    availability: float = 1.0  # share of the time that a client is there to begin a task
    period: float = 10.0  # seconds from one coming of a client to the next
    sector_of: Mapping[str, str] = field(default_factory=dict)  # for engines that place work; tasks do not see it
    secret: str = ""  # of this party alone, where noise is to hide something from the others
    helpers: Helpers | None = None  # of this process, for parts of a task that do not depend on each other
    _flat_modules: dict[tuple[str, int], FlatModule] = field(default_factory=dict)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Data lies on the same boundaries on every engine, since kernels may round by where their operands lie."""
        split = self.split
        sets = {name: getattr(split, name) for name in ("train", "validation", "test")}
        moved: dict[str, Any] = {}
        for name, rows in sets.items():
            if (x := aligned(rows.x)) is not rows.x:
                moved[name] = Examples(x, rows.y)
        if (reference := aligned(split.reference)) is not split.reference:
            moved["reference"] = reference
        if moved:
            self.split = replace(split, **moved)

    def flat_module(self, arch: str, slot: int) -> FlatModule:
        """One module a process and architecture, used again by every task (`slot` tells several at once apart)."""
        if (arch, slot) not in self._flat_modules:
            self._flat_modules[arch, slot] = FlatModule(self.models[arch], arch)
        return self._flat_modules[arch, slot]

    def initial(self, arch: str, number: int) -> Params:
        """A freshly drawn model, another one for each number."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(self.seed, "model", arch, *((number,) if number else ())))
            return Params.of(self.models[arch].build(), arch, self.models[arch].buffers, weight=0.0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_flat_modules": {}, "_known": {}, "sector_of": {}, "helpers": None}


class TaskContext:
    """One home during one task."""

    def __init__(self, context: RunContext, home: str, key: tuple[Key, ...]) -> None:
        self._context, self.home, self._key = context, home, key
        self.notes: dict[str, float] = {}
        self.classes = context.split.classes

    @cached_property
    def rng(self) -> np.random.Generator:
        """This task's own chance; making a generator takes longer than many a task."""
        return stream(self._context.seed, "task", *self._key)

    @cached_property
    def noise(self) -> np.random.Generator:
        """Chance that nobody else can repeat, where this party has a secret; else this task's own."""
        secret = self._context.secret
        return stream(self._context.seed, "secret", secret, *self._key) if secret else self.rng

    @property
    def rows(self) -> np.ndarray | None:
        """Which rows of the table are this home's own."""
        return self._context.rows.get(self.home)

    @property
    def table(self) -> Examples:
        """All that clients train on, for those who may take only their rows out of it: clients trained together."""
        return self._context.split.train

    @property
    def stack(self) -> str:
        return self._context.stack

    @property
    def helpers(self) -> Helpers | None:
        """Threads of this process, for parts of a task that do not depend on each other, if there are any."""
        return self._context.helpers

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is the same in every round: made once a process."""
        known = self._context._known
        if key not in known:
            known[key] = make()
        return known[key]

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Work at the server for which all others of a round wait may take more threads than other work."""
        usual = torch.get_num_threads()
        torch.set_num_threads((self._context.server_threads if self.home == ROOT else 0) or usual)
        try:
            yield
        finally:
            torch.set_num_threads(usual)

    @cached_property
    def data(self) -> Examples | None:
        """The training rows of this home; a sector's host and the server have none."""
        rows = self._context.rows.get(self.home)
        return None if rows is None else self._context.split.train.take(rows)

    @cached_property
    def own_test(self) -> Examples | None:
        rows = self._context.test_rows.get(self.home)
        return None if rows is None or not len(rows) else self._context.split.train.take(rows)

    @property
    def inputs(self) -> torch.Tensor:
        """Inputs without labels, to distil on: a client's own, or the reference set at the server."""
        if self.home == ROOT:
            return self._context.split.reference
        data = self.data
        if data is None:
            raise LookupError(f"{self.home} holds no data to distil on; seat one of its clients as leader")
        return data.x

    @property
    def labels(self) -> torch.Tensor | None:
        """Labels of the inputs to distil on, where the server's reference set has any; a client's own are not used."""
        return self._context.split.reference_labels if self.home == ROOT else None

    @property
    def validation(self) -> Examples:
        return self._at_server().validation

    @property
    def test(self) -> Examples:
        return self._at_server().test

    def _at_server(self) -> Split:
        if self.home != ROOT:
            raise LookupError(
                f"the validation and test sets are at the server, not at {self.home}; move them there first"
            )
        return self._context.split

    def flat_module(self, params: Params, slot: int = 0) -> FlatModule:
        """A module that holds these parameters until the next call."""
        return self._context.flat_module(params.layout.arch, slot).load(params)

    def blank(self, arch: str) -> FlatModule:
        """The module of an architecture, whatever it holds."""
        return self._context.flat_module(arch, 0)

    def initial(self, arch: str, number: int = 0) -> Params:
        return self._context.initial(arch, number)

    def note(self, **numbers: float) -> None:
        """Numbers for the report; methods do not see them."""
        self.notes |= {name: float(number) for name, number in numbers.items()}


def task_generators(contexts: Sequence[TaskContext]) -> list[np.random.Generator]:
    """What `rng` is at each of these, made at once; for contexts of one run that are asked for it nowhere else."""
    return streams(contexts[0]._context.seed, [("task", *ctx._key) for ctx in contexts]) if contexts else []
