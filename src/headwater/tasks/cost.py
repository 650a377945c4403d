"""What a task declares beside its code: how much it computes, what others may compute for it, the form of its result.

An outline has the structure of a value and the shapes and types of its tensors, but no content: its tensors are on
torch's `meta` device. `plan` runs a method's own rounds on outlines instead of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import Layout, Params, dtype_of
from headwater.data.base import Examples
from headwater.models.base import ModelSpec
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.optimizers import samples_read, total_steps

ITSELF = "itself"  # value of `returns`: the task reads no tensor content, so it can be run on outlines


@dataclass(frozen=True)
class Cost:
    """How much one task computes. `Cost()` is that of a task that only adds, counts or selects.

    Args:
        arch: architecture of the model that is trained.
        steps: gradient steps.
        samples: rows that the steps and gradients read, counted once for every time they are read.
        gradients: batches whose gradient is computed without a step.
        passes: architecture → rows that go through such models without a gradient.
        teachers: models that teach.
        asked: rows for which teachers give outputs, summed over the teachers.
        stops: whether the steps may end early on validation data.
        spec: the stage that the steps follow, by which `plan` measures the time of one step.
        known: False if the cost is not known before the task runs.
    """

    arch: str = ""
    steps: int = 0
    samples: int = 0
    gradients: int = 0
    passes: Mapping[str, int] = field(default_factory=dict)
    teachers: int = 0
    asked: int = 0
    stops: bool = False
    spec: LocalSpec | DistillSpec | None = None
    known: bool = True


@dataclass(frozen=True)
class Ask:
    """Forward passes of a task that another task may compute beforehand.

    Args:
        of: name of the mapping input whose models are asked.
        by: task that returns {name: outputs}. It takes `members`, `part` (which part of how many) and inputs by name.
        on: kind of rows that the models are asked about: "inputs", "validation" or "test".
        when: tells from the inputs of the first task whether it needs the outputs.
    """

    of: str
    by: Callable[..., Any]
    on: str
    when: Callable[[Mapping[str, Any]], bool] = lambda inputs: True


def training_cost(model: Params, rows: int, spec: LocalSpec | DistillSpec, **more: Any) -> Cost:
    """Cost of the gradient steps that a stage takes.

    Args:
        model: the model that is trained, or its outline.
        rows: how many rows it is trained on.
        spec: the stage: how many epochs or steps, and the batch size.
        more: further fields of `Cost`.
    """
    return Cost(model.layout.arch, total_steps(rows, spec), samples_read(rows, spec), spec=spec, **more)


def passes_through(models: Iterable[Params], rows: int) -> dict[str, int]:
    """Rows by architecture, if `rows` rows go through each of these models."""
    passes: dict[str, int] = {}
    for model in models:
        passes[model.layout.arch] = passes.get(model.layout.arch, 0) + rows
    return passes


# -- outlines


def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Outline of a tensor."""
    return torch.empty(shape, dtype=dtype, device="meta")


def shaped_rows(count: int, like: Examples) -> Examples:
    """Outline of `count` examples with the shape and type of `like`."""
    return Examples(shaped(count, *like.x.shape[1:], dtype=like.x.dtype), shaped(count, dtype=like.y.dtype))


def shaped_model(spec: ModelSpec, arch: str) -> Params:
    """Outline of a model of this architecture."""
    module = spec.outline()
    layout = Layout.of(module, arch, spec.buffers)
    dtype = dtype_of(module)
    numbers, counters = (
        sum(prod(shape) for _, shape in shapes) for shapes in (layout.trainable + layout.floats, layout.counters)
    )
    return Params(shaped(numbers, dtype=dtype), shaped(counters, dtype=torch.int64), layout)


def first_of(name: str) -> Callable[..., Any]:
    """Value of `returns`: the result has the outline of the first value in the mapping input of this name."""
    return lambda ctx, **inputs: next(iter(inputs[name].values()))
