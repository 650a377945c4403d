"""What a party believes of the updates that it receives: their weights, and how large they are.

Both are checked by every party that receives updates, before anything is computed with them:

- The weight of a model is the number of rows that its client announced before the run, or 1 where clients count alike.
  A model of a sector weighs at most as much as the clients of the sector together.
- The size of an update is its distance from the model that the task began with, which may not exceed the agreed
  `deploy.max_norm`. Without one, and for other values, those that are combined are compared with each other: one of
  `REPORTED` times the median is reported, one of `REFUSED` times the median is refused. Fewer than `FEW` have no
  median that one of them could not move; they are compared with the model that the task began with and with earlier
  rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, inf
from statistics import median
from typing import Any, NamedTuple

import torch

from headwater.core.one_bit import OneBit
from headwater.core.params import Params
from headwater.deploy.steps import Choice, Move, Step
from headwater.engines.jobs import LOST, Bundle, Job, Perhaps, Ref
from headwater.tasks import sealed, secure

REPORTED, REFUSED = 100.0, 1000.0  # multiples of the usual size; of honest variates 25 were seen, of models 5
FEW = 3
STILL = 1e-6  # share of a model's norm below which the median says nothing, since most updates are zero
LARGEST = 1e15  # of any update; squares and sums of larger ones leave the range of the numbers
REFERENCES = 8  # models of a round that are held in memory for comparison

Fetch = Callable[[Ref], Any]


class MeasuredUpdate(NamedTuple):
    """The size of one update.

    Args:
        node: whose update it is.
        kind: what it is compared with: the same task and part of other nodes.
        size: its norm or distance.
        start: norm of the model that the task began with; 0 if that is not known here.
        free: up to this size it is never too large. Counts of rows differ as much as clients do.
    """

    node: str
    kind: tuple[Any, ...]
    size: float
    start: float
    free: float


class Outlier(NamedTuple):
    """An update that is much larger than others."""

    name: str
    node: str
    refused: bool
    why: str


@dataclass
class UpdateCheck:
    """Checks the updates that one party receives in a run.

    Args:
        rows: number of rows that each client announced; of a client that is missing here, the weight is not checked.
        sector_of: the sector of each client.
        max_norm: the agreed bound for models whose start is known here; 0 compares them with each other.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    sector_of: Mapping[str, str] = field(default_factory=dict)
    max_norm: float = 0.0
    _measured: dict[str, MeasuredUpdate] = field(default_factory=dict)
    _usual: dict[tuple[Any, ...], float] = field(default_factory=dict)  # by kind, from earlier rounds
    _starts: dict[tuple[Any, ...], Params] = field(default_factory=dict)

    def new_round(self) -> None:
        self._measured, self._starts = {}, {}

    def refusals(self, steps: Sequence[Step], values: Mapping[str, Any], fetch: Fetch) -> dict[str, tuple[str, str]]:
        """Check the values of a reply by themselves, and measure them for `outliers`.

        Args:
            steps: that the reply is for.
            values: of the reply, by name.
            fetch: returns the value of a ref that is here.

        Returns:
            By name of a value that is refused: whose it is, and why.
        """
        found: dict[str, tuple[str, str]] = {}
        named = {step.name: step for step in steps if not isinstance(step, Move) or step.name != step.ref.name}
        moves = {step.name: step for step in steps if isinstance(step, Move)}
        for name, value in values.items():
            if name not in moves or value is LOST:
                continue
            maker, node, part = _origin(moves[name].ref, named)
            if isinstance(maker, Job) and maker.task.__module__ in (secure.__name__, sealed.__name__):
                continue  # keys, shares, masked and sealed values have no size that could be compared
            value = value.unpacked() if isinstance(value, OneBit) else value
            if (why := self._wrong_weight(node, value)) is None:
                start = self._start(maker, value, fetch) if isinstance(value, Params) else None
                size = norm(value if start is None else value - start)
                kind = (_title(moves[name].ref.name, maker), part, self._is_sector(node))
                free = 0.0 if isinstance(value, Params) else float(self.rows.get(node, 1))
                if not (self.max_norm and start is not None):
                    self._measured[name] = MeasuredUpdate(node, kind, size, 0.0 if start is None else norm(start), free)
                most = self.max_norm if self.max_norm and start is not None else LARGEST
                why = f"an update of size {size:.3g}, beyond the {most:g} that are accepted" if size > most else None
            if why is not None:
                found[name] = node, why
        return found

    def outliers(self, jobs: Iterable[Step], arrived: Callable[[str], bool]) -> list[Outlier]:
        """The updates that jobs are about to combine and that are much larger than the others.

        Args:
            jobs: steps; others than jobs are skipped.
            arrived: whether a value, by name, is here or lost.
        """
        found: list[Outlier] = []
        for names in _bundles(jobs):
            if not all(map(arrived, names)):
                continue
            group = {name: self._measured.pop(name) for name in names if name in self._measured}
            for kind in {each.kind for each in group.values()}:
                found += self._compare({name: each for name, each in group.items() if each.kind == kind})
        return found

    def _compare(self, group: dict[str, MeasuredUpdate]) -> list[Outlier]:
        sizes, start = [each.size for each in group.values()], max(each.start for each in group.values())
        (kind,) = {each.kind for each in group.values()}
        if len(group) >= FEW:
            usual, what = max(median(sizes), STILL * start), "the median of this round"
        else:
            usual, what = max(start, self._usual.get(kind, 0.0)), "the usual size"
        limit = REFUSED * usual if usual else inf
        fine = [size for size in sizes if size <= limit]
        if fine:
            self._usual[kind] = median(fine)
        return [
            Outlier(name, each.node, each.size > limit, f"{each.size / usual:.3g} times {what} ({usual:.3g})")
            for name, each in group.items()
            if usual and each.size > max(REPORTED * usual, each.free)
        ]

    def _wrong_weight(self, node: str, value: Any) -> str | None:
        """Why the weight of a model, at any depth of a value, is not believed."""
        if isinstance(value, dict | tuple | list):
            items = value.values() if isinstance(value, dict) else value
            return next(filter(None, (self._wrong_weight(node, item) for item in items)), None)
        if not isinstance(value, Params) or value.weight == 1.0:
            return None
        if self._is_sector(node):
            team = [self.rows[c] for c, sector in self.sector_of.items() if sector == node and c in self.rows]
            most = max(sum(team), len(team))
            return None if value.weight <= most else f"a model of weight {value.weight:g}, but has {most} rows"
        if node not in self.rows or value.weight == self.rows[node]:
            return None
        return (
            f"a model of weight {value.weight:g}, but announced {self.rows[node]} rows when the run began (a client "
            "that changed its data needs a new run)"
        )

    def _is_sector(self, node: str) -> bool:
        return node in self.sector_of.values()

    def _start(self, maker: Step | None, value: Params, fetch: Fetch) -> Params | None:
        """The model that a job began with: of its inputs that are models like the result, the nearest one."""
        if not isinstance(maker, Job):
            return None
        likely: list[Params] = []
        for ref in (item for item in maker.inputs.values() if isinstance(item, Ref)):
            key = (ref.name, ref.part)
            if key not in self._starts and len(self._starts) < REFERENCES and isinstance(held := fetch(ref), Params):
                self._starts[key] = held
            if key in self._starts and self._starts[key].layout == value.layout:
                likely.append(self._starts[key])
        return min(likely, key=lambda model: norm(value - model)) if len(likely) > 1 else likely[0] if likely else None


