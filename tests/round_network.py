"""A network whose messages are moved by a test: they wait until they are delivered, doubled or lost."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headwater.deploy.transport import Message, Unanswered, Visitor
from loopback import THREADS, Answer, Clock

LONG = 120.0  # seconds of real time in which every thread waits for messages again


@dataclass(eq=False)
class Packet:
    """A message under way. `reply` is None in a request."""

    link: Link
    number: int
    to: str
    request: Message
    reply: Message | None = None
    settled: bool = False  # whether it has its place among those under way


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
        """Wait until every thread waits for messages; what they have sent gets an order that is always the same."""
        with self.changed:
            assert self.changed.wait_for(lambda: not self.working, LONG), "a party neither works on nor waits"
            sent = [packet for packet in self.packets if not packet.settled]
            sent.sort(key=lambda each: (self.links.index(each.link), each.number, each.reply is not None))
            self.packets[:] = [packet for packet in self.packets if packet.settled] + sent
            for packet in sent:
                packet.settled = True

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
