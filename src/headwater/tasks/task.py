"""Tasks: what marks a function as one, and what it can use where it runs.

A task is a pure function of a `TaskContext` and its inputs. It sees the data of its home and nothing else; it knows
nothing of sectors, engines or ledgers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch

from headwater.core.params import Params
from headwater.core.rng import Key, SecretStream, derive, stream
from headwater.core.tree import ROOT
from headwater.data.base import Examples
from headwater.data.split import Split
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.cost import Ask, Cost, shaped_model
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.privacy import Privacy, told, with_noise
from headwater.tasks.robust import Robust
from headwater.tasks.run_context import ALONE, RunContext
from headwater.tasks.sums import Sums

__all__ = ["ALONE", "RunContext", "TaskContext", "task"]

Function = TypeVar("Function", bound=Callable[..., Any])


def task(
    phase: str,
    streaming: tuple[str, ...] = (),
    together: Callable[..., Any] | None = None,
    prepare: Callable[..., Any] | None = None,
    asks: Mapping[str, Ask] | None = None,
    stacked: bool = False,
    cost: Cost | Callable[..., Cost] | None = None,
    returns: str | Callable[..., Any] | None = None,
    shows_rows: bool = False,
    noisy: bool = False,
    sums: Sums | None = None,
    update: str = "",
    derived: bool | Callable[..., bool] = False,
    passes: Mapping[str, str] | None = None,
    takes_bound: bool = False,
    masks: Literal["", "add", "remove"] = "",
) -> Callable[[Function], Function]:
    """Mark a function as a task, which a method runs with `fed.run(function, at=…, name=input, …)`.

    Only `phase` is needed. `cost` and `returns` are for `headwater plan` and change nothing in a run. Both may be
    functions that take what the task takes, with outlines in place of values (see `headwater.tasks.cost`). The options
    up to `stacked` are about memory and speed, those from `shows_rows` on about privacy.

    Args:
        phase: "train", "distill", "average" or "evaluate": where its time is counted.
        streaming: mapping inputs that are read once and in order, not all in memory; a second read is a `TaskError`.
        together: `together(contexts, inputs)` computes several homes at once; None for each that it cannot serve.
        prepare: `prepare(contexts, inputs)` does the first part of `together`, and returns a function for the rest.
        asks: input {group: {name: outputs}} → `Ask`: how other tasks may compute it beforehand; else it is missing.
        stacked: whether `together` computes the clients' models as one, in groups of the width that suits the run.
            Otherwise a group has any number of homes.
        cost: how much the task computes. Without it, a task of phase "train" or "distill" is listed as not counted,
            and other tasks count as `Cost()`.
        returns: outline of the result: the name of an input that it has the form of, `ITSELF` if the task can be run
            on outlines, or a function. Without it, `plan` runs the task once at each home, on stand-ins for its inputs.
        shows_rows: whether the result holds rows of the home's data. A deployed client refuses such a task.
        noisy: whether the result is protected by `ctx.noise`. A deployed client draws it once a round, also if the
            round is repeated.
        sums: (input, function) if the task uses a mapping input only through a sum, which is all that it then gets with
            `privacy.secure`; the function takes the other inputs and returns the kind of sum, or why there is none.
        update: the input that the task trains on the home's rows: the result holds the trained model, whose difference
            from this input is what `[privacy]` bounds.
        derived: whether the result follows from the inputs alone and not from the home's rows, or a function of the
            inputs that says so. By it, `[privacy]` tells what leaves a client unprotected.
        passes: part of the result → name of the input that is returned there, unchanged.
        takes_bound: whether the task has an input `bound`, the largest update of the round where that is adapted.
        masks: "add" if the result tells nothing about the inputs until a task that says "remove" has it.

    Example:
        A task that trains and returns only the change, with its cost and its size declared::

            @task("train", cost=lambda ctx, start, spec: training_cost(start, ctx.samples, spec), returns="start")
            def update(ctx: TaskContext, start: Params, spec: LocalSpec) -> Params:
                return local_train(ctx, start, spec) - start
    """

    def mark(function: Function) -> Function:
        function.phase, function.streaming = phase, streaming  # type: ignore[attr-defined]
        function.together, function.prepare = together, prepare  # type: ignore[attr-defined]
        function.stacked, function.asks = stacked, asks or {}  # type: ignore[attr-defined]
        function.cost, function.returns = cost, returns  # type: ignore[attr-defined]
        function.shows_rows, function.noisy = shows_rows, noisy  # type: ignore[attr-defined]
        function.update, function.derived, function.passes = update, derived, passes or {}  # type: ignore[attr-defined]
        function.takes_bound, function.masks, function.sums = takes_bound, masks, sums  # type: ignore[attr-defined]
        return function

    return mark


class TaskContext:
    """What a task can use: the data of its home, models, and its own random generators.

    Attributes:
        home: where the task runs: a client, a sector's host or the server.
        classes: number of classes.
        notes: numbers for the report, written by `note`.
    """

    def __init__(self, context: RunContext, home: str, key: tuple[Key, ...]) -> None:
        self._context, self.home, self._key = context, home, key
        self.notes: dict[str, float] = {}
        self.classes = context.split.classes

    @property
    def key(self) -> tuple[Key, ...]:
        """Name of the random streams of this task: the round, the task, the nth call of it and the node."""
        return self._key

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random generator of this task, created lazily because creation is slow."""
        return stream(self._context.seed, "task", *self._key)

    @cached_property
    def noise(self) -> np.random.Generator | SecretStream:
        """A generator that no other party can repeat if this party has a secret; otherwise `rng`."""
        return SecretStream(self._context.secret, *self._key) if self._context.secret else self.rng

    def entropy(self, count: int) -> bytes:
        """Random bytes for keys: the system's where parties are separate, else such that a run can be repeated."""
        return os.urandom(count) if self._context.party else stream(self._context.seed, "keys", *self._key).bytes(count)

    @cached_property
    def augment_rng(self) -> np.random.Generator:
        """Random generator for changes of training inputs, apart from `rng` so that batches stay the same."""
        return stream(self._context.seed, "augment", *self._key)

    @property
    def torch_seed(self) -> int:
        """Seed of torch's generators while this task runs, from which dropout draws."""
        return derive(self._context.seed, "torch", *self._key)

    @property
    def rows(self) -> np.ndarray | None:
        """Indices of this home's rows in `table`; None at a sector's host and at the server."""
        return self._context.rows.get(self.home)

    @cached_property
    def samples(self) -> int:
        """How many training rows this home holds."""
        return len(self._context.rows.get(self.home, ()))

    @cached_property
    def test_samples(self) -> int:
        """How many rows this home keeps for its own test."""
        return len(self._context.test_rows.get(self.home, ()))

    @property
    def table(self) -> Examples:
        """Training rows of all clients, for tasks that take only their own rows out of it. Always on the host."""
        return self._context.split.train

    @cached_property
    def data(self) -> Examples | None:
        """Training rows of this home; None at a sector's host and at the server."""
        rows, split = self._context.rows.get(self.home), self._context.split
        return None if rows is None else self._rows("train", lambda: split.train.take(rows))

    @cached_property
    def own_test(self) -> Examples | None:
        """Rows of this home's own test; None if there are none."""
        rows, split = self._context.test_rows.get(self.home), self._context.split
        return None if rows is None or not len(rows) else self._rows("own test", lambda: split.local_tests.take(rows))

    def _rows(self, name: str, make: Callable[[], Any]) -> Any:
        return self._context.rows_of((name, self.home), make)

    @property
    def inputs(self) -> torch.Tensor:
        """Inputs without labels, to distil on: a client's own, or the reference set at the server."""
        if self.home == ROOT:
            return cast(torch.Tensor, self._rows("reference", lambda: self._context.split.reference))
        if (data := self.data) is None:
            raise LookupError(f"{self.home} holds no data to distil on; seat one of its clients as leader")
        return data.x

    @property
    def labels(self) -> torch.Tensor | None:
        """Labels of the reference set, at the server and if it has any; labels of a client are not used to distil."""
        if self.home != ROOT or self._context.split.reference_labels is None:
            return None
        return cast(torch.Tensor, self._rows("reference labels", lambda: self._context.split.reference_labels))

    @property
    def own_labels(self) -> torch.Tensor | None:
        """Labels of the reference set that number its source's own classes, at the server and if it has any."""
        if self.home != ROOT or self._context.split.reference_own_labels is None:
            return None
        return cast(torch.Tensor, self._rows("own labels", lambda: self._context.split.reference_own_labels))

    @property
    def validation(self) -> Examples:
        """The validation set, which only the server has."""
        split = self._at_server()
        return cast(Examples, self._rows("validation", lambda: split.validation))

    @property
    def test(self) -> Examples:
        """The test set, which only the server has."""
        split = self._at_server()
        return cast(Examples, self._rows("test", lambda: split.test))

    def _at_server(self) -> Split:
        if self.home != ROOT:
            raise LookupError(f"validation and test sets are at the server, not at {self.home}; move them there first")
        return self._context.split

    def flat_module(self, params: Params, slot: int = 0) -> FlatModule:
        """A module that holds these parameters until the next call with this architecture and slot."""
        return self._context.flat_module(params.layout.arch, slot).load(params)

    def blank(self, arch: str) -> FlatModule:
        """The module of an architecture with arbitrary weights."""
        return self._context.flat_module(arch, 0)

    def initial(self, arch: str, number: int = 0) -> Params:
        """A freshly drawn model; 0 is the start of the run, each other number another draw."""
        return self._context.initial(arch, number)

    def outline(self, arch: str) -> Params:
        """Outline of a model: its shapes and types without numbers."""
        outline: Params = self.once(("outline", arch), lambda: shaped_model(self._context.models[arch], arch))
        return outline

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returns, computed once per process and kept: for what is the same in every round."""
        cache = self._context._cache
        if key not in cache:
            cache[key] = make()
        return cache[key]

    @property
    def device(self) -> torch.device:
        """Where this task computes: its rows, inputs and modules are there."""
        return self._context.device

    def put(self, value: Any) -> Any:
        """A value where this task computes. Needed only for what the task draws or makes on the host itself."""
        return self._context.put(value)

    @property
    def stack(self) -> str:
        """How models of clients are trained: a way of `tasks.batched.policy`."""
        return self._context.stack

    @property
    def robust(self) -> Robust:
        """How models and teachers are combined here."""
        return self._context.robust[self.home == ROOT]

    @property
    def privacy(self) -> Privacy:
        """What protects clients and their rows."""
        return self._context.privacy

    def hidden(self, model: Params, deviation: float) -> Params:
        """The model with noise on every number, of this standard deviation."""
        return with_noise(model, deviation, self._context, self._key)

    @property
    def backdoored(self) -> bool:
        """Whether clients of this run simulate a backdoor, whose success is then measured."""
        return self._context.attack is not None and self._context.attack.kind == "backdoor"

    @property
    def helpers(self) -> Helpers | None:
        """Threads of this process for independent parts of a task, if there are any."""
        return self._context.helpers

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Use the server's threads: for work at the server that the whole round waits for."""
        usual = torch.get_num_threads()
        torch.set_num_threads((self._context.server_threads if self.home == ROOT else 0) or usual)
        try:
            yield
        finally:
            torch.set_num_threads(usual)

    def note(self, **numbers: float) -> None:
        """Report numbers; they appear in the round's row, and methods do not see them."""
        if self.home in self._context.rows:
            numbers = told(numbers, self._context.privacy)
        self.notes |= {name: float(number) for name, number in numbers.items()}
