"""Which steps run at this party, which at the parties below it, and what is requested of each of those.

A value is logically at a home and physically at one or more parties. They differ in one case: a sector's values are at
its leader, but what members send to their leader goes through the sector's host. The host then combines models itself,
where that takes no data, and passes on to the leader only what the leader needs. Such a transfer is recorded as
`relay`; a transfer that is a move of the method is charged to its tier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.core.params import Params
from headwater.deploy import steps as step_format
from headwater.deploy.party_run import RELAY, PartyRun, ValueStore
from headwater.deploy.payload import Refused, pack
from headwater.deploy.quoting import quoted
from headwater.deploy.steps import Move, Step, StepResults
from headwater.deploy.transport import Message
from headwater.engines.jobs import LOST, Job, Lost, Ref

HERE = ""  # in place of the name of a party below
COMBINES = "average"  # the phase of tasks that take models and no data

Below = Callable[[str], str | None]


@dataclass
class Request:
    """The steps that one party below carries out in one exchange.

    Args:
        child: the party below.
        steps: in the order of the method.
        cargo: names of the values that are sent along.
        expected: names of the values that its reply may hold.
        models: those of them that must be models.
        most: largest payload of its reply, once it is sent; None if only training can tell.
    """

    child: str
    steps: list[Step]
    cargo: list[str]
    expected: set[str]
    models: list[str]
    most: int | None = None

    def message(self, party: PartyRun, round: int, tier: str, **head: Any) -> Message:
        """The `work` message of this request; its values are recorded as sent."""
        charged = {step.name for step in self.steps if isinstance(step, Move) and tier in step.tiers}
        values = {name: party.store[name] for name in self.cargo}
        head = {"do": "work", **party.head(), "round": round, **head}
        message = pack(head | {"steps": [step_format.encode(step) for step in self.steps]}, values)
        self.most = party.permissions.reply_limit(round, self.expected)
        message = replace(message, most=self.most)
        for name, value in values.items():
            party.record_sent(round, self.child, name, value, tier if name in charged else RELAY, "down")
        return message

    def read_reply(self, party: PartyRun, reply: Message) -> tuple[dict[str, Any], StepResults]:
        """Values and results of the reply. Any exception means that the reply is refused."""
        if "failed" in reply.head:
            raise Refused(f"it says {quoted(reply.head['failed'])}")
        if self.most is not None and reply.payload > self.most:
            raise Refused(f"sent {reply.payload:,} bytes, and at most {self.most:,} were to be expected")
        values = party.reader.unpack(reply)
        if unasked := sorted(set(values) - self.expected):
            raise Refused(f"sent {unasked[0]!r}, which nobody asked for")
        if other := [name for name in self.models if not isinstance(values.get(name, LOST), Params | Lost)]:
            raise Refused(f"sent {other[0]!r}, which is no model")
        return values, StepResults.decode(reply.head, self.steps)

    def seconds(self, deadline: float, below: Below) -> float:
        """How long to wait for the reply. A host has one deadline per task of its clients, one to wait until enough of
        them are connected, and one to find out that one of them does not answer."""
        tasks = len({step.key[:3] for step in self.steps if isinstance(step, Job) and step.home != self.child})
        homes = {step.home for step in self.steps} | {ref.home for step in self.steps for ref in step.refs()}
        asks_others = any(home != self.child and below(home) == self.child for home in homes)
        return deadline * (max(1, tasks) + 2 if asks_others else 1)


class Placement:
    """Where the steps of one request run.

    Args:
        steps: in the order of the method.
        name: of this party.
        below: the party directly below that a home is at or under; None for other homes.
        tier: the tier of the edges to the parties below.
        store: the values of this party.
        arrived: names of values that came with the request.
    """

    def __init__(
        self, steps: Sequence[Step], name: str, below: Below, tier: str, store: ValueStore, arrived: Collection[str]
    ) -> None:
        self._name, self._below, self._tier, self._store = name, below, tier, store
        self.runs_at: dict[str, str] = {}  # by name of the step: HERE or a party below
        self.requests: defaultdict[str, list[Step]] = defaultdict(list)  # steps of a party below, and moves from there
        self.deliveries: defaultdict[str, list[Move]] = defaultdict(list)  # moves of the method from here to below
        self.relays: defaultdict[str, dict[str, Move]] = defaultdict(dict)  # values fetched without such a move
        self.from_below: set[str] = set()  # names of values that a move brings here
        self._models = {step.name for step in steps if isinstance(step, Job) and _returns_model(step)}
        for step in steps:
            self._place(step, arrived)
        for step in steps:
            self._place_relays(step)

    def party_of(self, ref: Ref) -> str:
        """Where a value is, or will be once it exists: HERE or a party below."""
        if ref.name in self.runs_at:
            return self.runs_at[ref.name]
        if ref.name in self._store:
            return HERE
        return self._below(ref.home) or HERE

    @property
    def children(self) -> list[str]:
        """Parties below that take part, each once."""
        return [*dict.fromkeys([*self.requests, *self.deliveries, *self.relays])]

    def _place(self, step: Step, arrived: Collection[str]) -> None:
        if not isinstance(step, Move):
            self.runs_at[step.name] = party = self._runner(step)
            if party != HERE:
                self.requests[party].append(step)
            return
        target = self._below(step.home) or HERE
        source = HERE if step.name in arrived else self.party_of(step.ref)
        if target != HERE and target in (source, self._below(step.ref.home)):  # stays at or under one party below
            self.runs_at[step.name] = target
            self.requests[target].append(step)
            return
        self.runs_at[step.name] = HERE
        if source != HERE:
            self.requests[source].append(step)
            self.from_below.add(step.name)
        elif target != HERE and self._tier in step.tiers:
            self.deliveries[target].append(step)

    def _runner(self, step: Step) -> str:
        if isinstance(step, Job) and step.node == self._name and step.phase == COMBINES:
            return HERE  # in place of the leader, since all its inputs pass through here
        return self._below(step.home) or HERE

    def _place_relays(self, step: Step) -> None:
        """Find values that a step takes from another party without a move of the method."""
        party = self.runs_at[step.name]
        if isinstance(step, Move) and party == HERE:
            return
        for ref in step.refs():
            source = self.party_of(ref)
            if source not in (HERE, party):
                self.relays[source][ref.name] = Move(ref=Ref(ref.name, ref.home), home=self._name, name=ref.name)

    def next_request(self, child: str, waiting: Collection[str], held: Collection[str]) -> Request | None:
        """All that a party below can carry out now; None if that is nothing.

        Args:
            child: the party below.
            waiting: names of steps that have no result yet.
            held: names of values that it is known to hold.
        """
        steps: list[Step] = []
        cargo: list[str] = []
        available: set[str] = set()
        for move in self.deliveries[child]:
            if move.name not in waiting:
                steps.append(move)
                cargo.append(move.name)
                available.add(move.name)
        for step in self.requests[child]:
            if step.name not in waiting:
                continue
            needed = self._missing_inputs(step, child, available, waiting, held)
            if needed is None:
                continue
            steps.append(step)
            cargo += needed
            available.update(needed)
            if self.runs_at[step.name] == child:
                available.add(step.name)
        for name, move in self.relays[child].items():
            if name not in self._store and (name in available or name not in waiting):
                steps.append(move)
        if not steps:
            return None
        moves = [step for step in steps if isinstance(step, Move)]
        expected = {move.name for move in moves if self.runs_at.get(move.name) != child} - set(cargo)
        expected |= {move.name for move in moves if self.relays[child].get(move.name) is move}
        models = [move.name for move in moves if move.ref.name in self._models and not move.ref.part]
        return Request(child, steps, cargo, expected, models)

    def _missing_inputs(
        self, step: Step, child: str, available: set[str], waiting: Collection[str], held: Collection[str]
    ) -> list[str] | None:
        """Inputs of a step to send along; None while one of them does not exist yet."""
        needed: list[str] = []
        for ref in step.refs():
            if ref.name in available or ref.name in needed:
                continue
            if ref.name in waiting:
                return None
            if ref.name in held:
                continue
            if ref.name in self._store:
                needed.append(ref.name)
            elif self.party_of(ref) == HERE:  # no party has it
                self._store[ref.name] = LOST
                needed.append(ref.name)
            elif self.party_of(ref) != child:
                return None
        return needed


def _returns_model(job: Job) -> bool:
    return getattr(job.task, "__annotations__", {}).get("return") in (Params, Params.__name__)
