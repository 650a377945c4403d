"""The round protocol as a state machine: real parties, and messages that are lost, doubled, delayed and reordered.

Whatever happens to messages, a run comes to its end, every round's model is the mean of the models that arrived, each
counted once with its client's rows, and the ledger has the bytes of exactly these.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headwater.core.params import Params
from headwater.core.tree import ROOT
from headwater.deploy import dispatch
from headwater.deploy.payload import PayloadReader
from headwater.deploy.transport import Message, Unanswered, Visitor
from headwater.errors import TaskError
from headwater.training.experiment import Experiment
from headwater.training.result import Run
from loopback import THREADS, Answer, Clock, Loopback, small

DEADLINE = 10.0
LONG = 120.0  # seconds of real time in which every thread waits for messages again
ROUNDS = 2
MOST = 400  # deliveries after which a run that gets all of its messages has ended


@cache
def experiment() -> Experiment:
    brief: dict[str, Any] = {"data__fraction": 0.1, "partition__alpha": 1.0, "local__epochs": 1, "rounds": ROUNDS}
    tiny: dict[str, Any] = {"partition__clients": 4, "model__name": "mlp", "model__hidden": [4], "eval_every": ROUNDS}
    return small("fedavg", **brief, **tiny)


@dataclass(eq=False)
class Packet:
    """A message under way. `reply` is None in a request."""

    link: Link
    number: int
    to: str
    request: Message
    reply: Message | None = None


class Network:
    """All messages under way, and which threads work. A thread that waits for messages does not count."""

    def __init__(self, clock: Clock) -> None:
        self.changed, self.clock = threading.Condition(), clock
        self.packets: list[Packet] = []
        self.links: list[Link] = []
        self.working = 0
        self.ticks = 0
        self.over = False

    def settle(self) -> None:
        """Wait until every thread waits for messages."""
        with self.changed:
            assert self.changed.wait_for(lambda: not self.working, LONG), "a party neither works on nor waits"

    def work(self, what: Callable[[], None]) -> None:
        """Do something in a thread of its own."""

        def whole() -> None:
            torch.set_num_threads(THREADS)
            try:
                what()
            finally:
                with self.changed:
                    self.working -= 1
                    self.changed.notify_all()

        with self.changed:
            self.working += 1
        threading.Thread(target=whole, daemon=True).start()

    def tick(self, seconds: float) -> None:
        with self.changed:
            self.clock.now += seconds
            self.ticks += 1
            for link in self.links:
                self.working += link.waits
                link.waits = False
            self.changed.notify_all()


class Link:
    """A `Downlink` whose messages are moved by the test.

    Args:
        network: that holds them.
        answers: function that answers a request, by party.
    """

    def __init__(self, network: Network, answers: dict[str, Answer]) -> None:
        self.network, self._answers = network, answers
        self._numbers = itertools.count(1)
        self._arrived: list[tuple[int, Message | Unanswered]] = []
        self.waits = False  # whether a thread is in `replies`
        self.open: set[int] = set()
        self.taken: list[tuple[str, Message, Message]] = []  # who, request and reply of each first reply in time
        self._queues: dict[str, list[Packet]] = {name: [] for name in answers}
        self._busy: set[str] = set()
        self.away: set[str] = set()
        network.links.append(self)

    def present(self) -> frozenset[str]:
        return frozenset(self._answers) - self.away

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        with self.network.changed:
            number = next(self._numbers)
            self.open.add(number)
            self.network.packets.append(Packet(self, number, to, message))
            return number

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        network = self.network
        with network.changed:
            if not self._arrived:
                self.waits, ticks = True, network.ticks
                network.working -= 1
                network.changed.notify_all()
                network.changed.wait_for(lambda: self._arrived or network.ticks != ticks or network.over)
            if network.over:
                raise Unanswered("the test is over")
            arrived, self._arrived = self._arrived, []
            return arrived

    def forget(self, number: int) -> None:
        with self.network.changed:
            self.open.discard(number)

    def revoke(self, name: str) -> None: ...

    def visitors(self) -> list[Visitor]:
        return []

    up = True

    def close(self) -> None: ...

    # -- what the test does

    def arrive(self, packet: Packet, answer: Message | Unanswered) -> None:
        """Hand an answer to the party above, which may have got one already."""
        with self.network.changed:
            if packet.number in self.open:
                self.open.discard(packet.number)
                if isinstance(answer, Message) and "failed" not in answer.head:
                    self.taken.append((packet.to, packet.request, answer))
            self._arrived.append((packet.number, answer))
            if self.waits:
                self.waits = False
                self.network.working += 1
            self.network.changed.notify_all()

    def ask(self, packet: Packet, threaded: bool) -> None:
        """Have a request answered. A party answers one at a time."""
        if not threaded:
            self._answer(packet)
        elif packet.to in self._busy:
            self._queues[packet.to].append(packet)
        else:
            self._busy.add(packet.to)
            self.network.work(lambda: self._serve(packet))

    def _serve(self, packet: Packet) -> None:
        self._answer(packet)
        with self.network.changed:
            if queue := self._queues[packet.to]:
                following = queue.pop(0)
                self.network.work(lambda: self._serve(following))
            else:
                self._busy.discard(packet.to)

    def _answer(self, packet: Packet) -> None:
        request = Message(json.loads(json.dumps(packet.request.head)), packet.request.parts)
        reply = self._answers[packet.to](request)
        reply = Message(json.loads(json.dumps(reply.head)), reply.parts)
        with self.network.changed:
            self.network.packets.append(Packet(self, packet.number, packet.to, packet.request, reply))


class RoundProtocol(RuleBasedStateMachine):
    """One federation. Rules move its messages."""

    @initialize(quorum=st.sampled_from([0.01, 0.5, 1.0]))
    def begin(self, quorum: float) -> None:
        self.quorum, self.clock = quorum, Clock()
        self.place = Path(tempfile.mkdtemp())
        self.usual, dispatch.time = dispatch.time, self.clock  # type: ignore[assignment,attr-defined]
        self.network = Network(self.clock)
        self.threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        link = lambda answers, meddle: Link(self.network, answers)  # noqa: E731
        self.federation = Loopback(experiment(), self.place, deadline=DEADLINE, quorum=quorum, link=link)
        self.top: Link = self.federation.links[ROOT]
        self.hosts = {name: each for name, each in self.federation.links.items() if name != ROOT}
        self.ended: Run | TaskError | BaseException | None = None
        self.deliveries = 0

        def train() -> None:
            try:
                self.ended = self.federation.train()
            except BaseException as error:
                self.ended = error

        self.network.work(train)
        self.network.settle()

    # -- what happens to messages

    @property
    def under_way(self) -> list[Packet]:
        return self.network.packets

    def take(self, pick: int, copy: bool = False) -> Packet:
        at = pick % len(self.under_way)
        return self.under_way[at] if copy else self.under_way.pop(at)

    def hand_over(self, packet: Packet) -> None:
        self.deliveries += 1
        if packet.reply is None:
            packet.link.ask(packet, threaded=packet.link is self.top)
        else:
            packet.link.arrive(packet, packet.reply)
        self.network.settle()

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def deliver(self, pick: int) -> None:
        """Any of them, so that later ones overtake earlier ones."""
        self.hand_over(self.take(pick))

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def deliver_twice(self, pick: int) -> None:
        """The copy stays under way, also into later rounds."""
        self.hand_over(self.take(pick, copy=True))

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        self.take(pick)

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def lose_and_notice(self, pick: int) -> None:
        packet = self.take(pick)
        packet.link.arrive(packet, Unanswered("it went away"))
        self.network.settle()

    @rule(late=st.booleans())
    def wait(self, late: bool) -> None:
        """Past the deadline of the clients, or also of the hosts."""
        self.network.tick(20 * DEADLINE if late else 1.1 * DEADLINE)
        self.network.settle()

    @rule(pick=st.integers(0, 3))
    def restart_a_client(self, pick: int) -> None:
        name = experiment().tree.holders[pick]
        link = self.hosts[experiment().tree.sector_of[name]]
        link._answers[name] = self.federation._one_at_a_time(self.federation.client(name))

    # -- what must hold

    @invariant()
    def a_run_that_goes_on_waits_for_something(self) -> None:
        if hasattr(self, "ended") and self.ended is None:
            assert self.top.waits, "the server neither waits nor has ended"

    def teardown(self) -> None:
        if not hasattr(self, "federation"):
            return
        try:
            self.finish()
            self.check()
        finally:
            dispatch.time = self.usual  # type: ignore[attr-defined]
            torch.set_num_threads(self.threads)
            with self.network.changed:
                self.network.over = True
                self.network.changed.notify_all()
            shutil.rmtree(self.place, ignore_errors=True)

    def finish(self) -> None:
        """Deliver everything that is under way, and let time pass where nothing is: the run has to end."""
        for _ in range(MOST):
            if self.ended is not None:
                return
            if self.under_way:
                self.hand_over(self.take(0))
            else:
                self.wait(late=True)
        raise AssertionError(f"no end after {self.deliveries} deliveries: {self.federation.said[-5:]}")

    def check(self) -> None:
        if isinstance(self.ended, TaskError):  # too many rounds in a row were void, which is said
            assert "counted for nothing" in str(self.ended)
            return
        assert isinstance(self.ended, Run), self.ended
        made = experiment()
        start, counted = made.context().initial(made.model.name, 0), 0
        reader = PayloadReader(made.models, 1 << 30)
        models = {1: start}
        for round in range(1, ROUNDS + 1):
            arrived = dict(self.arrived(round, reader))
            models[round + 1] = after = self.mean(arrived, models[round])
            counted += len(arrived)
            sent = [request for _, request, _ in self.top.taken if request.head["round"] == round + 1]
            for model in (value for message in sent for value in reader.unpack(message).values()):
                if isinstance(model, Params) and round < ROUNDS:
                    torch.testing.assert_close(model.vector, after.vector, rtol=1e-5, atol=1e-6)
        final = next(iter(self.ended.params.values()))
        torch.testing.assert_close(final.vector, models[ROUNDS + 1].vector, rtol=1e-5, atol=1e-6)
        for tier in ("server_sector", "sector_client"):
            assert self.ended.ledger.bytes(tier, "up", purpose="train") == counted * start.nbytes

    def arrived(self, round: int, reader: PayloadReader) -> Iterator[tuple[str, Params]]:
        """The models of a round that are at the server in the end, by client; none of a round below the quorum."""
        made, replies = experiment(), [each for each in self.top.taken if each[1].head["round"] == round]
        usable = 0
        found: dict[str, Params] = {}
        for sector, _, reply in replies:
            values = reader.unpack(reply)
            own = {name: value for name, value in values.items() if isinstance(value, Params)}
            team = [client for client in made.tree.holders if made.tree.sector_of[client] == sector]
            below = self.trained(sector, round, reader)
            assert len(own) in (0, len(below)), "a host sends on what it got"
            if len(below) >= max(self.quorum * len(team), 1):
                usable += 1
                found |= below
            else:
                assert reply.head["void"] is True
        if usable >= max(self.quorum * len(self.hosts), 1):
            yield from found.items()

    def trained(self, sector: str, round: int, reader: PayloadReader) -> dict[str, Params]:
        """The models that reached a host in time."""
        found: dict[str, Params] = {}
        for client, request, reply in self.hosts[sector].taken:
            models = [value for value in reader.unpack(reply).values() if isinstance(value, Params)]
            if request.head["round"] == round and models:
                assert client not in found, f"{client} answered twice in round {round}"
                (found[client],) = models
                assert found[client].weight == experiment().tree.sizes[client]
        return found

    @staticmethod
    def mean(models: dict[str, Params], before: Params) -> Params:
        """By hand: each once, weighted by its client's rows."""
        if not models:
            return before
        sizes = {client: experiment().tree.sizes[client] for client in models}
        total = sum(models[client].vector.double() * sizes[client] for client in models) / sum(sizes.values())
        assert isinstance(total, torch.Tensor)
        return replace(before, vector=total.float())


def run(examples: int, steps: int) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    limits = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet, derandomize=True
    )
    run_state_machine_as_test(RoundProtocol, settings=limits)


def test_messages_lost_doubled_and_reordered() -> None:
    run(examples=3, steps=12)


@pytest.mark.thorough
def test_many_messages_lost_doubled_and_reordered() -> None:
    run(examples=12, steps=30)
