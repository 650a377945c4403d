"""The process of a party, from its folder to its end: what `headwater deploy server|sector|client` runs."""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from headwater.core import serialization
from headwater.deploy import assemble, program
from headwater.deploy.audit import CONTROL, Sent
from headwater.deploy.dispatch import REJOIN, Dispatcher, Party
from headwater.deploy.engine import Deployed
from headwater.deploy.folder import PUBLIC, PartyFolder
from headwater.deploy.link import Link, Uplink
from headwater.deploy.log import Log
from headwater.deploy.message import Message
from headwater.deploy.own import own_data
from headwater.deploy.party import Client, Host
from headwater.deploy.status import Status
from headwater.deploy.store import Store
from headwater.deploy.wire import Customs
from headwater.errors import TaskError
from headwater.tasks.task import RunContext
from headwater.training.checkpoint import write_whole
from headwater.training.loop import train
from headwater.training.progress import Event

RUN = re.compile(r"[0-9a-f]{16}")
MEGABYTE = 1 << 20
MOST_ROWS = 1 << 40  # of a client
AGAIN = 2.0  # seconds between two looks at who is there
LIFE = 5.0  # seconds between two signs of life of who only answers
GREETING = 30.0  # seconds in which somebody who is there says how much data it has
FAREWELL = 20.0  # seconds in which those below hear that it is over
PHASES = {"train": "clients train", "distill": "distilling", "average": "averaging", "evaluate": "measuring"}


def serve(folder: PartyFolder, *, quiet: bool) -> int:
    """Run a party until the federation has finished; 0 then."""
    torch.set_num_threads(folder.federation.config.engine.threads)  # results depend on it, so it is the same everywhere
    session = _Desk(folder, Log(folder, quiet), Status(folder), Sent(folder))
    try:
        return {"server": _server, "sector": _sector, "client": _client}[folder.role](session)
    finally:
        session.close()


@dataclass
class _Desk:
    """What every party has: its folder, a log, a status, a record of what it sends."""

    folder: PartyFolder
    log: Log
    status: Status
    sent: Sent
    links: list[Any] = field(default_factory=list)

    @property
    def most(self) -> int:
        return int(self.folder.federation.config.deploy.max_mb * MEGABYTE)

    def down(self) -> Link:
        from headwater.deploy.flower import FlowerLink

        self.links.append(link := FlowerLink(self.folder, self.most))
        return link

    def up(self) -> Uplink:
        from headwater.deploy.flower import FlowerUplink

        self.links.append(link := FlowerUplink(self.folder, self.most))
        return link

    def party(self, run: str, context: RunContext) -> Party:
        described = self.folder.federation
        config = described.config
        store = Store(self.folder.state / "values", run)
        trusted = program.trust(config.method, config.model.name)
        stamp = {"federation": described.sha256, "run": run}
        customs = Customs(context.models, self.most)
        return Party(self.folder.name, context, store, customs, self.sent, trusted, stamp, self.say, self.say)

    def say(self, sentence: str) -> None:
        self.log(sentence)
        self.status.update(message=sentence)

    def close(self) -> None:
        for link in reversed(self.links):
            link.close()
        self.status.close()
        self.sent.close()
        self.log.close()


# -- those who answer: clients and hosts


def _client(session: _Desk) -> int:
    folder = session.folder
    data = own_data(folder, session.say)
    context = replace(assemble.client_context(folder.federation, folder.name, data), secret=_secret(folder))
    size = len(context.rows[folder.name])
    session.say(f"client {folder.name} has {size} rows to train on; it joins {folder.above}")

    def party(run: str) -> Client:
        return Client(session.party(run, context))

    def hello(message: Message) -> Message:
        session.sent.add(0, "above", CONTROL, "", "up", 0, "how many rows it trains on")
        return Message({"size": size})

    return _answer(session, session.up(), party, hello, lambda: None)


def _secret(folder: PartyFolder) -> str:
    """What this client's noise is drawn from, if it is to hide anything from those who know the run's seed."""
    if not folder.federation.config.deploy.secret_noise:
        return ""
    path = folder.state / "secret"
    if not path.exists():
        write_whole(path, secrets.token_hex(32))
        path.chmod(0o600)
    return path.read_text(encoding="ascii")


