"""How `run` becomes jobs: groups of nodes, inputs at their homes, simulated dropout, precomputed teacher outputs.

Forward passes of teachers are separate jobs where a pass costs more than a job. Passes of several models then run in
parallel, each as soon as its model exists, and a pass that is needed twice in a round runs once. Outputs are the same
to the last bit as if the task had computed them itself. Whether passes are separate jobs depends only on the
configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from torch import nn

from headwater.core.tree import CLIENTS, ROOT, SERVER, Place
from headwater.core.values import Each, Located, each, inputs_for, split_inputs
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import Bundle, Job
from headwater.engines.refs import Ref, RefGroup, Refs
from headwater.models.base import ModelSpec
from headwater.specs import Descent, LocalSpec
from headwater.tasks.cost import Ask
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.core.federation import Federation

ROUND = ("", "")  # key of the steps before the round, in `Federation.steps_before`


def run(fed: Federation, task: Callable[..., Any], at: Place, inputs: Mapping[str, Any]) -> Located:
    """See `Federation.run`."""
    session, title = fed.session, getattr(task, "__name__", str(task))
    nth = session.calls[title]
    session.calls[title] += 1
    if session.bound and getattr(task, "takes_bound", False):
        inputs = {**inputs, "bound": session.bound}
    same, by_node = split_inputs(_with_own_rates(fed, at, nth, inputs), title)
    groups = list(session.groups(task, fed.nodes(at), fed.tree.sizes))
    if len(groups) < len(fed.nodes(at)) and (shared := _broadcast(fed, task, at, by_node)) is not None:
        return _run_groups(fed, task, groups, same | shared, (fed.round, title, nth))
    plain, jobs, refs = frozenset(same), [], {}
    sizes, seats, round = fed.tree.sizes, fed.seats, fed.round
    for group in groups:
        name, several = session.name(round, f"{title}@{group[0]}"), len(group) > 1
        for node in group:
            home = seats.get(node, node)
            values = same | inputs_for(by_node, title, at, node, home, seats.get(node))
            key, lost = (round, title, nth, node), _is_lost(fed, home, title, nth)
            jobs.append(Job(name, task, node, home, values, key, lost, sizes[home], plain))
            refs[node] = Ref(name, home, (), node if several else "")
    session.submit(round, add_precomputation(fed, jobs))
    return Located(at, refs)


def _with_own_rates(fed: Federation, at: Place, nth: int, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inputs in which a stage with a shared counter has each node's own learning rate."""
    before = fed.steps_before
    if not before:
        return inputs

    def own(spec: Descent) -> Each:
        section = "local" if isinstance(spec, LocalSpec) else "server" if at is SERVER else "sector"
        again = nth * before.get((section, ""), 0)  # sector rounds before this one
        first = before[ROUND]
        return each({node: spec.after(before.get((section, node), first) + again) for node in fed.nodes(at)})

    return {name: own(item) if isinstance(item, Descent) else item for name, item in inputs.items()}


def _broadcast(
    fed: Federation, task: Callable[..., Any], at: Place, by_node: Mapping[str, Any]
) -> dict[str, RefGroup] | None:
    """Inputs that every client of the view has received as one value; None if some input differs by client."""
    if at is not CLIENTS or not fed.session.takes_groups or getattr(task, "asks", None):
        return None
    broadcast: dict[str, RefGroup] = {}
    for name, value in by_node.items():
        if type(value) is not Located or value.place is not at or not isinstance(value.nodes, Refs):
            return None
        group = value.nodes.groups[0]
        if len(value.nodes.groups) > 1 or group.grouped or group.nodes != fed.clients:
            return None
        broadcast[name] = group
    return broadcast


def _run_groups(
    fed: Federation,
    task: Callable[..., Any],
    groups: Sequence[Sequence[str]],
    inputs: Mapping[str, Any],
    key: tuple[int, str, int],
) -> Located:
    """Run a task at clients that all have the same inputs: one job for each group."""
    (_, title, nth), jobs, refs = key, [], []
    for group in groups:
        nodes, name = tuple(group), fed.session.name(fed.round, f"{title}@{group[0]}")
        lost = (
            frozenset(node for node in nodes if _is_lost(fed, node, title, nth)) if fed.session.dropout else frozenset()
        )
        jobs.append(JobGroup(name, task, nodes, inputs, key, lost, fed.tree.sizes))
        refs.append(RefGroup(name, nodes, grouped=len(nodes) > 1))
    fed.session.submit_groups(fed.round, jobs)
    return Located(CLIENTS, Refs(refs))


