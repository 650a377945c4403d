"""Outlines of tasks that do not declare what they return: each is run on stand-ins for its inputs.

A stand-in for a model is the starting model of its architecture, one for any other tensor is filled with ones. A stage
among the inputs is cut to one step. What a task returns is then of the right size unless that depends on the content of
its inputs, as with a task that keeps only some of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwater.core import serialization
from headwater.core.params import Params
from headwater.engines.execution import execute
from headwater.engines.jobs import LOST, Job, Ref
from headwater.specs import Descent
from headwater.tasks.task import RunContext

HOMES = 200  # most homes at which a task is run on stand-ins of one form


class Unknown:
    """Marks an outline that could not be determined."""


UNKNOWN = Unknown()


class Trials:
    """Runs tasks on stand-ins, once per home and form of the inputs.

    Args:
        context: the run's context.

    Attributes:
        exact: False once the outline found at one home was reused for another.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = replace(context, bad_update="drop")
        self._outlines: dict[Hashable, Any] = {}
        self._homes: Counter[Hashable] = Counter()
        self.exact = True

    def outline(self, job: Job, inputs: Mapping[str, Any], outline_of: Callable[[Ref], Any]) -> Any:
        """The outline of a job's result, or UNKNOWN if the task fails on stand-ins.

        Args:
            job: the job.
            inputs: its inputs as outlines.
            outline_of: gives the outline of one value among the inputs.
        """
        form = job.task, _form(inputs)
        if (form, job.home) in self._outlines:
            return self._outlines[form, job.home]
        if self._homes[form] >= HOMES:
            self.exact = False
            return self._outlines[form]
        short = {
            name: replace(x, steps=1, epochs=None) if isinstance(x, Descent) else x for name, x in job.inputs.items()
        }
        try:
            value, _ = execute(
                replace(job, inputs=short, lost=False),
                self._context,
                lambda ref: self._stand_in(outline_of(ref)),
                lambda ref: None,
            )
            skeleton, tensors = serialization.flatten(value)
            outline = serialization.rebuild(skeleton, [tensor.to("meta") for tensor in tensors])
        except Exception:  # a task can fail in any way on stand-ins
            value, outline = LOST, UNKNOWN
        self._homes[form] += 1
        self._outlines[form, job.home] = self._outlines[form] = UNKNOWN if value is LOST else outline
        return self._outlines[form]

    def _stand_in(self, outline: Any) -> Any:
        if outline is UNKNOWN:
            raise LookupError("an input has no known form")
        if isinstance(outline, Params):
            model: Params = self._outlines.setdefault(
                outline.layout.arch, self._context.initial(outline.layout.arch, 0)
            )
            if model.vector.shape == outline.vector.shape:
                return replace(model, weight=outline.weight or 1.0)
        if isinstance(outline, Tensor):
            return torch.ones(outline.shape, dtype=outline.dtype) if outline.is_meta else outline
        if isinstance(outline, dict):
            return {key: self._stand_in(item) for key, item in outline.items()}
        if isinstance(outline, tuple | list):
            return type(outline)(map(self._stand_in, outline))
        if is_dataclass(outline) and not isinstance(outline, type):
            return replace(
                outline, **{part.name: self._stand_in(getattr(outline, part.name)) for part in fields(outline)}
            )
        return outline


def _form(thing: Any) -> Hashable:
    """What inputs of one form have in common: structure, shapes, types and plain values."""
    if isinstance(thing, Tensor):
        return tuple(thing.shape), str(thing.dtype)
    if isinstance(thing, Mapping):
        return tuple((key, _form(item)) for key, item in thing.items())
    if isinstance(thing, tuple | list):
        return tuple(map(_form, thing))
    if is_dataclass(thing) and not isinstance(thing, type):
        return type(thing), tuple(_form(getattr(thing, part.name)) for part in fields(thing))
    return repr(thing)
