"""The sums that tasks can declare which only need the sum of their inputs, so that a secure sum may hide single values.

A task that declares `sums` gets, in place of the mapping {sender: value}, a mapping with one value that stands for all
senders: a task that combines one value returns it. Each kind of sum says which numbers a sender adds (`terms`), and
which value the added numbers stand for (`whole`). The form of the values, which is no secret, is a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headwater.core.params import By, Params
from headwater.core.serialization import layout_from, layout_text
from headwater.errors import ConfigError
from headwater.tasks.cost import shaped


class Sum(Protocol):
    """How values become numbers that are added, and what the added numbers stand for."""

    def form(self, value: Any) -> str:
        """The form that all values of a sum have in common; empty for a value that does not tell."""

    def length(self, form: str, classes: int) -> int:
        """How many numbers a value of this form adds."""

    def terms(self, value: Any, form: str, classes: int) -> tuple[Tensor, float]:
        """The numbers that a value adds, as float64, and its weight in them."""

    def whole(self, totals: Tensor, members: int, form: str, classes: int) -> Any:
        """The value that the added numbers of so many members stand for."""


Sums = tuple[str, Callable[..., "Sum | str"]]  # name of the input; other inputs → the sum, or why there is none


@dataclass(frozen=True)
class ModelSum:
    """Sum of models.

    Args:
        by: weight of a model, as in `average`.
        mean: whether the sum is divided by the weights, as in `average`; otherwise it is `total`'s.
    """

    by: By = "samples"
    mean: bool = True

    def form(self, value: Params) -> str:
        if value.layout.buffers == "first" and value.layout.floats:
            raise ConfigError(
                f"model {value.layout.arch!r} keeps the buffers of the first client, which a secure sum does not give; "
                "use a model whose buffers are averaged, or model.norm = 'group'"
            )
        return f"{str(value.vector.dtype).removeprefix('torch.')} {layout_text(value.layout)}"

    def _parts(self, form: str) -> tuple[torch.dtype, Any, int, int]:
        kind, _, text = form.partition(" ")
        layout = layout_from(text)
        numbers, counters = (
            sum(prod(shape) for _, shape in shapes) for shapes in (layout.trainable + layout.floats, layout.counters)
        )
        return getattr(torch, kind), layout, numbers, counters

    def length(self, form: str, classes: int) -> int:
        _, _, numbers, counters = self._parts(form)
        return numbers + counters + 2

    def terms(self, value: Params, form: str, classes: int) -> tuple[Tensor, float]:
        counts = 1.0 if self.by == "uniform" else value.weight
        if self.form(value) != form:
            raise ValueError(f"cannot sum up {value.layout.arch!r} with a model of another form")
        weights = torch.tensor([counts, value.weight], dtype=torch.float64)
        return torch.cat([value.vector.double() * counts, value.counters.double(), weights]), counts

    def whole(self, totals: Tensor, members: int, form: str, classes: int) -> Params:
        dtype, layout, numbers, counters = self._parts(form)
        if totals.is_meta:
            return Params(shaped(numbers, dtype=dtype), shaped(counters, dtype=torch.int64), layout)
        counted, weight = totals[-2:].tolist()
        if self.mean and counted <= 0:
            raise ValueError("the models of a secure sum have no weight")
        vector = totals[:numbers] / counted if self.mean else totals[:numbers]
        steps = (totals[numbers : numbers + counters] / members).round().to(torch.int64)
        return Params(vector.to(dtype), steps, layout, weight if self.mean else 1.0)


@dataclass(frozen=True)
class ArraySum:
    """Sum of arrays of one shape, such as label counts; or the mean of predictions with their number.

    Args:
        mean: whether a value is a prediction, or the mean of several with their number.
    """

    mean: bool = False

    def form(self, value: Tensor | tuple[Tensor, int]) -> str:
        array = value[0] if isinstance(value, tuple) else value
        return json.dumps([str(array.dtype).removeprefix("torch."), list(array.shape)])

    def length(self, form: str, classes: int) -> int:
        return int(prod(json.loads(form)[1])) + 1

    def terms(self, value: Tensor | tuple[Tensor, int], form: str, classes: int) -> tuple[Tensor, float]:
        array, count = value if isinstance(value, tuple) else (value, 1)
        return torch.cat([array.double().reshape(-1) * count, torch.tensor([float(count)], dtype=torch.float64)]), count

    def whole(self, totals: Tensor, members: int, form: str, classes: int) -> Tensor | tuple[Tensor, int]:
        kind, shape = json.loads(form)
        array = (totals[:-1] / totals[-1] if self.mean else totals[:-1]).to(getattr(torch, kind)).reshape(shape)
        return (array, 0 if totals.is_meta else round(totals[-1].item())) if self.mean else array


@dataclass(frozen=True)
class KnowledgeSum:
    """Sum of class knowledge, {class: (mean, …, count)}. Nobody sees which classes a single member has."""

    def form(self, value: dict[int, tuple[Any, ...]]) -> str:
        for *means, _ in value.values():
            return json.dumps([str(means[0].dtype).removeprefix("torch."), [len(mean) for mean in means]])
        return ""

    def length(self, form: str, classes: int) -> int:
        return classes * (sum(json.loads(form)[1]) + 1) if form else 0

    def terms(self, value: dict[int, tuple[Any, ...]], form: str, classes: int) -> tuple[Tensor, float]:
        rows = torch.zeros(classes, self.length(form, 1), dtype=torch.float64)
        for label, (*means, count) in value.items():
            rows[label] = torch.cat([*(mean.double() * count for mean in means), torch.tensor([float(count)])])
        return rows.reshape(-1), float(rows[:, -1].max()) if rows.numel() else 1.0

    def whole(self, totals: Tensor, members: int, form: str, classes: int) -> dict[int, tuple[Any, ...]]:
        if not form:
            return {}
        kind, widths = json.loads(form)
        rows = totals.reshape(classes, -1)
        counts = [1] * classes if totals.is_meta else [round(row[-1].item()) for row in rows]
        return {
            label: (*((row[:-1] / count).to(getattr(torch, kind)).split(widths)), count)
            for label, (row, count) in enumerate(zip(rows, counts, strict=True))
            if count
        }


def models_by(by: By = "samples", **_: Any) -> Sum:
    """The sum that `average` needs."""
    return ModelSum(by)


def pooled(how: Literal["mean", "last"] = "mean", **_: Any) -> Sum | str:
    """The sum that `pool` needs."""
    return KnowledgeSum() if how == "mean" else f"with how = {how!r} it takes the value of a single one"
