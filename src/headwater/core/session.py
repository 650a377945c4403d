"""Shared state of one run: the engine, the ledger, the names of live values and the counters of the current round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from headwater.core.ledger import Ledger
from headwater.core.submission import Precompute
from headwater.engines.base import Engine
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import Job
from headwater.secure.setting import SecureSums


@dataclass
class Session:
    """Shared state of all `Federation` views of one run.

    Args:
        engine: runs jobs and keeps values.
        ledger: counts what is moved.
        seed: seed of the run.
        calls: calls so far in this round, by task name; "" counts the names given out.
        submitted: jobs by round and phase, for the progress bar.
        named: names of values that have not been dropped yet.
        opened: names given out by round, until the round is settled.
        dropout: probability that a client is lost in a round (simulated faults).
        lost: homes that were lost in this round.
        width: largest number of clients that are trained as one batched computation.
        rows: training rows per job where clients are not batched; 0 gives each client a job of its own.
        small: largest number of clients in such a job.
        precompute: which forward passes become jobs of their own.
        secure: from whom single values are hidden.
        hidden: values of this round that may only enter a sum, by name and part → whether they have.
        bound: largest norm of an update in this round, where it is adapted; 0: it stays as it is.
        planned_steps: (clients, round) → steps of a round, for a learning rate that depends on the steps of all.
    """

    engine: Engine
    ledger: Ledger
    seed: int
    calls: Counter[str] = field(default_factory=Counter)
    submitted: Counter[tuple[int, str]] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)
    opened: dict[int, list[str]] = field(default_factory=dict)
    dropout: float = 0.0
    lost: set[str] = field(default_factory=set)
    width: int = 1
    rows: int = 0
    small: int = 1 << 30
    precompute: Precompute = field(default_factory=Precompute)
    bound: float = 0.0
    planned_steps: dict[tuple[int, int], int] = field(default_factory=dict)
    secure: SecureSums = SecureSums()  # noqa: RUF009 (frozen)
    hidden: dict[tuple[str, tuple[Any, ...]], bool] = field(default_factory=dict)

    @property
    def losing(self) -> bool:
        """True if homes are separate parties that may be lost at any time."""
        return getattr(self.engine, "losing", False)

    @property
    def takes_groups(self) -> bool:
        """True if the engine takes a group of jobs as one object, and homes are not separate parties."""
        return hasattr(self.engine, "submit_group") and not self.losing

    @property
    def witness(self) -> Callable[..., None] | None:
        """Called with (view, row of the ledger, value, new home) for every move, if the engine wants to know."""
        return getattr(self.engine, "witness", None)

    def groups(self, task: Any, nodes: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
        """Split nodes into groups that run as one job. Depends only on the configuration and on who takes part.

        Args:
            task: the task that will run.
            nodes: nodes it runs at, in tree order.
            sizes: training rows by node.
        """
        width = 1
        if nodes and not self.losing and getattr(task, "together", None) is not None:
            width = self.width if task.stacked else len(nodes)
            if task.stacked and width == 1:
                rows = max(1, sum(sizes[node] for node in nodes))
                width = max(1, min(self.small, self.rows * len(nodes) // rows))
        count = math.ceil(len(nodes) / width)
        for at in range(count):
            yield nodes[at * len(nodes) // count : (at + 1) * len(nodes) // count]

    def submit(self, round: int, jobs: Sequence[Job]) -> None:
        """Submit the jobs of one call of `run`. Consecutive jobs with one name form one group."""
        for _, group in groupby(jobs, key=lambda job: job.name):
            self.engine.submit(*group)
        if jobs:
            self.submitted[round, jobs[0].phase] += len(jobs)

    def submit_groups(self, round: int, groups: Sequence[JobGroup]) -> None:
        """Submit the groups of one call of `run` to an engine that takes them as they are."""
        for group in groups:
            self.engine.submit_group(group)  # type: ignore[attr-defined]
            self.submitted[round, group.phase] += len(group.nodes)

    def name(self, round: int, what: str) -> str:
        """Return a new name. It depends only on the program, so every engine and every resumed run gives the same."""
        self.calls[""] = count = self.calls[""] + 1
        name = f"{round}.{count}.{what}"
        self.named.add(name)
        self.opened.setdefault(round, []).append(name)
        return name

    def release(self, needed: Mapping[str, Collection[str]]) -> None:
        """Drop all values but these. Does not wait: jobs that were submitted before still get their inputs.

        Args:
            needed: name → members of the group that are needed; an empty collection means the whole value.
        """
        self.engine.drop(self.named - needed.keys())
        self.named &= needed.keys()
        if groups := {name: members for name, members in needed.items() if members}:
            self.engine.trim(groups)
        self.precompute.submitted.clear()

    def settle(self, until: int) -> None:
        """Wait until all rounds up to `until` are done, and add up their rows of the ledger."""
        due = [round for round in self.opened if round <= until]
        infos = self.engine.finish([name for round in due for name in self.opened.pop(round)])
        self.ledger.settle(infos, until)
        for key in [key for key in self.submitted if key[0] <= until]:
            del self.submitted[key]