def _sector(session: _Desk) -> int:
    folder = session.folder
    context = assemble.host_context(folder.federation)
    link, team = session.down(), folder.link.members if folder.link else ()
    quorum = folder.federation.config.deploy.quorum
    sizes: dict[str, int] = {}
    session.say(f"sector {folder.name} waits for {', '.join(team)} at {folder.link and folder.link.address}")

    def below(home: str) -> str | None:
        return home if home in team else None

    def party(run: str) -> Host:
        made = session.party(run, context)
        return Host(made, Dispatcher(made, below, link, "sector_client", quorum, lambda: _present(session, link)))

    def hello(message: Message) -> Message:
        unknown = [name for name in sorted(link.present()) if name not in sizes]
        for name, reply in _ask(link, unknown, Message(dict(message.head)), GREETING).items():
            if _is_size(size := reply.head.get("size")):
                sizes[name] = size
        session.sent.add(0, "above", CONTROL, "", "up", 0, "how many rows each client trains on")
        return Message({"sizes": dict(sizes)})

    return _answer(session, session.up(), party, hello, lambda: _end(session, link), lambda: _present(session, link))


def _answer(
    session: _Desk,
    uplink: Uplink,
    party: Callable[[str], Client | Host],
    hello: Callable[[Message], Message],
    farewell: Callable[[], None],
    look: Callable[[], None] = lambda: None,
) -> int:
    """Answer whatever comes from above until it is over."""
    stop, known = threading.Event(), session.folder.federation.sha256
    current: tuple[str, Client | Host | None] = "", None
    ended = False

    def answer(message: Message) -> Message:
        nonlocal current, ended
        head = message.head
        if head.get("federation") != known:
            session.say("refused a message: it is of another federation than this folder's")
            return Message({"failed": "refused it: its federation.json is another one"})
        look()
        match head.get("do"):
            case "hello":
                return hello(message)
            case "end":
                if not ended:  # the answer has to get out first
                    threading.Timer(1.0, leave).start()
                ended = True
                return Message({})
            case "work" if isinstance(run := head.get("run"), str) and RUN.fullmatch(run):
                if current[0] != run:
                    current = run, party(run)
                served, round = current[1], head.get("round")
                assert served is not None
                number = round if type(round) is int else 0
                session.status.update(phase=_phase(head), round=number)
                reply = served.answer(message)
                session.sent.add(number, "above", CONTROL, "", "up", 0, "training losses and times")
                session.status.update(phase="waiting")
                return reply
        session.say("refused a message: it asks for nothing that is known here")
        return Message({"failed": "refused it: it asks for nothing that is known here"})

    def leave() -> None:
        farewell()
        stop.set()

    def signs_of_life() -> None:
        while not stop.wait(LIFE):
            session.status.update()
            look()

    session.status.update(phase="waiting")
    threading.Thread(target=signs_of_life, daemon=True).start()
    uplink.serve(answer, stop)
    session.status.update(phase="finished" if ended else "ended")
    session.say(f"the federation has finished, and {session.folder.role} {session.folder.name} ends")
    return 0


def _phase(head: dict[str, Any]) -> str:
    """In words, what a message asks for."""
    tasks = [str(row.get("task", "")) for row in head.get("steps", ()) if isinstance(row, dict)]
    for word, told in (("distill", "distilling"), ("train", "training")):
        if any(word in task.rpartition(":")[2] for task in tasks):
            return told
    return "working"


def _is_size(size: Any) -> TypeGuard[int]:
    """Whether this may be a number of rows."""
    return type(size) is int and 0 <= size <= MOST_ROWS


def _present(session: _Desk, link: Link) -> None:
    session.status.update(present=link.present())


def _ask(link: Link, names: list[str], message: Message, seconds: float) -> dict[str, Message]:
    """One message to several, and what comes back in time."""
    asked = {link.send(name, message): name for name in names}
    found: dict[str, Message] = {}
    until = time.monotonic() + seconds
    while asked and time.monotonic() < until:
        for number, reply in link.replies(min(1.0, max(0.0, until - time.monotonic()))):
            name = asked.pop(number, None)
            if name is not None and isinstance(reply, Message):
                found[name] = reply
    for number in asked:
        link.forget(number)
    return found


# -- the server


