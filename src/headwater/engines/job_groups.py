"""Jobs of one task that are executed as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headwater.core.rng import Key
from headwater.engines.jobs import Call, Job
from headwater.engines.refs import RefGroup


@dataclass(eq=False)
class JobGroup(Call):
    """Jobs of one task at several clients that are executed as one. Treat it as immutable.

    Args:
        name: name of the result, {node: result}.
        task: the task function.
        nodes: the clients, in tree order. Each is its own home.
        inputs: inputs that are the same everywhere, with a `RefGroup` in place of each value that was broadcast.
        key: names the random streams: round, task, nth call of it in the round; the node follows.
        lost: nodes whose job the fault model has drawn to be lost.
        sizes: number of samples by node.
    """

    name: str
    task: Callable[..., Any]
    nodes: tuple[str, ...]
    inputs: Mapping[str, Any]
    key: tuple[Key, ...]
    lost: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(jobs: tuple[Job, ...]) -> JobGroup:
        """The group of some jobs, of any homes and with any inputs."""
        first, lost = jobs[0], frozenset(job.node for job in jobs if job.lost)
        group = JobGroup(first.name, first.task, tuple(job.node for job in jobs), {}, first.key, lost)
        group.__dict__["jobs"] = jobs
        return group

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The single jobs, created on first use."""
        plain = frozenset(name for name, item in self.inputs.items() if not isinstance(item, RefGroup))
        return tuple(
            Job(
                self.name,
                self.task,
                node,
                node,
                {name: item if name in plain else item.ref(node) for name, item in self.inputs.items()},
                (*self.key, node),
                node in self.lost,
                self.sizes[node],
                plain,
            )
            for node in self.nodes
        )

    @property
    def broadcast(self) -> bool:
        """Whether all jobs have the same inputs, which `inputs` holds; otherwise they are in `jobs`."""
        return bool(self.inputs)

    @cached_property
    def uses(self) -> Counter[str]:
        """How often the group names each of its inputs."""
        if self.broadcast:
            return Counter([item.name for item in self.inputs.values() if isinstance(item, RefGroup)])
        return Counter([leaf.name for job in self.jobs for leaf in job.leaves])

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Names of inputs of jobs that are not lost."""
        if self.broadcast:
            return tuple(self.uses) if len(self.lost) < len(self.nodes) else ()
        return tuple(dict.fromkeys(leaf.name for job in self.jobs if not job.lost for leaf in job.leaves))
