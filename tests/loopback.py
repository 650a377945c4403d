"""A whole federation in one process: real parties, each with its own data, store and checks; messages go by queues."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from headwater.config import Config
from headwater.core.tree import ROOT
from headwater.deploy import assemble, program
from headwater.deploy.dispatch import Dispatcher, Party
from headwater.deploy.engine import Deployed
from headwater.deploy.folder import Federated
from headwater.deploy.message import Message, Unanswered
from headwater.deploy.party import Client, Host
from headwater.deploy.store import Store
from headwater.deploy.wire import Customs
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.result import Run

Answer = Callable[[Message], Message]
THREADS = 1  # of every task, as engine.threads has it; torch counts them for each thread that asks
PATIENCE = 600.0  # seconds; however busy the machine, nobody is given up before


class Clock:
    """In place of `time` where parties wait: it stands still until it is set forward, however long work takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Links:
    """Downwards, by threads. `meddle(to, message)` may change a message, or raise Unanswered."""

    def __init__(self, answers: dict[str, Answer], meddle: Callable[[str, Message], Message]) -> None:
        self._answers, self._meddle = answers, meddle
        self._pool, self._count = ThreadPoolExecutor(max(1, len(answers))), 0
        self._back: queue.Queue[tuple[int, Message | Unanswered]] = queue.Queue()
        self.away: set[str] = set()
        self.exchanges: Counter[str] = Counter()
        self._asked: dict[int, str] = {}

    @property
    def waited_for(self) -> set[str]:
        """Those who were asked and whose answers nobody has taken yet."""
        return set(dict(self._asked).values())

    def present(self) -> frozenset[str]:
        return frozenset(self._answers) - self.away

    def send(self, to: str, message: Message) -> int:
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

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class Sent(list[tuple[int, str, str, str, str, int, str]]):
    """What a party sent."""

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None:
        self.append((round, to, kind, tier, direction, bytes, name))


class Loopback:
    """`meddle` is called with every reply on its way up."""

    def __init__(
        self,
        made: Experiment,
        place: Path,
        meddle: Callable[[str, Message], Message] = lambda to, message: message,
        deadline: float = PATIENCE,
        quorum: float = 0.5,
    ) -> None:
        self.made, self.place, self.deadline, self.quorum = made, place, deadline, quorum
        self.sent: dict[str, Sent] = {}
        self.stores: dict[str, Store] = {}
        self.said: list[str] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()
        names = list(made.tree.holders)
        sectors = {s: tuple(c for c in names if made.tree.sector_of[c] == s) for s in made.tree.teams}
        config = Config.from_toml(made.config.to_toml())
        split = made.split
        told = (config, split.shape, split.classes, split.words, made.class_names, sectors, "same")
        self.described = Federated(*told)
        self.meddle = meddle
        self.links: dict[str, Links] = {}
        hosts = {sector: self._host(sector) for sector in sectors}
        self.links[ROOT] = Links({sector: host.answer for sector, host in hosts.items()}, self.meddle)

    def _party(self, name: str, context: RunContext) -> Party:
        self.sent[name] = Sent()
        stamp = {"federation": self.described.sha256, "run": "one"}
        store, customs = Store(self.place / name, "one"), Customs(context.models, 1 << 30)
        self.stores[name] = store
        return Party(name, context, store, customs, self.sent[name], program.trust(), stamp, self._say)

    def _say(self, sentence: str) -> None:
        with self._lock:
            self.said.append(sentence)

    def client(self, name: str) -> Client:
        indices = self.made.partition.indices[int(name.removeprefix("c"))].copy()
        context = assemble.client_context(self.described, name, self.made.split.train.take(indices))
        return Client(self._party(name, context))

    def _in_turn(self, client: Client) -> Answer:
        """One at a time: torch has one source of chance for all threads of a process."""

        def answer(message: Message) -> Message:
            with self._turn:
                return client.answer(message)

        return answer

    def _host(self, sector: str) -> Host:
        team = self.described.sectors[sector]
        clients = {name: self.client(name) for name in team}
        party = self._party(sector, assemble.host_context(self.described))
        self.links[sector] = Links({name: self._in_turn(client) for name, client in clients.items()}, self.meddle)

        def below(home: str) -> str | None:
            return home if home in team else None

        return Host(party, Dispatcher(party, below, self.links[sector], "sector_client", self.quorum))

    def train(self, out: Path | None = None) -> Run:
        split = self.made.split
        public = {key: getattr(split, key) for key in ("validation", "reference", "reference_labels", "test")}
        sizes = {c: self.made.tree.sizes[c] for c in self.made.tree.holders}
        made = assemble.experiment(self.described, assemble.with_public(self.described, public), sizes)
        party = self._party(ROOT, assemble.server_context(made))
        sector_of = {c: s for s, team in self.described.sectors.items() for c in team}

        def below(home: str) -> str | None:
            return home if home in self.described.sectors else sector_of.get(home)

        dispatcher = Dispatcher(party, below, self.links[ROOT], "server_sector", self.quorum)
        engine = Deployed(party.store, dispatcher, self.deadline, lambda round: None)
        before = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            return train(made, out=out, engine=engine)
        finally:
            torch.set_num_threads(before)

    def outwait(self, slow: str, clock: Clock) -> None:
        """Called with the answer of `slow`: once everybody else's has been taken the deadline passes, and `slow` is
        given up."""
        links = [self.links[sector] for sector in self.described.sectors]
        clients = [name for team in self.described.sectors.values() for name in team]

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


def _until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not so():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain for the other parties")
        time.sleep(0.01)


def small(method: str, **settings: Any) -> Experiment:
    """Digits at a few clients, briefly."""
    given = {"data__fraction": 0.3, "partition__clients": 6, "partition__sectors": 2, "rounds": 2} | settings
    direct = {"algorithm__name": method, "engine__name": "inline"} | given
    from headwater.config.load import nested

    return prepare(Config().merged(nested(direct)))
