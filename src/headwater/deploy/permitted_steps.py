"""What one party is asked to do in a round, by the shape of its steps.

The shape of a step is all of it that losses cannot change: the task, the node, every plain input, which inputs are
values and, for a move, where it goes. Names of values are no part of it, since they count on after a loss. Each value
has an origin: it came from above, or a certain task made it here. A step is permitted if the method makes one of the
same shape at this place, from values of the same origins.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater.core import records
from headwater.core.tree import ROOT
from headwater.deploy.placement import Placement
from headwater.deploy.rehearsed_rounds import RehearsedRound
from headwater.deploy.steps import Choice, Move, Step
from headwater.engines.jobs import Bundle, Job, Perhaps, Ref

ABOVE = "above"  # the maker of values that other parties made
NOW, BEFORE = "this round", "an earlier round"
NOTHING: Any = frozenset()  # in place of a store: in a rehearsal no party holds anything
NTH = 2  # place of the number of the call in a job's key, after round and task


class Origin(NamedTuple):
    """Where a value comes from.

    Args:
        maker: address of the task that made it here, or ABOVE.
        node: for which node.
        part: of the result.
    """

    maker: str
    node: str = ""
    part: str = ""

    def of_part(self, part: Iterable[Any]) -> Origin:
        """The origin of a part of the value."""
        return self._replace(part=self.part + "".join(f"[{key!r}]" for key in part))

    def told(self, age: str) -> str:
        """In a sentence, with the round that the value is of."""
        return "the party above" if self.maker == ABOVE else f"{self.maker.rpartition(':')[2]}{self.part} of {age}"


Origins = frozenset[tuple[Origin, str]]  # with NOW or BEFORE
FROM_ABOVE = Origin(ABOVE)


def aged(origin: Origin, now: bool) -> tuple[Origin, str]:
    """An origin with the round that the value is of. What came from above is whatever was sent, of any round."""
    return origin, NOW if now or origin.maker == ABOVE else BEFORE


class Shape(NamedTuple):
    """The shape of a step, and the values that it takes by slot."""

    key: str
    slots: dict[str, Ref]


def shape_of(step: Step) -> Shape:
    """The shape of a step. Moves and choices of one shape are told apart by the origins of their values.

    Raises:
        TypeError: an input is nothing that a step can hold.
    """
    if isinstance(step, Move):
        return Shape(f"move to {step.home} over {','.join(step.tiers)}", {"0": step.ref})
    if isinstance(step, Choice):
        return Shape(f"choose at {step.home}", {"new": step.new, "old": step.old})
    slots: dict[str, Ref] = {}
    count = 0

    def leaf(thing: Any) -> Any:
        nonlocal count
        if isinstance(thing, Perhaps):
            return {"$": "perhaps", "held": leaf(thing.held)}
        if isinstance(thing, Ref | Bundle):
            count += 1
            refs = {f"{count}": thing} if isinstance(thing, Ref) else {f"{count}:{c}": r for c, r in thing.refs.items()}
            slots.update(refs)
            return {"$": type(thing).__name__}
        return records.UNKNOWN

    given = dict(step.inputs)
    if getattr(step.task, "takes_bound", False) and _is_bound(given.get("bound")):
        given["bound"] = "adapted"  # by the server, from round to round
    inputs = records.encode(given, leaf)
    whole = [inputs, step.home, step.lost, sorted(step.plain), [*step.key[1:NTH], *step.key[NTH + 1 :]]]
    content = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]
    return Shape(f"{records.address(step.task)} at {step.node} {content}", slots)


def _is_bound(value: Any) -> bool:
    """Whether updates can be shortened to this length."""
    return isinstance(value, float) and 0 < value < math.inf


@dataclass
class Permit:
    """Steps of one shape that the method makes in a round.

    Args:
        count: how many, at most.
        nth: highest number of the call, for jobs.
        origins: of the value in each slot.
        step: one of them.
    """

    count: int
    nth: int
    origins: dict[str, Origins] = field(default_factory=dict)
    step: Step | None = None


class PartyPlace:
    """A party in the tree: what it sees of a method's steps.

    Args:
        name: of the party.
        sectors: clients by sector.
    """

    def __init__(self, name: str, sectors: Mapping[str, Sequence[str]]) -> None:
        self.name, self._sectors = name, sectors
        self._sector_of = {client: sector for sector, clients in sectors.items() for client in clients}
        self.sector = name if name in sectors else self._sector_of.get(name)

    @property
    def above(self) -> str:
        """The party whose requests it answers."""
        return ROOT if self.name in self._sectors else self._sector_of.get(self.name, "")

    def asked(self, steps: Sequence[Step]) -> tuple[list[Step], set[str]]:
        """The steps that this party is asked for, and the names of values that arrive with them.

        `Placement` decides this for the parties above, so it decides it here, too.
        """
        if self.sector is None:
            return list(steps), set()
        asked, arriving = _asked(steps, ROOT, self.sector, self._below_server, "server_sector", ())
        if self.name == self.sector:
            return asked, arriving
        return _asked(asked, self.sector, self.name, self._below_host, "sector_client", arriving)

    def _below_server(self, home: str) -> str | None:
        return home if home in self._sectors else self._sector_of.get(home)

    def _below_host(self, home: str) -> str | None:
        return home if self._sector_of.get(home) == self.sector else None

    def is_here(self, home: str) -> bool:
        """Whether a home is this party or below it."""
        return home == self.name or self._sector_of.get(home) == self.name


def _asked(
    steps: Sequence[Step],
    name: str,
    child: str,
    below: Callable[[str], str | None],
    tier: str,
    arrived: Collection[str],
) -> tuple[list[Step], set[str]]:
    plan = Placement(steps, name, below, tier, NOTHING, arrived)
    delivered = {move.name for move in plan.deliveries[child]}
    wanted = delivered | {step.name for step in plan.requests[child]}
    return [*(step for step in steps if step.name in wanted), *plan.relays[child].values()], delivered


class PermittedSteps:
    """The permits of one party in one round.

    Args:
        place: the party.
        rehearsed: the round.
        before: origins of values of earlier rounds, by name.
    """

    def __init__(self, place: PartyPlace, rehearsed: RehearsedRound, before: Mapping[str, frozenset[Origin]]) -> None:
        self.number, self.sizes = rehearsed.number, dict(rehearsed.sizes)
        self.permits: dict[str, Permit] = {}
        self.origins: dict[str, frozenset[Origin]] = {}  # of this round's values without losses, for later rounds
        self.largest = max((size for size in rehearsed.sizes.values() if size), default=0)
        self.known = None not in rehearsed.sizes.values()
        for way in reversed(rehearsed.ways):  # that without losses is the last, whose origins stay
            self._add(way, place, before)

    def _add(self, steps: Sequence[Step], place: PartyPlace, before: Mapping[str, frozenset[Origin]]) -> None:
        asked, arriving = place.asked(steps)
        found: dict[str, Origins] = {}

        def origins(ref: Ref) -> Origins:
            known = found.get(ref.name)
            if known is None:
                known = frozenset(aged(origin, False) for origin in before.get(ref.name, {FROM_ABOVE}))
            return frozenset((origin.of_part(ref.part), age) for origin, age in known)

        # Any move to here may arrive as such: a host may hold the value of a former leader, which it then sends itself.
        counts = Counter({ARRIVES: sum(isinstance(step, Move) and place.is_here(step.home) for step in steps)})
        self._permit(ARRIVES, counts)
        for step in asked:
            if step.name in arriving:
                found[step.name] = frozenset({(FROM_ABOVE, NOW)})
                continue
            shape = shape_of(step)
            taken = {slot: origins(ref) for slot, ref in shape.slots.items()}
            if isinstance(step, Job):
                found[step.name] = frozenset({(Origin(records.address(step.task), step.node), NOW)})
            elif isinstance(step, Choice):
                found[step.name] = taken["new"] | taken["old"]
            elif place.is_here(step.home):  # it stays below this party
                found[step.name] = taken["0"]
            for key in keys_of(step, shape, taken):
                counts[key] += 1
                permit = self._permit(key, counts)
                permit.step = step
                permit.nth = max(permit.nth, int(step.key[NTH])) if isinstance(step, Job) else 0
                for slot, held in taken.items():
                    permit.origins[slot] = permit.origins.get(slot, frozenset()) | held
        self.origins = {name: frozenset(origin for origin, _ in held) for name, held in found.items()}

    def add(self, other: PermittedSteps) -> None:
        """Permit the steps of another party's set-up, too: that of clients which joined later."""
        for key, permit in other.permits.items():
            own = self.permits.setdefault(key, permit)
            own.count, own.nth = max(own.count, permit.count), max(own.nth, permit.nth)
            for slot, held in permit.origins.items():
                own.origins[slot] = own.origins.get(slot, frozenset()) | held
        self.sizes = {**self.sizes, **other.sizes}
        self.largest, self.known = max(self.largest, other.largest), self.known and other.known

    def _permit(self, key: str, counts: Counter[str]) -> Permit:
        permit = self.permits.setdefault(key, Permit(0, 0))
        permit.count = max(permit.count, counts[key])
        return permit

    def reply_bytes(self, names: Iterable[str]) -> int | None:
        """How many bytes values of these names take; None if only training can tell. Names that a loss has changed
        count as the largest value of the round."""
        if not self.known:
            return None
        return sum(self.sizes.get(name) or self.largest for name in names)


ARRIVES = "arrives"  # key of moves that bring a value from above


def keys_of(step: Step, shape: Shape, taken: Mapping[str, Iterable[tuple[Origin, str]]]) -> list[str]:
    """Keys of the permits of a step: one, or for moves one for each origin that the value may have."""
    if not isinstance(step, Move):
        return [shape.key]
    origins = dict.fromkeys(origin for origin, _ in taken["0"])
    return [f"{shape.key} of {origin.maker} for {origin.node}{origin.part}" for origin in origins]
