"""Gets steps done by the parties below: the server asks sectors, a sector's host asks its clients.

The steps up to the next result that the method waits for are cut into as few exchanges as their dependencies allow: a
party below is sent all that it can do with the values that it holds, that are here and that it computes itself. It
sends back only what others need. A party that does not answer in time, or whose reply is refused, is left out of the
round; with too few left the round is void.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from headwater.core.serialization import ValueInfo
from headwater.deploy.own_steps import OwnSteps
from headwater.deploy.party_run import PartyRun
from headwater.deploy.payload import Refused
from headwater.deploy.placement import HERE, Below, Placement, Request
from headwater.deploy.quoting import attributed
from headwater.deploy.steps import Choice, Step, StepResults
from headwater.deploy.transport import Downlink, Message, Unanswered
from headwater.engines.execution import LEARNING_PHASES
from headwater.engines.jobs import LOST, Job

REJOIN = 75.0  # seconds in which all healthy members have joined a link that was started again
TICK = 0.5  # longest wait in seconds between two checks of the deadline

Open = dict[int, tuple[Request, float]]  # by number of the exchange: what was requested, and when it is given up


class Dispatcher(OwnSteps):
    """Carries out steps, here and at the parties below.

    Args:
        party: this party.
        below: the party directly below that a home is at or under; None for other homes.
        link: to the parties below.
        tier: the tier of the edges to the parties below.
        quorum: share of the asked parties that must answer for a round to count.
        on_wait: called repeatedly while waiting.
        revoked: parties below that have no part any more; they are neither asked nor counted.
    """

    def __init__(
        self,
        party: PartyRun,
        below: Below,
        link: Downlink,
        tier: str,
        quorum: float,
        on_wait: Callable[[], None] = lambda: None,
        revoked: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._party, self._below, self._link, self._tier, self._quorum = party, below, link, tier, quorum
        self._store, self._on_wait, self._revoked = party.store, on_wait, revoked
        self._held: defaultdict[str, set[str]] = defaultdict(set)  # names of values that a party below holds
        self.new_attempt()
        self._wait_for_all = True
        self._new_round(-1, "")

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
            self._new_round(round, attempt)
        self._keep, self._deadline, self._results = keep, deadline, StepResults()
        self._arrived = set(arrived)
        self._waiting = {step.name: step for step in steps}
        for name in self._waiting.keys() - self._arrived:  # results of an earlier attempt
            self._store.discard(name)
        kept = {name for names in keep.values() for name in names} - self._waiting.keys()
        self._held = defaultdict(set, {child: held & kept for child, held in self._held.items()})
        self._plan = plan = Placement(steps, self._party.name, self._below, self._tier, self._store, self._arrived)
        delivered = [move.name for moves in plan.deliveries.values() for move in moves]
        self._left_out.update(dict.fromkeys(set(self._revoked()) - self._left_out.keys(), "was revoked"))
        asked = {child for child, own in plan.requests.items() if any(isinstance(s, Job) for s in own)}
        self._asked |= asked - set(self._revoked())  # the quorum of the others does not count it
        self._await_quorum()
        open_: Open = {}
        while True:
            self._judge(steps)
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

    def _new_round(self, round: int, attempt: str) -> None:
        self._round, self._attempt = round, attempt
        self._left_out: dict[str, str] = {}  # parties left out of this round, with the reason
        self._asked: set[str] = set()  # parties with a job in this round
        self._below_quorum: set[str] = set()  # sectors of which too few clients answered in this round
        self._unusable: set[tuple[str, str]] = set()  # party below and home whose result cannot be used
        self._learning: set[tuple[str, str]] = set()  # party below and home that was to give one
        self._heard: Counter[str] = Counter()  # sentences of each party below that were repeated
        self._party.updates.new_round()

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
            refused = self._party.updates.refusals(request.steps, values, self._party.fetch)
            for node, why in refused.values():
                if node in (child, self._party.name):
                    raise Refused(f"it has {why}")
        except Exception as error:
            self._leave_out(child, f"sent a reply that is refused: {error}")
            return
        for name, (node, why) in refused.items():
            values[name] = LOST
            self._discount(child, node, f"sent {why}")
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
        heard, self._heard[child] = self._heard[child], self._heard[child] + len(results.events)
        results.events = attributed(child, results.events, heard)
        self._results.add(results)
        for event in results.events:
            self._party.log_from_below(event)
        for step in request.steps:
            if isinstance(step, Job) and step.phase in LEARNING_PHASES and not step.lost:
                self._learning.add((child, step.home))
                if step.home == child and results.infos.get(step.name) is None:  # a host judges its own clients
                    self._unusable.add((child, step.home))
        if results.void:
            self._below_quorum.add(child)
        self._check_quorum()

    def _judge(self, steps: Sequence[Step]) -> None:
        """Refuse updates that are grossly larger than the others, and report those that are much larger."""
        for name, node, refused, why in self._party.updates.outliers(steps, lambda name: name not in self._waiting):
            if not refused:
                self._log(f"round {self._round}: the update of {node} is {why}")
                continue
            self._store[name], self._results.infos[name] = LOST, None
            if (child := self._below(node)) == node:
                self._leave_out(child, f"sent an update of {why}")
            elif child is not None:
                self._discount(child, node, f"sent an update of {why}")
                self._check_quorum()

    # -- lost parties

    def _leave_out(self, child: str, why: str) -> None:
        """Leave a party out for the rest of the round."""
        if child not in self._left_out:
            self._left_out[child] = why
            self._log(f"round {self._round}: {child} {why} and is left out of this round")
            self._lose(child)
            self._check_quorum()

    def _discount(self, child: str, node: str, why: str) -> None:
        """Leave out what one client under a party below has sent; the other clients of that party are not concerned."""
        if (child, node) not in self._unusable:
            self._learning, self._unusable = ({*pairs, (child, node)} for pairs in (self._learning, self._unusable))
            self._log(f"round {self._round}: {node} {why} and is left out of this round")

    def _check_quorum(self) -> None:
        """Make the round void if too few parties gave something usable."""
        asked, lost = len(self._asked), len(self._asked & {*self.gone, *self._spent()})
        if not asked or not lost or asked - lost >= self._quorum * asked:
            return
        why = f"only {asked - lost} of {asked} gave usable answers, fewer than deploy.quorum = {self._quorum:g} asks"
        if why in self._left_out.values():
            return
        self._results.void = True
        self._log(f"round {self._round}: {why}; the round counts for nothing at {self._party.name}")
        for child in self._plan.children:
            self._left_out.setdefault(child, why)
            self._lose(child)
        for name in self._plan.from_below:
            self._settle(name, LOST)

    def _spent(self) -> set[str]:
        """Parties below that answered, but too few of whose results can be used."""
        usual, lost = (Counter(child for child, _ in pairs) for pairs in (self._learning, self._unusable))
        return {child for child, count in lost.items() if usual[child] - count < self._quorum * usual[child]}

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
