"""The round protocol as a state machine: real parties, and messages that are lost, doubled, delayed and reordered.

Whatever happens to messages, a run comes to its end, every round's model is the mean of the models that arrived, each
counted once with its client's rows, and the ledger has the bytes of exactly these.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headwater.core.params import Params
from headwater.core.tree import ROOT
from headwater.deploy import dispatch
from headwater.deploy.payload import PayloadReader
from headwater.deploy.transport import Unanswered
from headwater.errors import TaskError
from headwater.training.experiment import Experiment
from headwater.training.result import Run
from loopback import THREADS, Clock, Loopback, small
from round_network import Link, Network, Packet

DEADLINE = 10.0
ROUNDS = 2
MOST = 400  # deliveries after which a run that gets all of its messages has ended


@cache
def experiment() -> Experiment:
    brief: dict[str, Any] = {"data__fraction": 0.1, "partition__alpha": 1.0, "local__epochs": 1, "rounds": ROUNDS}
    tiny: dict[str, Any] = {"partition__clients": 4, "model__name": "mlp", "model__hidden": [4], "eval_every": ROUNDS}
    return small("fedavg", **brief, **tiny)


class RoundProtocol(RuleBasedStateMachine):
    """One federation. Rules move its messages."""

    tally: ClassVar[Counter[str]] = Counter()  # cases, and what was done to messages

    @initialize(quorum=st.sampled_from([0.01, 0.5, 1.0]))
    def begin(self, quorum: float) -> None:
        self.tally["cases"] += 1
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
        self.tally["reordered" if pick % len(self.under_way) else "delivered in order"] += 1
        self.hand_over(self.take(pick))

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def deliver_twice(self, pick: int) -> None:
        """The copy stays under way, also into later rounds."""
        self.tally["doubled"] += 1
        self.hand_over(self.take(pick, copy=True))

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        self.tally["lost"] += 1
        self.take(pick)

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def lose_and_notice(self, pick: int) -> None:
        self.tally["lost"] += 1
        packet = self.take(pick)
        packet.link.arrive(packet, Unanswered("it went away"))
        self.network.settle()

    @rule(late=st.booleans())
    def wait(self, late: bool) -> None:
        """Past the deadline of the clients, or also of the hosts."""
        self.tally["deadlines passed"] += 1
        self.network.tick(20 * DEADLINE if late else 1.1 * DEADLINE)
        self.network.settle()

    @rule(pick=st.integers(0, 3))
    def restart_a_client(self, pick: int) -> None:
        self.tally["clients restarted"] += 1
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
