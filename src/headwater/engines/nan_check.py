"""Whether a result is made of numbers, and what is said where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.tasks.task import RunContext

BAD = "bad_update"  # what a report then notes


def sound(value: Any) -> bool:
    """No NaN and no infinity in any model or array of a value."""
    if isinstance(value, Params):
        return sound(value.vector)
    if isinstance(value, Examples):
        return sound(value.x)
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all()) if value.dtype.kind in "fc" else True
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return True
        # One pass without memory: a finite sum has finite parts. Only a sum that overflows needs a second look.
        return isfinite(value.sum().item()) or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(map(sound, value.values()))
    return all(map(sound, value)) if isinstance(value, tuple | list) else True


def all_sound(values: Sequence[Any]) -> list[bool]:
    """`sound` of each. Models that are rows of one matrix, as those of a stack are, are looked through at once."""
    rows = [value.vector for value in values if isinstance(value, Params)]
    if len(rows) == len(values) > 1 and (matrix := _matrix_of(rows)) is not None and isfinite(matrix.sum().item()):
        return [True] * len(values)
    return list(map(sound, values))


def _matrix_of(rows: Sequence[Tensor]) -> Tensor | None:
    """The matrix whose rows these vectors are, in any order; None if there is no such matrix."""
    first = rows[0]
    kinds = {(row.untyped_storage().data_ptr(), row.dtype, len(row), row.stride()) for row in rows}
    places = sorted(row.storage_offset() for row in rows)
    steps = {after - before for before, after in pairwise(places)}
    if len(kinds) > 1 or len(steps) > 1 or not first.is_floating_point() or first.stride() != (1,):
        return None
    return first.as_strided((len(rows), len(first)), (steps.pop(), 1), places[0])


def likely_causes(method: Any) -> dict[str, str]:
    """The settings of a method that make training or distilling diverge when they are too large, by phase."""
    rates = {
        f"{stage}.lr": getattr(getattr(method, stage, None), "lr", None) for stage in ("local", "sector", "server")
    }
    pulls = {name: getattr(method, name, None) for name in ("alpha", "dyn_alpha", "gen_alpha", "mu")}
    phases = {"train": {"local.lr": rates.pop("local.lr")} | pulls, "distill": rates}
    return {
        phase: " and ".join(
            f"{name} = {value:g}" for name, value in found.items() if isinstance(value, float) and value
        )
        for phase, found in phases.items()
    }


@dataclass(frozen=True)
class Complaint:
    """A result that was not finite, as a sentence; `more` counts further ones of the same round."""

    context: RunContext
    phase: str
    task: str
    node: str
    round: int
    more: int = 0

    @property
    def _told(self) -> str:
        others = f" (and {self.more} more)" if self.more else ""
        what = f"{self.task} at {self.node}{others} in round {self.round} gave numbers that are not finite"
        cause = self.context.causes.get(self.phase, "")
        return f"{self.context.method or 'the method'}: {what}" + (f", most likely because of {cause}" if cause else "")

    @property
    def _cure(self) -> str:
        section = "local" if self.phase == "train" else "server" if self.node == "server" else "sector"
        return f"lower {section}.lr, set {section}.clip"

    @property
    def hopeless(self) -> str:
        """Before the first round there is nothing yet that could be used instead."""
        return f"{self._told.replace('in round 0', 'before the first round')}; {self._cure.replace(', set', ' or set')}"

    @property
    def ended(self) -> str:
        return f"{self._told}; {self._cure}, or set faults.bad_update = 'drop' to leave such updates out"

    @property
    def dropped(self) -> str:
        left_out = "those updates were" if self.more else "that update was"
        return f"{self._told}; {left_out} left out: {self._cure.replace(', set', ' or set')}"