def _is_lost(fed: Federation, home: str, title: str, nth: int) -> bool:
    """Whether simulated dropout loses this task.

    It is drawn by (round, home, task) in program order, so that every engine loses the same clients.
    """
    session = fed.session
    if session.dropout and home in fed.tree.sector_of and fed.purpose == "train":
        if fed.rng("faults", home, title, nth).random() < session.dropout:
            session.lost.add(home)
        return home in session.lost
    return False


LEAST = 5e8  # multiplications: a smaller pass takes about as long as handing out a job and returning its result
MOST = 1 << 30  # bytes of all outputs for one task, which exist at the same time
PARTS = 8  # jobs for a mapping whose keys are not known when the jobs are submitted


@dataclass
class Precompute:
    """Decides which forward passes become jobs of their own.

    Args:
        rows: rows at the server by kind: inputs, validation, test.
        work: multiplications per row in the largest model of the run.
        wide: bytes of the output for one row.
        least: smallest pass, in multiplications, that becomes a job.
        submitted: outputs requested in this round, so that equal passes run once.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    work: float = 0.0
    wide: int = 1
    least: float = LEAST
    submitted: dict[Any, Ref] = field(default_factory=dict)

    @staticmethod
    def of(context: RunContext) -> Precompute:
        split = context.split
        rows = {"inputs": len(split.reference), "validation": len(split.validation), "test": len(split.test)}
        return Precompute(rows, max(map(_work, context.models.values())), 4 * split.classes, LEAST)

    def pays(self, rows: int, members: int) -> bool:
        """True if passes of so many models over so many rows should be jobs of their own."""
        return members > 1 and rows * self.work >= self.least and rows * members * self.wide <= MOST


def _work(spec: ModelSpec) -> float:
    """Approximate multiplications per input row.

    A convolution uses its weights at every pixel of its output. In a net that halves the image repeatedly, these are
    about an eighth of the input's pixels on average.
    """
    layers = [m for m in spec.outline().modules() if m._parameters]
    pixels = prod(spec.shape[1:]) / 8
    return sum(
        sum(p.numel() for p in layer.parameters(False)) * (pixels if isinstance(layer, nn.Conv2d) else 1)
        for layer in layers
    )


def add_precomputation(fed: Federation, jobs: Sequence[Job]) -> Sequence[Job]:
    """Add jobs that precompute teacher outputs where this is cheaper. Dropped jobs get none."""
    asks: Mapping[str, Ask] = getattr(jobs[0].task, "asks", {}) if jobs else {}
    for name, ask in asks.items():
        jobs = [job if job.lost else _with_outputs(fed, job, name, ask) for job in jobs]
    return jobs


def _with_outputs(fed: Federation, job: Job, name: str, ask: Ask) -> Job:
    session, rows = fed.session, job.size
    groups = list(_groups(job.inputs.get(ask.of)))
    if job.home == ROOT:
        rows = session.precompute.rows.get(ask.on, 0)
    members = len(fed.clients) if isinstance(job.inputs.get(ask.of), Ref) else len(groups)
    if not ask.when(job.inputs) or not session.precompute.pays(rows, members):
        return job
    options = {key: job.inputs[key] for key in _parameters(ask.by) if key in job.inputs}
    outputs, new_jobs = {}, []
    for label, inputs in groups:
        signature = repr((ask.by.__name__, job.home, label, inputs, options))
        if signature not in session.precompute.submitted:
            title = ask.by.__name__
            value = session.name(fed.round, f"{title}@{job.node}")
            key = (fed.round, title, job.key[2], job.node, label)
            new_jobs.append(Job(value, ask.by, job.node, job.home, inputs | options, key, size=job.size))
            session.precompute.submitted[signature] = Ref(value, job.home)
        outputs[label] = session.precompute.submitted[signature]
    session.submit(fed.round, new_jobs)
    return replace(job, inputs={**job.inputs, name: Bundle(outputs)})


def _groups(mapping: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a label and inputs for each value of a mapping, or for each of PARTS parts if its keys are unknown."""
    if isinstance(mapping, Ref):
        for number in range(PARTS):
            yield f"part {number}", {"members": mapping, "part": (number, PARTS)}
        return
    refs = mapping.refs if isinstance(mapping, Bundle) else mapping if isinstance(mapping, dict) else {}
    for child, ref in refs.items():
        yield str(child), {"members": {child: ref}}


@lru_cache
def _parameters(task: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(task).parameters) - {"ctx", "members", "part"}
