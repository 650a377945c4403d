"""How `run` becomes jobs: groups of nodes, inputs at their homes, simulated dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.core.precompute import add_precomputation
from headwater.core.tree import CLIENTS, SERVER, Place
from headwater.core.values import Each, Located, each, inputs_for, split_inputs
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import Job
from headwater.engines.refs import Ref, RefGroup, Refs
from headwater.specs import Descent, LocalSpec

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
    found: dict[str, RefGroup] = {}
    for name, value in by_node.items():
        if type(value) is not Located or value.place is not at or not isinstance(value.nodes, Refs):
            return None
        group = value.nodes.groups[0]
        if len(value.nodes.groups) > 1 or group.grouped or group.nodes != fed.clients:
            return None
        found[name] = group
    return found


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
