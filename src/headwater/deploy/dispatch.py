"""Gets steps done by the parties below: the server asks sectors, a sector's host asks its clients.

The steps up to the next result that the method waits for are cut into as few exchanges as their dependencies allow: a
party below is sent all that it can do with the values that it holds, that are here and that it computes itself. It
sends back only what others need. A party that does not answer in time, or whose reply is refused, is left out of the
round; with too few left the round is void.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.deploy.party_run import PartyRun
from headwater.deploy.placement import HERE, Below, Placement, Request
from headwater.deploy.steps import Choice, Step, StepResults
from headwater.deploy.transport import Downlink, Message, Unanswered
from headwater.engines.execution import execute
from headwater.engines.jobs import LOST, Job, Ref
from headwater.errors import TaskError, UserError

REJOIN = 75.0  # seconds in which all healthy members have joined a link that was started again
TICK = 0.5  # longest wait in seconds between two checks of the deadline

Open = dict[int, tuple[Request, float]]  # by number of the exchange: what was requested, and when it is given up


class Dispatcher:
    """Carries out steps, here and at the parties below.

    Args:
        party: this party.
        below: the party directly below that a home is at or under; None for other homes.
        link: to the parties below.
        tier: the tier of the edges to the parties below.
        quorum: share of the asked parties that must answer for a round to count.
        on_wait: called repeatedly while waiting.
    """

    def __init__(
        self,
        party: PartyRun,
        below: Below,
        link: Downlink,
        tier: str,
        quorum: float,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._party, self._below, self._link, self._tier, self._quorum = party, below, link, tier, quorum
        self._store, self._on_wait = party.store, on_wait
        self._held: defaultdict[str, set[str]] = defaultdict(set)  # names of values that a party below holds
        self.new_attempt()
        self._wait_for_all = True
        self._round, self._attempt = -1, ""
        self._left_out: dict[str, str] = {}  # parties left out of this round, with the reason
        self._asked: set[str] = set()  # parties with a job in this round
        self._below_quorum: set[str] = set()  # sectors of which too few clients answered in this round

    def run(
        self,
        steps: Sequence[Step],
        round: int,
        keep: Mapping[str, Sequence[str]],
        deadline: float,
        arrived: Iterable[str] = (),
        attempt: str = "",
    ) -> StepResults:
        """Carry out all of these steps.

        Args:
            steps: of one round, in the order of the method.
            keep: by home, names of earlier values that are still needed.
            deadline: seconds that a party has for one exchange.
            arrived: names of values that came with the request for these steps.
            attempt: of this round. A restarted server repeats a round in a new attempt, in which every party is asked
                again; by default the one since `new_attempt`.
        """
        attempt = attempt or self._own_attempt
        if (round, attempt) != (self._round, self._attempt):
            self._wait_for_all = self._wait_for_all or round == self._round
            self._round, self._attempt = round, attempt
            self._left_out, self._asked, self._below_quorum = {}, set(), set()
        self._keep, self._deadline, self._results = keep, deadline, StepResults()
        self._arrived = set(arrived)
        self._waiting = {step.name: step for step in steps}
        for name in self._waiting.keys() - self._arrived:  # results of an earlier attempt
            self._store.discard(name)
        kept = {name for names in keep.values() for name in names} - self._waiting.keys()
        self._held = defaultdict(set, {child: held & kept for child, held in self._held.items()})
        self._plan = plan = Placement(steps, self._party.name, self._below, self._tier, self._store, self._arrived)
        delivered = [move.name for moves in plan.deliveries.values() for move in moves]
        self._asked |= {child for child, own in plan.requests.items() if any(isinstance(s, Job) for s in own)}
        self._await_quorum()
        open_: Open = {}
        while True:
            progress = self._run_here()
            busy = {request.child for request, _ in open_.values()}
            for child in plan.children:
                if child not in busy:
                    progress = self._request(child, open_) or progress
            if open_:
                self._collect(open_)
            elif not progress:
                break
        for name, step in list(self._waiting.items()):  # their inputs will never exist
            self._lose_step(name, step)
        for name in delivered:  # they are below now
            self._store.discard(name)
        return self._results

    def new_attempt(self) -> None:
        """Make the next call of `run` a new attempt, even for the same round: all parties are awaited and asked."""
        self._own_attempt = secrets.token_hex(4)  # random, so that it also differs from those of an earlier process

    @property
    def gone(self) -> frozenset[str]:
        """Parties below that give nothing more in this round."""
        return frozenset(self._below_quorum).union(self._left_out)

    def is_above(self, home: str) -> bool:
        """Whether a home is neither here nor below."""
        return home != self._party.name and self._below(home) is None

    def _await_quorum(self) -> None:
        """Wait until enough parties are connected, or the deadline. After a start, and when a round is repeated, wait
        for all of them for a while: after a start no party is connected yet."""
        patience, share = (min(REJOIN, self._deadline), 1.0) if self._wait_for_all else (self._deadline, self._quorum)
        until, asked = time.monotonic() + patience, self._asked - self._left_out.keys()
        self._wait_for_all = self._wait_for_all and not asked
        while len(asked & self._link.present()) < share * len(asked) and time.monotonic() < until:
            self._on_wait()
            time.sleep(0.1)

    # -- steps of this party

    def _run_here(self) -> bool:
        """Run every step of this party whose inputs are here, in order. Returns whether there was any."""
        progress = False
        for name, step in list(self._waiting.items()):
            if self._plan.runs_at[name] != HERE or name in self._plan.from_below:
                continue
            if name not in self._arrived and not all(map(self._is_here, step.refs())):
                continue
            if isinstance(step, Job):
                self._settle(name, self._run_job(step))
            elif isinstance(step, Choice):
                self._settle(name, self._party.choose(step))
            elif name in self._arrived or step.ref.part:
                self._settle(name, self._store[name] if name in self._arrived else self._party.fetch(step.ref))
            else:
                self._store.link(name, step.ref.name)
                self._settle(name, self._store[name])
            progress = True
        return progress

    def _run_job(self, job: Job) -> Any:
        """The result of a job. A failure over values of other parties makes the round void; it does not end the run."""
        try:
            value, done = execute(job, self._party.context, self._party.fetch, lambda ref: None)
        except TaskError as error:
            if isinstance(error, UserError) or not self._plan.from_below:
                raise
            self._results.void = True
            self._log(f"round {self._round}: {error}; what it was to make counts as lost")
            return LOST
        self._results.done.append(done)
        return value

    def _is_here(self, ref: Ref) -> bool:
        return ref.name not in self._waiting and (ref.name in self._store or self._plan.party_of(ref) == HERE)

    def _settle(self, name: str, value: Any) -> None:
        """Record the value of a step, which is here or lost."""
        if value is LOST or name not in self._store:
            self._store[name] = value
        self._results.infos[name] = None if value is LOST else serialization.info(value)
        self._waiting.pop(name, None)

    # -- exchanges with the parties below

    def _request(self, child: str, open_: Open) -> bool:
        """Send the steps that a party can do now. Returns whether there were any."""
        if child in self._left_out:
            return self._lose(child)
        request = self._plan.next_request(child, self._waiting, self._held[child])
        if request is None:
            return False
        if child not in self._link.present():
            self._leave_out(child, "is not there")
            return True
        deliveries, sent = self._plan.deliveries, {step.name for step in request.steps}
        deliveries[child] = [move for move in deliveries[child] if move.name not in sent]
        keep = {home: list(names) for home, names in self._keep.items() if self._below(home) == child}
        rest = {"deadline": self._deadline, "keep": keep, "attempt": self._attempt}
        message = request.message(self._party, self._round, self._tier, **rest)
        seconds = request.seconds(self._deadline, self._below)
        open_[self._link.send(child, message, seconds)] = request, time.monotonic() + seconds
        return True

    def _collect(self, open_: Open) -> None:
        self._on_wait()
        soonest = min(until for _, until in open_.values()) - time.monotonic()
        for number, reply in self._link.replies(max(0.0, min(TICK, soonest))):
            request, _ = open_.pop(number, (None, 0.0))
            if request is None or request.child in self._left_out:
                continue
            if isinstance(reply, Unanswered):
                self._leave_out(request.child, reply.about(request.child))
            else:
                self._accept(request, reply)
        for number, (request, until) in list(open_.items()):
            if time.monotonic() >= until:
                del open_[number]
                self._link.forget(number)
                seconds = request.seconds(self._deadline, self._below)
                self._leave_out(request.child, f"did not answer within {seconds:.0f} s")

    def _accept(self, request: Request, reply: Message) -> None:
        """Take over a reply as a whole, or leave its sender out."""
        child = request.child
        try:
            values, results = request.read_reply(self._party, reply)
        except Exception as error:
            self._leave_out(child, f"sent a reply that is refused: {error}")
            return
        self._held[child].update(request.cargo)
        for name in request.expected:
            if name in self._plan.relays[child]:
                self._store[name] = values.get(name, LOST)
            else:
                self._settle(name, values.get(name, LOST))
        for step in request.steps:
            if step.name in self._waiting:
                self._waiting.pop(step.name)
                self._results.infos[step.name] = info = results.infos.get(step.name)
                self._held[child].add(step.name)
                if info is None and step.name not in self._store:
                    self._store[step.name] = LOST
        self._results.add(results)
        for event in results.events:
            self._party.log_from_below(event)
        if results.void:
            self._below_quorum.add(child)
            self._check_quorum()

    # -- lost parties

    def _leave_out(self, child: str, why: str) -> None:
        """Leave a party out for the rest of the round."""
        if child not in self._left_out:
            self._left_out[child] = why
            self._log(f"round {self._round}: {child} {why} and is left out of this round")
            self._lose(child)
            self._check_quorum()

    def _check_quorum(self) -> None:
        """Make the round void if too few parties are left."""
        asked, lost = len(self._asked), len(self._asked & self.gone)
        if not asked or not lost or asked - lost >= self._quorum * asked:
            return
        why = f"only {asked - lost} of {asked} answered, fewer than deploy.quorum = {self._quorum:g} asks"
        if why in self._left_out.values():
            return
        self._results.void = True
        self._log(f"round {self._round}: {why}; the round counts for nothing at {self._party.name}")
        for child in self._plan.children:
            self._left_out.setdefault(child, why)
            self._lose(child)
        for name in self._plan.from_below:
            self._settle(name, LOST)

    def _log(self, sentence: str) -> None:
        self._party.log(sentence)
        self._results.events.append(sentence)

    def _lose(self, child: str) -> bool:
        """Mark all that was to come from a party as lost. Returns whether there was anything."""
        lost = [step for step in self._plan.requests[child] if step.name in self._waiting]
        for step in lost:
            self._lose_step(step.name, step)
        for name in self._plan.relays[child]:
            if name not in self._store and name not in self._waiting:
                self._store[name] = LOST
        undelivered = [move.name for move in self._plan.deliveries[child] if move.name not in self._waiting]
        # Values from above did cross an edge, and stay charged.
        self._results.infos |= {name: None for name in undelivered if name not in self._arrived}
        self._plan.deliveries[child] = [move for move in self._plan.deliveries[child] if move.name in self._waiting]
        return bool(lost or undelivered)

    def _lose_step(self, name: str, step: Step) -> None:
        if isinstance(step, Choice) and self._plan.runs_at[name] != HERE:  # a lost party keeps its old value
            self._results.same[name], self._results.infos[name] = step.old, ValueInfo(0, 0, "kept")
            self._waiting.pop(name)
        else:
            self._settle(name, LOST)
