"""Passes of models over data as jobs of their own, where one is worth more than a job costs.

Several models are then asked at the same time, each as soon as it is there, and one that is asked the same twice in a
round answers once. What they say is the same as if the task had asked them itself, to the last bit; whether they are
asked so follows from the configuration alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from torch import nn

from headwater.core.tree import ROOT
from headwater.engines.base import Bundle, Job, Ref
from headwater.models.base import ModelSpec
from headwater.tasks.task import Ask, RunContext

if TYPE_CHECKING:
    from headwater.core.view import View

LEAST = 5e8  # multiplications: below, a pass takes about as long as handing out a job and its result
MOST = 1 << 30  # bytes of answers of one task, which are all there at the same time
PARTS = 8  # of a mapping whose names are known only once it is there


@dataclass
class Precompute:
    """What is known beforehand of the passes of a run."""

    rows: Mapping[str, int] = field(default_factory=dict)  # at the server, by kind: inputs, validation, test
    work: float = 0.0  # multiplications for one row, in the largest of the models
    wide: int = 1  # bytes of an answer about one row
    least: float = LEAST
    asked: dict[Any, Ref] = field(default_factory=dict)  # in this round

    @staticmethod
    def of(context: RunContext) -> Precompute:
        split = context.split
        rows = {"inputs": len(split.reference), "validation": len(split.validation), "test": len(split.test)}
        return Precompute(rows, max(map(_work, context.models.values())), 4 * split.classes, LEAST)

    def pays(self, rows: int, members: int) -> bool:
        return members > 1 and rows * self.work >= self.least and rows * members * self.wide <= MOST


def _work(spec: ModelSpec) -> float:
    """About how often one input is multiplied with a number on its way through a net.

    A convolution meets every pixel; taken over layers that halve the image one after the other, about an eighth.
    """
    layers = [m for m in spec.outline().modules() if m._parameters]
    pixels = prod(spec.shape[1:]) / 8
    return sum(
        sum(p.numel() for p in layer.parameters(False)) * (pixels if isinstance(layer, nn.Conv2d) else 1)
        for layer in layers
    )


def add_precomputation(view: View, jobs: Sequence[Job]) -> Sequence[Job]:
    """Jobs of one task, with what others are asked for them beforehand where that pays. A lost one asks nobody."""
    asks: Mapping[str, Ask] = getattr(jobs[0].task, "asks", {}) if jobs else {}
    for name, ask in asks.items():
        jobs = [job if job.lost else _asking(view, job, name, ask) for job in jobs]
    return jobs


def _asking(view: View, job: Job, name: str, ask: Ask) -> Job:
    session, rows = view.session, job.size
    groups = list(_groups(job.inputs.get(ask.of)))
    if job.home == ROOT:
        rows = session.fanout.rows.get(ask.on, 0)
    members = len(view.clients) if isinstance(job.inputs.get(ask.of), Ref) else len(groups)
    if not ask.when(job.inputs) or not session.fanout.pays(rows, members):
        return job
    options = {key: job.inputs[key] for key in _parameters(ask.by) if key in job.inputs}
    answers, fresh = {}, []
    for label, given in groups:
        known = repr((ask.by.__name__, job.home, label, given, options))
        if known not in session.fanout.asked:
            title = ask.by.__name__
            made = session.name(view.round, f"{title}@{job.node}")
            key = (view.round, title, job.key[2], job.node, label)
            fresh.append(Job(made, ask.by, job.node, job.home, given | options, key, size=job.size))
            session.fanout.asked[known] = Ref(made, job.home)
        answers[label] = session.fanout.asked[known]
    session.submit(view.round, fresh)
    return replace(job, inputs={**job.inputs, name: Bundle(answers)})


def _groups(mapping: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of a mapping one by one; in parts if it is a single value, whose names nobody knows yet."""
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
