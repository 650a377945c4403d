"""A whole federation in one process, for tests: real parties with their own data, values and checks.

Messages are passed by threads and queues in place of Flower links.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headwater.config import Config
from headwater.core.membership import Membership, Newcomer
from headwater.core.tree import ROOT
from headwater.deploy import steps
from headwater.deploy.agreement import (
    PUBLIC_SETS,
    Agreement,
    client_context,
    deployed_experiment,
    host_context,
    public_rows,
    server_split,
)
from headwater.deploy.deployed_engine import DeployedEngine
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.known_members import RunMembers, read_membership
from headwater.deploy.party_run import PartyRun, ValueStore
from headwater.deploy.payload import PayloadReader
from headwater.deploy.permissions import Permissions
from headwater.deploy.step_record import StepRecord
from headwater.deploy.transport import Message, Unanswered, Visitor
from headwater.deploy.updates import UpdateCheck
from headwater.deploy.work_messages import ClientWorker, HostWorker
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.opening import Arrivals, run_context
from headwater.training.result import Run

Answer = Callable[[Message], Message]
THREADS = 1  # of every task, as in engine.threads; torch has this setting per thread
PATIENCE = 600.0  # seconds, so that no party is late on a busy machine
SIX = {"partition__clients": 6}  # for `small`: three in a sector, so that a sector without one has still two


class Clock:
    """Replaces `time` where parties wait: its time changes only when a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LoopbackLink:
    """A `Downlink` to parties of this process.

    Args:
        answers: function that answers a request, by party.
        meddle: called with the sender and each reply; may change the reply, or raise Unanswered.
    """

    def __init__(self, answers: dict[str, Answer], meddle: Callable[[str, Message], Message]) -> None:
        self._answers, self._meddle = answers, meddle
        self._pool, self._count = ThreadPoolExecutor(max(1, len(answers))), 0
        self._back: queue.Queue[tuple[int, Message | Unanswered]] = queue.Queue()
        self.away: set[str] = set()  # parties that are not connected
        self.exchanges: Counter[str] = Counter()
        self._asked: dict[int, str] = {}

    @property
    def waited_for(self) -> set[str]:
        """Parties that were asked and whose replies have not been collected."""
        return set(dict(self._asked).values())

    def present(self) -> frozenset[str]:
        return frozenset(self._answers) - self.away

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        self._count += 1
        number = self._count
        self._asked[number] = to
        self.exchanges[to] += 1
        self._pool.submit(self._carry, number, to, message)
        return number

    def _carry(self, number: int, to: str, message: Message) -> None:
        torch.set_num_threads(THREADS)
        try:
            reply = self._answers[to](Message(json.loads(json.dumps(message.head)), message.parts))
            reply = self._meddle(to, Message(json.loads(json.dumps(reply.head)), reply.parts))
            self._back.put((number, reply))
        except Unanswered as error:
            self._back.put((number, error))
        except BaseException as error:
            self._back.put((number, Unanswered(f"{type(error).__name__}: {error}")))
            raise

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        try:
            number, reply = self._back.get(timeout=seconds)
        except queue.Empty:
            return []
        self._asked.pop(number)
        return [(number, reply)]

    def forget(self, number: int) -> None: ...

    def revoke(self, name: str) -> None:
        self.away.add(name)

    def visitors(self) -> list[Visitor]:
        return []

    up = True

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class SentRows(list[tuple[int, str, str, str, str, int, str]]):
    """What a party sent, as rows in memory."""

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None:
        self.append((round, to, kind, tier, direction, bytes, name))


class ScriptedArrivals(Arrivals):
    """As `headwater.deploy.late_clients.LateClients`, by a script.

    Args:
        script: who joins in which round.
        party: the server, which knows who has joined before it was started again.
    """

    def __init__(self, script: list[Newcomer], party: PartyRun) -> None:
        super().__init__(party.members.now.joined)
        self._script, self._party = script, party

    def before_round(self, round: int) -> None:
        more = [each for each in self._script if each.round == round and each not in self.joined]
        if more:
            self._party.members.join(more)
            self._party.grow()
            self.joined = self._party.members.now.joined


