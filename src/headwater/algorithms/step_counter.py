"""The counter of `lr_schedule = "shared-counter"`: the steps of all trainings of a run, as one optimiser counts them.

The count follows from the configuration, the clients of each round and their rows, so every engine and every party has
the same. It is the planned number of steps: that of a round in which nobody is lost and no distillation stops early.
The steps of one client's training are `total_steps` of `headwater.tasks.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.core.federation import Federation
from headwater.core.sampling import choose, participants
from headwater.core.submission import ROUND
from headwater.core.tree import ROOT
from headwater.tasks.optimizers import Spec, total_steps
from headwater.tasks.teacher_outputs import held_out

if TYPE_CHECKING:
    from headwater.algorithms.base import Method

HELD = 0.2  # share of a leader's rows that it validates on, if it does
Stages = Mapping[str, Spec]  # by section


def shares_counter(stages: Stages) -> bool:
    """Whether a stage has a learning rate that depends on the steps of all."""
    return any(stage.lr_schedule == "shared-counter" for stage in stages.values())


def steps_before(
    method: Method, stages: Stages, fed: Federation, share: float, reference: int
) -> dict[tuple[str, str], int]:
    """Steps of the run before each training of a round, as `Federation.steps_before` has them.

    Earlier rounds come first. In a round all clients train in tree order, then the leader of each sector distils in
    tree order, then the server. A method with several students at one node gives all of them the same count.

    Args:
        method: the method.
        stages: its stages by section.
        fed: the view of the round.
        share: share of the clients that take part in a round.
        reference: rows of the reference set.
    """
    known, total = fed.session.planned_steps, 0
    for number in range(1, fed.round):
        key = (len(fed.tree.holders), number)
        if key not in known:
            clients = participants(fed.tree, share, fed.session.seed, number)
            view = replace(fed, round=number, clients=clients, seats={})
            known[key] = sum(_planned(method, stages, view, reference).values())
        total += known[key]
    before, passes = {ROUND: total}, _passes(method)
    for (section, node), steps in _planned(method, stages, fed, reference).items():
        # The entry without a node is planned for all further sector rounds, and holds the steps of one of them.
        before[section, node] = total if node else steps // (passes - 1)
        total += steps
    return before


def _planned(method: Method, stages: Stages, fed: Federation, reference: int) -> dict[tuple[str, str], int]:
    """Steps of a round by section and node, in the order in which they count."""
    planned: dict[tuple[str, str], int] = {}
    if (local := stages.get("local")) is not None:
        planned |= {("local", client): total_steps(fed.sizes[client], local) for client in fed.clients}
        if _passes(method) > 1:
            planned["local", ""] = (_passes(method) - 1) * sum(planned.values())
    if (sector := stages.get("sector")) is not None and method.distils("sector"):
        rule: Any = getattr(method, "leader", "none")
        own = getattr(method, "val_source", "server") == "leader"
        for node, leader in choose(rule, fed).items() if rule != "none" else ():
            rows = fed.sizes[leader]
            planned["sector", node] = total_steps(rows - (held_out(rows, HELD) if own and rows > 1 else 0), sector)
    if (server := stages.get("server")) is not None and method.distils("server"):
        planned["server", ROOT] = total_steps(reference, server)
    return planned


def _passes(method: Method) -> int:
    """How often a client trains in a round."""
    return int(getattr(method, "sector_rounds", 1))