def _server(session: _Desk) -> int:
    folder, described = session.folder, session.folder.federation
    out = folder.state / "run"
    if (out / "result.json").exists():
        session.say(f"this federation has finished; its results are in {out}")
        _end(session, session.down())  # the server may have ended before it could tell
        return 0
    config = described.config.deploy
    if described.config.algorithm.get("sigma") and not config.secret_noise:
        session.say(
            "the noise of this run follows from its seed, which every party has, so it hides nothing from them; "
            "deploy.secret_noise = true at `headwater deploy init` changes that"
        )
    link = session.down()
    try:
        begun = _begin(session, link)
        split = assemble.with_public(described, serialization.read(folder.path / PUBLIC))
        made = assemble.experiment(described, split, begun["sizes"])
        party = session.party(begun["run"], assemble.server_context(made))
        sector_of = {client: sector for sector, team in described.sectors.items() for client in team}

        def below(home: str) -> str | None:
            return home if home in described.sectors else sector_of.get(home)

        def before(round: int) -> None:
            session.status.update(round=round, phase="waiting for sectors")
            _await(session, link, max(1, -int(-config.quorum * len(described.sectors) // 1)), round)
            session.status.update(phase="sectors at work")

        dispatcher = Dispatcher(party, below, link, "server_sector", config.quorum, lambda: _present(session, link))
        engine = Deployed(party.store, dispatcher, config.deadline, before)
        run = train(made, out=out, engine=engine, watch=lambda event: _tell(session, event))
        from headwater import report

        report.write([out], out / "report.html")
        accuracy = run.result["accuracy"]
        session.status.update(phase="finished", accuracy=accuracy)
        session.say(f"finished after {run.result['rounds']} rounds with accuracy {accuracy:.3f}; results are in {out}")
        _end(session, link)
    except TaskError as error:
        session.say(str(error))
        raise
    return 0


def _end(session: _Desk, link: Link) -> None:
    """Tell everybody below that it is over, and those who are not there if they come soon."""
    message = Message({"do": "end", "federation": session.folder.federation.sha256})
    left, until, waits = (
        set(session.folder.link.members if session.folder.link else ()),
        time.monotonic() + REJOIN,
        False,
    )
    while left and time.monotonic() < until:
        left -= _ask(link, sorted(left & link.present()), message, FAREWELL).keys()
        if left and not waits:
            waits = True
            session.say(f"waiting up to {REJOIN:.0f} s for {', '.join(sorted(left))} to hear that it is over")
        time.sleep(0.5 if left else 0)
    if left:
        session.say(f"{', '.join(sorted(left))} did not hear that it is over; end what waits there by hand")


def _begin(session: _Desk, link: Link) -> dict[str, Any]:
    """The run's number and clients' sizes: asked once, and kept for when the server is started again."""
    path, described = session.folder.state / "begun.json", session.folder.federation
    if path.exists():
        begun: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        session.say("the server was started again, and carries on")
        return begun
    wanted = {client for team in described.sectors.values() for client in team}
    sizes: dict[str, int] = {}
    until = time.monotonic() + described.config.deploy.start
    session.say(f"waiting for {len(described.sectors)} sectors and {len(wanted)} clients")
    session.status.update(phase="waiting for everybody")
    while wanted - set(sizes):
        open_ = [s for s in sorted(link.present()) if set(described.sectors[s]) - set(sizes)]
        hello = Message({"do": "hello", "federation": described.sha256})
        for sector, reply in _ask(link, open_, hello, 2 * GREETING).items():
            told = reply.head.get("sizes")
            for client, size in told.items() if isinstance(told, dict) else ():
                if client in described.sectors[sector] and _is_size(size):
                    sizes[client] = size
            if failed := reply.head.get("failed"):
                session.say(f"{sector} {failed}")
        _present(session, link)
        if time.monotonic() > until and sizes:
            break
        if wanted - set(sizes):
            time.sleep(AGAIN)
    if absent := sorted(wanted - set(sizes)):
        session.say(
            f"{', '.join(absent)} did not come within deploy.start = {described.config.deploy.start:g} s; the run "
            "begins without"
        )
    begun = {"run": secrets.token_hex(8), "sizes": sizes}
    write_whole(path, json.dumps(begun))
    session.say(f"{len(sizes)} clients are there with {sum(sizes.values())} rows in all; the run begins")
    return begun


def _await(session: _Desk, link: Link, least: int, round: int) -> None:
    """Until enough sectors are there."""
    told = False
    while len(link.present()) < least:
        if not told:
            session.say(f"round {round}: {len(link.present())} sectors are there and {least} are needed; waiting")
            told = True
        _present(session, link)
        time.sleep(0.5)
    _present(session, link)


def _tell(session: _Desk, event: Event) -> None:
    match event.kind:
        case "task":
            session.status.update(round=event.round, phase=PHASES.get(event.phase, event.phase))
        case "warning":
            session.say(event.text)
        case "round":
            shown = "" if event.accuracy is None else f", accuracy {event.accuracy:.3f}"
            session.status.update(round=event.round, accuracy=event.accuracy)
            session.say(f"round {event.round} of {event.rounds} is done{shown}")
