"""Finds results that are not finite (NaN or infinity), and makes the messages about them."""

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

BAD = "bad_update"  # key in the report of a task whose result is not finite


def is_finite(value: Any) -> bool:
    """Whether no model or array in a value has a NaN or an infinity."""
    if isinstance(value, Params):
        return is_finite(value.vector)
    if isinstance(value, OneBit):
        return is_finite(value.levels) and is_finite(value.rest)
    if isinstance(value, Examples):
        return is_finite(value.x)
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all()) if value.dtype.kind in "fc" else True
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return True
        # A finite sum has finite parts, and takes one pass without memory. Only an infinite sum needs a second pass.
        return isfinite(value.sum().item()) or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if isinstance(value, tuple | list) else True


def all_finite(values: Sequence[Any]) -> list[bool]:
    """`is_finite` for each value. Models that are rows of one matrix are checked in one pass."""
    if isinstance(values, ModelRows) and isfinite(values.matrix.sum().item()):
        return [True] * len(values)
    return list(map(is_finite, values))


@dataclass(frozen=True)
class NonFiniteResult:
    """A result that is not finite, with the messages about it for the user.

    Args:
        context: context of the run, which has the likely causes.
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
    def _finding(self) -> str:
        others = f" (and {self.more} more)" if self.more else ""
        what = f"{self.task} at {self.node}{others} in round {self.round} gave numbers that are not finite"
        cause = self.context.causes.get(self.phase, "")
        return f"{self.context.method or 'the method'}: {what}" + (f", most likely because of {cause}" if cause else "")

    @property
    def _remedy(self) -> str:
        blamed = self.phase == "train" or self.context.causes.get(self.phase, "").startswith("local.lr ")
        section = "local" if blamed else "server" if self.node == "server" else "sector"
        return f"lower {section}.lr, set {section}.clip"

    @property
    def at_start(self) -> str:
        """For the start of a run, where there is no earlier result to use instead."""
        finding = self._finding.replace("in round 0", "before the first round")
        return f"{finding}; {self._remedy.replace(', set', ' or set')}"

    @property
    def ended(self) -> str:
        """For `faults.bad_update = "stop"`."""
        return f"{self._finding}; {self._remedy}, or set faults.bad_update = 'drop' to leave such updates out"

    @property
    def dropped(self) -> str:
        """For `faults.bad_update = "drop"`."""
        left_out = "those updates were" if self.more else "that update was"
        return f"{self._finding}; {left_out} left out: {self._remedy.replace(', set', ' or set')}"
