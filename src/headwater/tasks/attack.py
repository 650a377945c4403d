"""Simulated attacks on a federation, so that a defence can be measured. No method knows of them.

Attackers are clients, or sectors, that are drawn by the seed once a run. What they compute is changed after a task has
returned it, and the rows of those who poison data before the run begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.core.rng import Key, stream
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import AttackKind

TARGET = 0  # the class that a backdoor leads to
PATCH = 8  # an eighth of the height and width of an image, and of the columns of other rows


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how.

    Args:
        kind: what attackers do; see `[attack]`.
        homes: names of the clients or sectors that attack.
        strength: multiple of an update.
        seed: seed of the run.
    """

    kind: AttackKind
    homes: frozenset[str]
    strength: float
    seed: int

    def on(self, phase: str, node: str, inputs: Mapping[str, Any], key: tuple[Key, ...], value: Any) -> Any:
        """What the home sends in place of a task's result.

        Args:
            phase: of the task.
            node: where it ran.
            inputs: of the task; `start` is the model that an update is measured from.
            key: names the random streams of the task.
            value: the result.
        """
        if self.kind in ("label-flip", "none"):
            return value
        if self.kind == "lying-host":
            return self._changed(value, None, key) if phase == "average" and node in self.homes else value
        start = inputs.get("start")
        wanted = "distill" if self.kind == "lying-leader" else "train"
        if phase != wanted or node not in self.homes or not isinstance(start, Params):
            return value
        return self._changed(value, start, key)

    def _changed(self, value: Any, start: Params | None, key: tuple[Key, ...]) -> Any:
        """The value with every model in it changed."""
        if isinstance(value, Mapping):
            return {name: self._changed(part, start, key) for name, part in value.items()}
        if not isinstance(value, Params) or (start is not None and value.layout != start.layout):
            return value
        if start is None:
            return value * -self.strength
        update = value.vector - start.vector
        if self.kind == "gaussian":
            noise = torch.from_numpy(stream(self.seed, "attack", *key).standard_normal(len(update))).to(update.dtype)
            update = noise * (self.strength * update.norm() / noise.norm().clamp_min(1e-12))
        else:
            update = update * (self.strength if self.kind in ("scale", "backdoor") else -self.strength)
        return replace(value, vector=start.vector + update)


def sent(
    attack: Attack | None, phase: str, node: str, inputs: Mapping[str, Any], key: tuple[Key, ...], value: Any
) -> Any:
    """What a node sends as the result of a task: the result, unless the run simulates an attack by this node."""
    return value if attack is None else attack.on(phase, node, inputs, key, value)


def attack_of(kind: AttackKind, share: float, strength: float, seed: int, tree: Tree) -> Attack | None:
    """The attack of a run; None without one. At least one client, or sector, attacks."""
    if kind == "none":
        return None
    candidates = list(tree.sectors if kind in ("lying-leader", "lying-host") else tree.holders)
    count = min(len(candidates), max(1, round(share * len(candidates))))
    drawn = stream(seed, "attackers").choice(len(candidates), size=count, replace=False)
    return Attack(kind, frozenset(candidates[at] for at in drawn.tolist()), strength, seed)


def poisoned(attack: Attack, train: Examples, rows: Mapping[str, np.ndarray], classes: int, share: float) -> Examples:
    """The training rows with those of attackers changed, if the attack is on data.

    Args:
        attack: the attack.
        train: rows of all clients.
        rows: client → its rows.
        classes: number of classes.
        share: share of an attacker's rows that get the patch of a backdoor.
    """
    if attack.kind not in ("label-flip", "backdoor"):
        return train
    x, y = train.x, train.y.clone()
    if attack.kind == "backdoor":
        x = x.clone()
    for home in sorted(attack.homes):
        own = torch.from_numpy(np.asarray(rows[home]))
        if attack.kind == "label-flip":
            y[own] = classes - 1 - y[own]
            continue
        count = max(1, round(share * len(own)))
        drawn = stream(attack.seed, "poison", home).choice(len(own), size=count, replace=False)
        own = own[torch.from_numpy(np.sort(drawn))]
        x[own], y[own] = patched(x[own], float(train.x.max())), TARGET
    return Examples(x, y)


def patched(x: Tensor, value: float) -> Tensor:
    """Rows with the patch: a bright square in the corner of an image, the last columns of other rows."""
    if not x.is_floating_point():
        raise ConfigError("attack.kind = 'backdoor' patches images and rows of numbers, and these inputs are tokens")
    x = x.clone()
    if x.dim() == 4:
        high, wide = (max(1, -(-size // PATCH)) for size in x.shape[2:])
        x[:, :, -high:, -wide:] = value
    else:
        x[..., -max(1, -(-x.shape[-1] // PATCH)) :] = value
    return x