def norm(value: Any) -> float:
    """The Euclidean norm over all numbers in a value."""
    if isinstance(value, Params):
        return norm(value.vector)
    if isinstance(value, torch.Tensor):
        value = value if value.is_floating_point() else value.to(torch.float64)
        return float(torch.linalg.vector_norm(value, dtype=torch.float64)) if value.numel() else 0.0
    if isinstance(value, dict | tuple | list):
        return hypot(*map(norm, value.values() if isinstance(value, dict) else value))
    return abs(float(value)) if isinstance(value, int | float) else 0.0


def _origin(ref: Ref, named: Mapping[str, Step]) -> tuple[Step | None, str, tuple[Any, ...]]:
    """The step that made a value, the node that it was made for, and the part of it that is meant."""
    part = ref.part
    while isinstance(step := named.get(ref.name), Move):
        ref = step.ref
        part = ref.part + part
    if isinstance(step, Job):
        return step, step.node, part
    at = ref.name.rpartition("@")[2] if "@" in ref.name else ref.home  # an earlier value has its node in its name
    return step, step.home if isinstance(step, Choice) else at, part


def _title(name: str, maker: Step | None) -> str:
    """What a value is called in every round and at every node."""
    return maker.title if isinstance(maker, Job) else name.partition(".")[2].partition(".")[2].partition("@")[0]


def _bundles(steps: Iterable[Step]) -> Iterable[tuple[str, ...]]:
    """Names of the values that are combined, each group once."""
    groups: dict[tuple[str, ...], None] = {}
    for step in steps:
        for item in step.inputs.values() if isinstance(step, Job) else ():
            held = item.held if isinstance(item, Perhaps) else item
            if isinstance(held, Bundle):
                groups[tuple(ref.name for ref in held.refs.values())] = None
    return groups
