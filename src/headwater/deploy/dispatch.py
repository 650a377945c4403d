"""How a party gets work done by those below it: who is sent what together, what comes back, and who is left out.

The steps of a method are known in advance as far as the method does not wait. They are cut into as few exchanges as
their dependencies allow: a party below is sent all that it can do with what it has, with what is here and with what it
makes itself, and is asked for just what others need. The server does so with sectors, and a sector's host, with the
steps that it was sent, with its clients.

A value is logically at a home and really at one or more parties. They differ in one case: a seated sector's home is
its leader, but what members send to their leader goes through the host. The host then combines models itself, where
that takes no data, and passes on to the leader only what the leader needs. What goes over an edge for such a reason
is `relay`; what a move of the method takes over it is charged to its tier.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headwater.core import serialization
from headwater.core.params import Params
from headwater.core.serialization import Info
from headwater.deploy import program
from headwater.deploy.link import Link
from headwater.deploy.message import Message, Unanswered
from headwater.deploy.outcome import Outcome
from headwater.deploy.program import Choice, Move, Step
from headwater.deploy.store import Store
from headwater.deploy.wire import Customs, Refused, pack
from headwater.engines.base import LOST, Job, Lost, Ref, pick
from headwater.engines.execution import execute
from headwater.errors import TaskError, UserError
from headwater.tasks.task import RunContext

HERE = ""  # in place of a party below
RELAY = "relay"
COMBINES = "average"  # the phase of tasks that take models and no data
REJOIN = 75.0  # seconds in which those who are well have joined a link that is up again
TICK = 0.5  # seconds between two looks at the clock while waiting for replies


class Meter(Protocol):
    """Writes down what this party sends."""

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None: ...


@dataclass(frozen=True)
class Party:
    """What belongs to one party in one run."""

    name: str
    context: RunContext
    store: Store
    customs: Customs
    meter: Meter
    trusted: program.Trusted
    stamp: Mapping[str, Any]  # goes with every message: which federation and which run
    say: Callable[[str], None]  # one line for the log
    hear: Callable[[str], None] = lambda line: None  # such a line of somebody below


@dataclass
class _Asked:
    """An exchange under way."""

    child: str
    steps: list[Step]
    cargo: list[str]
    until: float
    begun: float


class Dispatcher:
    def __init__(
        self,
        party: Party,
        below: Callable[[str], str | None],
        link: Link,
        tier: str,
        quorum: float,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`below` names the party under which a home is, or nobody; `tier` is the edge to those below."""
        self._party, self._below, self._link, self._tier, self._quorum = party, below, link, tier, quorum
        self._store, self._on_wait = party.store, on_wait
        self._held: defaultdict[str, set[str]] = defaultdict(set)  # what a party below is known to hold
        self.anew()
        self._fresh = True  # whether everybody is to be waited for
        self._round, self._attempt = -1, ""
        self._gone: dict[str, str] = {}  # in this round: who, and why
        self._asked_for: set[str] = set()  # in this round: who was to do something
        self._idle: set[str] = set()  # in this round: who answered that too few of its own did

    def run(
        self,
        steps: Sequence[Step],
        round: int,
        keep: Mapping[str, Sequence[str]],
        deadline: float,
        arrived: Iterable[str] = (),
        attempt: str = "",
    ) -> Outcome:
        """All of these steps, in as few exchanges as they allow. `arrived` came with the message that asked for them;
        `keep` names, by home, what is still needed of earlier values. A server that was started again does a round in
        another `attempt`, for which everybody is asked anew."""
        attempt = attempt or self._start
        if (round, attempt) != (self._round, self._attempt):
            self._fresh = self._fresh or round == self._round
            self._round, self._attempt, self._gone, self._asked_for, self._idle = round, attempt, {}, set(), set()
        self._keep, self._deadline, self._out = keep, deadline, Outcome()
        self._arrived = set(arrived)
        self._waiting = {step.name: step for step in steps}
        self._models = {step.name for step in steps if isinstance(step, Job) and _gives_model(step)}
        self._forget_earlier()
        self._place: dict[str, str] = {}
        self._theirs: defaultdict[str, list[Step]] = defaultdict(list)  # steps that others do, or that bring here
        self._deliver: defaultdict[str, list[Move]] = defaultdict(list)
        self._bring: defaultdict[str, dict[str, Move]] = defaultdict(dict)  # for lack of a move of the method
        self._leaving: set[str] = set()  # values that come from below
        for step in steps:
            self._plan(step)
        for step in steps:
            self._plan_relays(step)
        delivered = [move.name for moves in self._deliver.values() for move in moves]
        self._asked_for |= {child for child, own in self._theirs.items() if any(isinstance(s, Job) for s in own)}
        self._await_quorum()
        busy: dict[int, _Asked] = {}
        while True:
            moved = self._do_here()
            working = {asked.child for asked in busy.values()}
            for child in dict.fromkeys([*self._theirs, *self._deliver, *self._bring]):
                if child not in working:
                    moved = self._ask(child, busy) or moved
            if busy:
                self._collect(busy)
            elif not moved:
                break
        for name, step in list(self._waiting.items()):  # nothing that they wait for will ever come
            self._lose_step(name, step)
        for name in delivered:  # they are elsewhere now
            self._store.discard(name)
        return self._out

    def anew(self) -> None:
        """What is run next is another attempt, even if it is of the same round: everybody is waited for and asked."""
        self._start = secrets.token_hex(4)  # also tells this process from the one before it

    def _await_quorum(self) -> None:
        """Somebody who is away for a moment need not cost a round: it begins when enough are there, or late. After a
        start nobody is there yet, and a round is done again for somebody's sake, so for a while everybody is waited
        for."""
        patience, share = (min(REJOIN, self._deadline), 1.0) if self._fresh else (self._deadline, self._quorum)
        until, asked = time.monotonic() + patience, self._asked_for - set(self._gone)
        self._fresh = self._fresh and not asked
        while len(asked & self._link.present()) < share * len(asked) and time.monotonic() < until:
            self._on_wait()
            time.sleep(0.1)

    @property
    def gone(self) -> frozenset[str]:
        """Those below of whom nothing is to be had any more in this round."""
        return frozenset(self._idle).union(self._gone)

    def is_above(self, home: str) -> bool:
        """Whether a home is neither here nor below."""
        return home != self._party.name and self._below(home) is None

    # -- planning

    def _forget_earlier(self) -> None:
        """A round that is done again, after a restart, makes its values anew. And what need not be kept is not."""
        for name in self._waiting:
            if name not in self._arrived:
                self._store.discard(name)
        kept = {name for names in self._keep.values() for name in names} - self._waiting.keys()
        for held in self._held.values():
            held &= kept

    def _where(self, ref: Ref) -> str:
        if ref.name in self._place:
            return self._place[ref.name]
        if ref.name in self._store:
            return HERE
        return self._below(ref.home) or HERE

    def _doer(self, step: Step) -> str:
        if isinstance(step, Job) and step.node == self._party.name and step.phase == COMBINES:
            return HERE  # for a leader: all that it takes passes through here
        return self._below(step.home) or HERE

    def _plan(self, step: Step) -> None:
        if not isinstance(step, Move):
            self._place[step.name] = doer = self._doer(step)
            if doer != HERE:
                self._theirs[doer].append(step)
            return
        target = self._below(step.home) or HERE
        source = HERE if step.name in self._arrived else self._where(step.ref)
        if target != HERE and target in (source, self._below(step.ref.home)):  # of no concern here
            self._place[step.name] = target
            self._theirs[target].append(step)
            return
        self._place[step.name] = HERE
        if source != HERE:
            self._theirs[source].append(step)
            self._leaving.add(step.name)
        elif target != HERE and self._tier in step.tiers:
            self._deliver[target].append(step)

    def _plan_relays(self, step: Step) -> None:
        """What a step takes from somebody else without a move of the method."""
        doer = self._place[step.name]
        if isinstance(step, Move) and doer == HERE:
            return
        for ref in step.refs():
            source = self._where(ref)
            if source not in (HERE, doer):
                self._bring[source][ref.name] = Move(ref=Ref(ref.name, ref.home), home=self._party.name, name=ref.name)

    # -- here

    def _do_here(self) -> bool:
        """Every step of ours that has what it takes, in order; what it makes may be what the next takes."""
        moved = False
        for name, step in list(self._waiting.items()):
            if self._place[name] != HERE or name in self._leaving or not self._is_ready(step):
                continue
            if isinstance(step, Job):
                self._settle(name, self._made(step))
            elif isinstance(step, Choice):
                new = self._fetch(step.new)
                self._settle(name, self._fetch(step.old) if new is LOST else new)
            elif name in self._arrived or step.ref.part:
                self._settle(name, self._store[name] if name in self._arrived else self._fetch(step.ref))
            else:
                self._store.link(name, step.ref.name)
                self._settle(name, self._store[name])
            moved = True
        return moved

    def _made(self, job: Job) -> Any:
        """What a job of ours makes. One that fails over what others sent costs the round, and not the run."""
        try:
            value, done = execute(job, self._party.context, self._fetch, lambda ref: None)
        except TaskError as error:
            if isinstance(error, UserError) or not self._leaving:
                raise
            self._out.void = True
            self._say(f"round {self._round}: {error}; what it was to make counts as lost")
            return LOST
        self._out.done.append(done)
        return value

    def _is_ready(self, step: Step) -> bool:
        if step.name in self._arrived:
            return True
        return all(self._is_here(ref) for ref in step.refs())

    def _is_here(self, ref: Ref) -> bool:
        return ref.name not in self._waiting and (ref.name in self._store or self._where(ref) == HERE)

    def _fetch(self, ref: Ref) -> Any:
        return pick(self._store[ref.name], ref)

    def _settle(self, name: str, value: Any) -> None:
        """Take down a value that is here, or is lost."""
        if value is LOST or name not in self._store:
            self._store[name] = value
        self._out.infos[name] = None if value is LOST else serialization.info(value)
        self._waiting.pop(name, None)

    # -- those below

    def _ask(self, child: str, busy: dict[int, _Asked]) -> bool:
        """Send what can be done there now; tells whether there was anything."""
        if child in self._gone:
            return self._lose(child)
        steps, cargo = self._batch(child)
        if not steps:
            return False
        if child not in self._link.present():
            self._leave_out(child, "is not there")
            return True
        sent = {step.name for step in steps}
        self._deliver[child] = [move for move in self._deliver[child] if move.name not in sent]
        tiers = {step.name: self._tier for step in steps if isinstance(step, Move) and self._tier in step.tiers}
        homes = {home: list(names) for home, names in self._keep.items() if self._below(home) == child}
        head = {"do": "work", **self._party.stamp, "round": self._round, "deadline": self._deadline, "keep": homes}
        head["attempt"] = self._attempt
        head["steps"] = [program.write(step) for step in steps]
        message = pack(head, {name: self._store[name] for name in cargo})
        for name in cargo:
            self._metered(child, name, tiers.get(name, RELAY))
        # Who asks others in turn has time for each task of theirs, for waiting until enough of them are there, and to
        # find out that somebody does not answer.
        waves = len({s.key[:3] for s in steps if isinstance(s, Job) and s.home != child})
        homes_there = {step.home for step in steps} | {ref.home for step in steps for ref in step.refs()}
        passes_on = any(home != child and self._below(home) == child for home in homes_there)
        begun, patience = time.monotonic(), self._deadline * (max(1, waves) + 2 if passes_on else 1)
        busy[self._link.send(child, message)] = _Asked(child, steps, cargo, begun + patience, begun)
        return True

    def _metered(self, child: str, name: str, tier: str) -> None:
        value = self._store[name]
        if value is not LOST:
            size = serialization.info(value)
            self._party.meter.add(self._round, child, size.kind, tier, "down", size.bytes, name)

    def _batch(self, child: str) -> tuple[list[Step], list[str]]:
        """The steps that can be done there now, and what has to be sent along."""
        steps: list[Step] = []
        cargo: list[str] = []
        there: set[str] = set()
        for move in self._deliver[child]:
            if move.name not in self._waiting:
                steps.append(move)
                cargo.append(move.name)
                there.add(move.name)
        for step in self._theirs[child]:
            if step.name not in self._waiting:
                continue
            needed = self._lacking(step, child, there)
            if needed is None:
                continue
            steps.append(step)
            cargo += needed
            there.update(needed)
            if self._place[step.name] == child:
                there.add(step.name)
        for name, move in self._bring[child].items():
            if name not in self._store and (name in there or name not in self._waiting):
                steps.append(move)
        return steps, cargo

    def _lacking(self, step: Step, child: str, there: set[str]) -> list[str] | None:
        """What a step needs from here; None while something is not to be had yet."""
        needed: list[str] = []
        for ref in step.refs():
            if ref.name in there or ref.name in needed:
                continue
            if ref.name in self._waiting:
                return None
            if ref.name in self._held[child]:
                continue
            if ref.name in self._store:
                needed.append(ref.name)
            elif self._where(ref) == HERE:  # nobody has it
                self._store[ref.name] = LOST
                needed.append(ref.name)
            elif self._where(ref) != child:
                return None
        return needed

    def _collect(self, busy: dict[int, _Asked]) -> None:
        soonest = min(asked.until for asked in busy.values()) - time.monotonic()
        self._on_wait()
        for number, reply in self._link.replies(max(0.0, min(TICK, soonest))):
            asked = busy.pop(number, None)
            if asked is None or asked.child in self._gone:  # what would count for nothing is not looked at
                continue
            if isinstance(reply, Unanswered):
                self._leave_out(asked.child, _why(asked.child, str(reply)))
            else:
                self._take(asked, reply)
        for number, asked in list(busy.items()):
            if time.monotonic() >= asked.until:
                del busy[number]
                self._link.forget(number)
                self._leave_out(asked.child, f"did not answer within {asked.until - asked.begun:.0f} s")

    def _take(self, asked: _Asked, reply: Message) -> None:
        """What came back, all of it or nothing."""
        child, head = asked.child, reply.head
        try:
            if "failed" in head:
                raise Refused(str(head["failed"]))
            values = self._party.customs.unpack(reply)
            wanted = {s.name for s in asked.steps if isinstance(s, Move) and self._place.get(s.name) != child}
            wanted -= set(asked.cargo)
            wanted |= {step.name for step in asked.steps if self._bring[child].get(step.name) is step}
            if unasked := sorted(set(values) - wanted):
                raise Refused(f"sent {unasked[0]!r}, which nobody asked for")
            moves = [step for step in asked.steps if isinstance(step, Move)]
            models = [move.name for move in moves if move.ref.name in self._models and not move.ref.part]
            if other := [name for name in models if not isinstance(values.get(name, LOST), Params | Lost)]:
                raise Refused(f"sent {other[0]!r}, which is no model")
            told = Outcome.read(head, asked.steps)
        except Exception as error:
            self._leave_out(child, f"sent a reply that is refused: {error}")
            return
        self._held[child].update(asked.cargo)
        for name in wanted:
            if name in self._bring[child]:
                self._store[name] = values.get(name, LOST)
            else:
                self._settle(name, values.get(name, LOST))
        for step in asked.steps:
            if step.name in self._waiting:
                self._waiting.pop(step.name)
                self._out.infos[step.name] = found = told.infos.get(step.name)
                self._held[child].add(step.name)
                if found is None and step.name not in self._store:
                    self._store[step.name] = LOST
        self._out.done += told.done
        self._out.same |= told.same
        self._out.events += told.events
        for event in told.events:
            self._party.hear(event)
        if told.void:
            self._idle.add(child)
            self._see_to_quorum()

    # -- who is left out

    def _leave_out(self, child: str, why: str) -> None:
        """For the rest of the round."""
        if child in self._gone:
            return
        self._gone[child] = why
        self._say(f"round {self._round}: {child} {why} and is left out of this round")
        self._lose(child)
        self._see_to_quorum()

    def _see_to_quorum(self) -> None:
        asked, lost = len(self._asked_for), len(self._asked_for & self.gone)
        if asked and lost and asked - lost < self._quorum * asked:
            self._give_up(f"only {asked - lost} of {asked} answered, fewer than deploy.quorum = {self._quorum:g} asks")

    def _give_up(self, why: str) -> None:
        if any(reason == why for reason in self._gone.values()):
            return
        self._out.void = True
        self._say(f"round {self._round}: {why}; the round counts for nothing at {self._party.name}")
        for child in [*self._theirs, *self._deliver, *self._bring]:
            self._gone.setdefault(child, why)
            self._lose(child)
        for name in self._leaving:
            self._settle(name, LOST)

    def _say(self, sentence: str) -> None:
        self._party.say(sentence)
        self._out.events.append(sentence)

    def _lose(self, child: str) -> bool:
        """All that was to come from there will not; tells whether that was anything."""
        lost = [step for step in self._theirs[child] if step.name in self._waiting]
        for step in lost:
            self._lose_step(step.name, step)
        for name in self._bring[child]:
            if name not in self._store and name not in self._waiting:
                self._store[name] = LOST
        undelivered = [move for move in self._deliver[child] if move.name not in self._waiting]
        for move in undelivered:
            if move.name not in self._arrived:  # what came from above did cross an edge
                self._out.infos[move.name] = None
        self._deliver[child] = [move for move in self._deliver[child] if move.name in self._waiting]
        return bool(lost or undelivered)

    def _lose_step(self, name: str, step: Step) -> None:
        if isinstance(step, Choice) and self._place[name] != HERE:  # who is lost keeps what it had
            self._out.same[name], self._out.infos[name] = step.old, Info(0, 0, "kept")
            self._waiting.pop(name)
        else:
            self._settle(name, LOST)


def _why(child: str, reason: str) -> str:
    """What follows a party's name in a sentence: links say it with `it`, or about themselves."""
    for subject in ("it", child):
        if reason.startswith(f"{subject} "):
            return reason.removeprefix(f"{subject} ")
    if reason.startswith(("the ", "its ", "what ")):
        return f"did not answer ({reason})"
    return reason or "did not answer"


def _gives_model(job: Job) -> bool:
    return getattr(job.task, "__annotations__", {}).get("return") in (Params, Params.__name__)
