"""Sentences about a run: before it begins, of a round, and of the privacy that it spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headwater.algorithms import SameAs
from headwater.data.table_columns import Encoded
from headwater.engines.base import Done
from headwater.engines.nan_check import NonFiniteResult
from headwater.models.parts import width_of
from headwater.tasks.attack import attack_of
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment

if TYPE_CHECKING:
    from headwater.training.spending import Spending


def method_report(
    experiment: Experiment, history: Sequence[dict[str, Any]], spent_on_noise: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the method itself has to say of a finished run: remarks in sentences, and the privacy that it spent.

    Args:
        experiment: the run.
        history: its rows.
        spent_on_noise: what the noise of `[privacy]` spent.
    """
    method, spec = experiment.method, experiment.model
    remarks = [*_lasting(experiment), *(() if same_as(experiment) else method.remarks(history))]
    found: dict[str, Any] = {"remarks": remarks} if remarks else {}
    width = width_of(spec)  # what is spent depends on the size of representations
    shared, most = releases(history)
    if width and (spent := method.privacy(most, width)) is not None:
        found["privacy"] = spent | {"releases_by_client": shared}
        if shared and "sentence" in spent:
            clients, rounds = len(experiment.tree.holders), "1 round" if most == 1 else f"{most} rounds"
            found["privacy"]["sentence"] += f" {len(shared)} of {clients} clients shared a class, in {rounds} at most."
    if spent_on_noise:
        own = found.get("privacy")
        found["privacy"] = dict(spent_on_noise) | ({"representations": own} if own else {})
        if own:
            found["privacy"]["sentence"] += f" {own['sentence']}"
    config = experiment.config
    wanted = config.attack
    if (attack := attack_of(wanted.kind, wanted.share, wanted.strength, config.seed, experiment.tree)) is not None:
        found["attack"] = {"kind": attack.kind, "by": sorted(attack.homes)}
    return found


def releases(history: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], int]:
    """How often each client shared class means, from the rows of a run, and the most that a client may have.

    Rows of an earlier version do not say who shared; each of them counts as once for everyone in the second figure.
    """
    unknown = next((at for at, row in enumerate(history) if "released" in row), len(history))
    often: dict[str, int] = {}
    for row in history[unknown:]:
        for client, classes in row.get("released", {}).items():
            if classes:
                often[client] = often.get(client, 0) + 1
    return often, unknown + max(often.values(), default=0)


def lost_in_round(context: RunContext, row: Mapping[str, Any], done: Sequence[Done]) -> Iterator[str]:
    """Sentences for results of a round that were left out, and for members and sums that were lost."""
    if bad := row.get("bad_updates"):
        phase = next(d.phase for d in done if d.title == bad[0]["task"])
        yield NonFiniteResult(context, phase, bad[0]["task"], bad[0]["node"], row["round"], len(bad) - 1).dropped
    for node, names in row.get("secure_left_out", {}).items():
        yield (
            f"round {row['round']}: a secure sum at {node} goes on without {', '.join(names)}, because too few members "
            "could read each other's shares there; look at the connection and the software of these"
        )
    if lost := row.get("secure_too_few"):
        node, left = next(iter(lost.items()))
        more = f" (and at {len(lost) - 1} more)" if len(lost) > 1 else ""
        yield (
            f"round {row['round']}: a secure sum at {node}{more} was lost, because only {left} of its members were "
            "left (privacy.secure_share); what it was for keeps its old value"
        )


def same_as(experiment: Experiment) -> SameAs | None:
    """The other method that this one is on the split of this run, as far as rows are known and not drawn when used."""
    if experiment.partition.rule is not None or not experiment.rows:
        return None
    labels, classes = experiment.split.train.y, experiment.split.classes
    rows = (torch.from_numpy(experiment.rows[client]) for client in experiment.tree.holders)
    return experiment.method.same_as(torch.bincount(labels[own], minlength=classes).tolist() for own in rows)


def cautions(experiment: Experiment, spending: Spending | None = None) -> tuple[str, ...]:
    """What there is to say of a run before it begins.

    Args:
        experiment: the run.
        spending: what its noise is worth; None leaves that out.
    """
    return (*experiment.remarks, *_lasting(experiment), *(spending.cautions if spending is not None else ()))


def _lasting(experiment: Experiment) -> tuple[str, ...]:
    """What is as true of the run when it is resumed, from its resolved configuration."""
    part, said = experiment.config.partition, list[str]()
    if part.local_test > 0 and part.local_test_source == "train" and experiment.partition.rule is not None:
        said.append(
            f"clients of partition.scheme = {part.scheme!r} share samples, so others train on the rows that a client "
            "keeps for its own test: local_accuracy is too high for models that more than one client trained"
        )
    if other := same_as(experiment):
        said.append(f"this run is the same as {other.method}, since {other.because}; lower it to share more")
    if experiment.exchange is not None and isinstance(way := experiment.exchange.way, Encoded):
        said += way.cautions(len(experiment.split.train))
    return (*experiment.method.cautions(experiment.model, part.participation), *said)
