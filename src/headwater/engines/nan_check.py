"""Finds results that are not finite (NaN or infinity), and the sentence about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.one_bit import OneBit
from headwater.core.params import ModelRows, Params
from headwater.data.base import Examples
from headwater.tasks.task import RunContext

BAD = "bad_update"  # noted in the report of a task whose result is not finite


def sound(value: Any) -> bool:
    """Whether no model or array in a value has a NaN or an infinity."""
    if isinstance(value, Params):
        return sound(value.vector)
    if isinstance(value, OneBit):
        return sound(value.levels) and sound(value.rest)
    if isinstance(value, Examples):
        return sound(value.x)
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all()) if value.dtype.kind in "fc" else True
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return True
        # A finite sum has finite parts, and takes one pass without memory. Only an infinite sum needs a second pass.
        return isfinite(value.sum().item()) or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(map(sound, value.values()))
    return all(map(sound, value)) if isinstance(value, tuple | list) else True


def all_sound(values: Sequence[Any]) -> list[bool]:
    """`sound` for each value. Models that are rows of one matrix are checked in one pass."""
    if isinstance(values, ModelRows) and isfinite(values.matrix.sum().item()):
        return [True] * len(values)
    return list(map(sound, values))


@dataclass(frozen=True)
class Complaint:
    """A result that is not finite, as a sentence for the user.

    Args:
        context: of the run; has the likely causes.
        phase: of the task, such as "train".
        task: its title.
        node: where it ran.
        round: its round; 0 before the first.
        more: number of further such results in the round.
    """

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
        blamed = self.phase == "train" or self.context.causes.get(self.phase, "").startswith("local.lr ")
        section = "local" if blamed else "server" if self.node == "server" else "sector"
        return f"lower {section}.lr, set {section}.clip"

    @property
    def hopeless(self) -> str:
        """For the start of a run, where there is no earlier result to use instead."""
        return f"{self._told.replace('in round 0', 'before the first round')}; {self._cure.replace(', set', ' or set')}"

    @property
    def ended(self) -> str:
        """For `faults.bad_update = "stop"`."""
        return f"{self._told}; {self._cure}, or set faults.bad_update = 'drop' to leave such updates out"

    @property
    def dropped(self) -> str:
        """For `faults.bad_update = "drop"`."""
        left_out = "those updates were" if self.more else "that update was"
        return f"{self._told}; {left_out} left out: {self._cure.replace(', set', ' or set')}"