class Loopback:
    """A federation of server, hosts and clients.

    Args:
        experiment: that is trained.
        place: directory for the values of all parties.
        meddle: called with the sender and every reply; may change the reply, or raise Unanswered.
        deadline: as `deploy.deadline`.
        quorum: as `deploy.quorum`.
        revoked: clients that were revoked at their hosts.
        late: clients that are not there when the run begins, with the round from which on they take part.
        change: makes another agreement of that of the experiment.
        link: makes a link of what answers by party, and `meddle`.
    """

    def __init__(
        self,
        experiment: Experiment,
        place: Path,
        meddle: Callable[[str, Message], Message] = lambda to, message: message,
        deadline: float = PATIENCE,
        quorum: float = 0.5,
        revoked: Collection[str] = (),
        late: Mapping[str, int] | None = None,
        change: Callable[[Agreement], Agreement] = lambda agreement: agreement,
        link: Callable[[dict[str, Answer], Callable[[str, Message], Message]], Any] = LoopbackLink,
    ) -> None:
        self._link = link
        self.revoked = frozenset(revoked)
        self.made, self.place, self.deadline, self.quorum = experiment, place, deadline, quorum
        self.sent: dict[str, SentRows] = {}
        self.stores: dict[str, ValueStore] = {}
        self.said: list[str] = []
        self.refusals: list[tuple[str, int, str, str]] = []  # who refused, round, who asked, and why
        self._lock, self._turn = threading.Lock(), threading.Lock()
        tree, split = experiment.tree, experiment.split
        sectors = {s: tuple(c for c in tree.holders if tree.sector_of[c] == s) for s in tree.teams}
        config = Config.from_toml(experiment.config.to_toml())
        whole = Agreement(
            config,
            split.shape,
            split.classes,
            split.words,
            experiment.class_names,
            sectors,
            sha256="same",
            preparation=experiment.prepared,
            public=public_rows(split),
        )
        self.agreement = change(whole)
        sectors = self.agreement.sectors
        rows = {c: tree.sizes[c] for c in tree.holders if c in self.agreement.sector_of}
        self.late = sorted(Newcomer(round, client, rows.pop(client)) for client, round in (late or {}).items())
        self.census, self.members = rows, Membership(rows)
        self.meddle = meddle
        self.links: dict[str, Any] = {}
        hosts = {sector: self._host(sector) for sector in sectors}
        self.links[ROOT] = link({sector: host.answer for sector, host in hosts.items()}, self.meddle)

    def _party(self, name: str, context: RunContext) -> PartyRun:
        self.sent[name] = SentRows()
        stamp = {"federation": self.agreement.sha256, "run": "one"}
        path = self.place / "steps" / name / "membership.json"
        members = self.members
        if path.exists():  # a message of the run says so to a party that was started again
            members = read_membership(json.loads(path.read_text(encoding="utf-8")), self.agreement)
        store, reader = ValueStore(self.place / name, "one", self._log), PayloadReader(context.models, 1 << 30)
        self.stores[name] = store
        permissions = Permissions(self.agreement, name, members, StepRecord(self.place / "steps" / name, "one"))
        followed = RunMembers(self.agreement, "one", members, path=path)
        log = self._log
        heard = log if name in self.agreement.sectors else lambda line: None  # the server's are the same once more
        told = (permissions, log, heard, lambda *refusal: self.refusals.append((name, *refusal)), self._updates())
        return PartyRun(name, context, store, reader, self.sent[name], steps.trust(), stamp, followed, *told)

    def _updates(self) -> UpdateCheck:
        return UpdateCheck(self.census, self.agreement.sector_of, self.agreement.config.deploy.max_norm)

    def _log(self, sentence: str) -> None:
        with self._lock:
            self.said.append(sentence)

    def client(self, name: str) -> ClientWorker:
        indices = self.made.partition.indices[int(name.removeprefix("c"))].copy()
        context = client_context(self.agreement, name, self.made.split.train.take(indices))
        return ClientWorker(self._party(name, context))

    def _one_at_a_time(self, client: ClientWorker) -> Answer:
        """Clients answer one at a time, since torch has one random generator for all threads of a process."""

        def answer(message: Message) -> Message:
            with self._turn:
                return client.answer(message)

        return answer

    def _host(self, sector: str) -> HostWorker:
        team = self.agreement.sectors[sector]
        answers = {name: self._one_at_a_time(self.client(name)) for name in team}
        party = self._party(sector, host_context(self.agreement))
        self.links[sector] = self._link(answers, self.meddle)

        def below(home: str) -> str | None:
            return home if home in team else None

        link = self.links[sector]
        link.away |= self.revoked & set(team)
        dispatcher = Dispatcher(
            party, below, link, "sector_client", self.quorum, revoked=lambda: self.revoked & set(team)
        )
        return HostWorker(party, dispatcher)

    def train(self, out: Path | None = None, before_round: Callable[[int], None] = lambda round: None) -> Run:
        public = {name: getattr(self.made.split, name) for name in PUBLIC_SETS}
        experiment = deployed_experiment(self.agreement, server_split(self.agreement, public), self.census)
        party = self._party(ROOT, run_context(experiment))
        sector_of = self.agreement.sector_of

        def below(home: str) -> str | None:
            return home if home in self.agreement.sectors else sector_of.get(home)

        arrivals = ScriptedArrivals(self.late, party)
        dispatcher = Dispatcher(party, below, self.links[ROOT], "server_sector", self.quorum)
        engine = DeployedEngine(party.store, dispatcher, self.deadline, before_round)
        before = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            return train(experiment, out=out, engine=engine, arrivals=arrivals)
        finally:
            torch.set_num_threads(before)

    def outwait(self, slow: str, clock: Clock) -> None:
        """Call it from `meddle` with the reply of `slow`: waits until all other replies have been collected, then sets
        the clock past the deadline, so that `slow` is left out."""
        links = [self.links[sector] for sector in self.agreement.sectors]
        clients = [name for team in self.agreement.sectors.values() for name in team]

        def only_slow() -> bool:
            asked = {sum(link.exchanges[name] for link in links) for name in clients}
            return len(asked) == 1 and set().union(*(link.waited_for for link in links)) == {slow}

        said = len(self.said)
        _until(only_slow)
        clock.now += 1.1 * self.deadline
        _until(lambda: len(self.said) > said)

    def bytes(self, tier: str, direction: str) -> int:
        return sum(row[5] for rows in self.sent.values() for row in rows if (row[3], row[4]) == (tier, direction))

    def close(self) -> None:
        for link in self.links.values():
            link.close()


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain for the other parties")
        time.sleep(0.01)


def small(method: str, **settings: Any) -> Experiment:
    """A short run on the digits with four clients in two sectors."""
    small_run = {"data__fraction": 0.3, "partition__clients": 4, "partition__sectors": 2, "rounds": 2}
    keys = {"algorithm__name": method, "engine__name": "inline"} | small_run | settings
    from headwater.config.load import nested

    return prepare(Config().merged(nested(keys)))


@contextmanager
def loopback(made: Experiment, place: Path, **options: Any) -> Iterator[Loopback]:
    """A federation that is closed at the end."""
    federation = Loopback(made, place, **options)
    try:
        yield federation
    finally:
        federation.close()
