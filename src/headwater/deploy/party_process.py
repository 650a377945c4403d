"""The process of a party, which `headwater deploy server|sector|client` runs.

Clients and hosts of sectors answer the messages of the party above. There are three kinds, named by `do` in the head:

- `hello`: how many rows do you train on? A host asks its clients and reports all of them.
- `work`: carry out these steps (see `headwater.deploy.work_messages`).
- `end`: the run is over, or was stopped before the round under `stopped`. A host tells its clients; then the process
  ends.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from headwater.deploy import steps
from headwater.deploy.agreement import client_context, host_context
from headwater.deploy.audit import CONTROL, SentLog
from headwater.deploy.census import AnnouncedRows, agrees, is_row_count, read_census
from headwater.deploy.control import Stopped
from headwater.deploy.dispatch import REJOIN, Dispatcher
from headwater.deploy.folder import PartyFolder
from headwater.deploy.hearsay import quoted
from headwater.deploy.own_data import own_data
from headwater.deploy.party_run import PartyRun, ValueStore
from headwater.deploy.payload import PayloadReader, Refused
from headwater.deploy.permissions import Permissions
from headwater.deploy.refusals import RefusedLog
from headwater.deploy.revocation import Revocations, revoked
from headwater.deploy.status import PartyLog, Status
from headwater.deploy.step_record import StepRecord
from headwater.deploy.transport import Downlink, Message, Uplink, ask
from headwater.deploy.updates import UpdateCheck
from headwater.deploy.work_messages import ClientWorker, HostWorker, Worker
from headwater.errors import UserError
from headwater.tasks.task import RunContext
from headwater.training.checkpoint import write_whole

RUN = re.compile(r"[0-9a-f]{16}")
MEGABYTE = 1 << 20
HEARTBEAT = 5.0  # seconds between two updates of the status of a waiting party
HELLO_SECONDS = 30.0  # to answer `hello`
END_SECONDS = 20.0  # to answer `end`


def serve(folder: PartyFolder, *, quiet: bool) -> int:
    """Run a party until the federation has finished. Returns the exit status 0.

    Args:
        quiet: write log lines to the log file only.
    """
    from headwater.deploy.server import run_server

    torch.set_num_threads(folder.federation.config.engine.threads)  # the same everywhere, since results depend on it
    process = PartyProcess(folder, PartyLog(folder, quiet), Status(folder), SentLog(folder), RefusedLog(folder))
    try:
        {"server": run_server, "sector": _run_sector, "client": _run_client}[folder.role](process)
        return 0
    except UserError as error:  # so that the log and the status say why it has ended
        process.log(str(error))
        raise
    finally:
        process.close()


@dataclass
class PartyProcess:
    """What every party has while it runs: its folder, log, status, record of what it sends, and links."""

    folder: PartyFolder
    file_log: PartyLog
    status: Status
    sent: SentLog
    refused: RefusedLog
    links: list[Any] = field(default_factory=list)

    @property
    def max_bytes(self) -> int:
        return int(self.folder.federation.config.deploy.max_mb * MEGABYTE)

    def downlink(self) -> Downlink:
        """Open the link that this party runs."""
        from headwater.deploy.flower import FlowerDownlink

        self.status.update(phase="opening its link")
        self.links.append(link := FlowerDownlink(self.folder, self.max_bytes, self.log))
        return link

    def uplink(self) -> Uplink:
        """Join the link of the party above."""
        from headwater.deploy.flower import FlowerUplink

        self.links.append(link := FlowerUplink(self.folder, self.max_bytes, self.log))
        return link

    def party_run(self, run: str, context: RunContext, census: Mapping[str, int]) -> PartyRun:
        """This party in one run.

        Args:
            run: its random name, which the server chose.
            census: number of rows by client, which the server announced.
        """
        agreement = self.folder.federation
        config = agreement.config
        store = ValueStore(self.folder.state / "values", run, self.log, in_checkpoints=self.folder.role == "server")
        trusted = steps.trust(config.method, config.model.name)
        stamp = {"federation": agreement.sha256, "run": run, "census": dict(census)}
        reader = PayloadReader(context.models, self.max_bytes)
        updates = UpdateCheck(census, agreement.sector_of, config.deploy.max_norm)
        name, record = self.folder.name, StepRecord(self.folder.state / "steps", run)
        permissions = Permissions(agreement, name, census, record)
        own = (name, context, store, reader, self.sent, trusted, stamp, permissions)
        return PartyRun(*own, self.log, self.log, self.refused.add, updates)

    def log(self, sentence: str) -> None:
        self.file_log(sentence)
        self.status.update(message=sentence)

    def record_control(self, round: int, what: str) -> None:
        """Record control data that goes up."""
        self.sent.add(round, "above", CONTROL, "", "up", 0, what)

    def show_present(self, link: Downlink, **fields: Any) -> None:
        self.status.update(present=link.present(), **fields)

    def tell_end(self, link: Downlink, stopped: Stopped | None = None) -> None:
        """Send `end` to all parties below, and to absent ones if they come back soon."""
        why = {"stopped": stopped.round} if stopped else {}
        message = Message({"do": "end", "federation": self.folder.federation.sha256} | why)
        left, until, waits = set(self.folder.members) - revoked(self.folder), time.monotonic() + REJOIN, False
        while left and time.monotonic() < until:
            left -= ask(link, sorted(left & link.present()), message, END_SECONDS).keys()
            if left and not waits:
                waits = True
                self.log(f"waiting up to {REJOIN:.0f} s to tell {', '.join(sorted(left))} that the run is over")
            time.sleep(0.5 if left else 0)
        if left:
            self.log(f"{', '.join(sorted(left))} could not be told that the run is over; stop these processes by hand")

    def close(self) -> None:
        for link in reversed(self.links):
            link.close()
        self.status.close()
        self.sent.close()
        self.file_log.close()


def _run_client(process: PartyProcess) -> None:
    folder = process.folder
    data = own_data(folder, process.log)
    context = replace(client_context(folder.federation, folder.name, data), secret=_noise_secret(folder))
    size = len(context.rows[folder.name])
    process.log(f"client {folder.name} has {size} rows to train on; it joins {folder.above}")

    def hello(head: Mapping[str, Any]) -> Message:
        process.record_control(0, "how many rows it trains on")
        return Message({"size": size})

    def worker(run: str, census: dict[str, int]) -> ClientWorker:
        agrees(census, {folder.name: size})
        return ClientWorker(process.party_run(run, context, census))

    _Answering(process, hello, worker).run(process.uplink())


def _noise_secret(folder: PartyFolder) -> str:
    """The seed of this client's noise if it must differ from what other parties can compute from the run's seed."""
    if not folder.federation.config.deploy.secret_noise:
        return ""
    path = folder.state / "secret"
    if not path.exists():
        write_whole(path, secrets.token_hex(32))
        path.chmod(0o600)
    return path.read_text(encoding="ascii")


def _run_sector(process: PartyProcess) -> None:
    folder = process.folder
    context = host_context(folder.federation)
    link, clients = process.downlink(), folder.federation.members_of(folder.name)
    config = folder.federation.config.deploy
    sizes: dict[str, int] = {}
    rows = AnnouncedRows(folder)
    gone = Revocations(folder, link, process.log)
    process.log(f"sector {folder.name} waits for {', '.join(folder.members)} at {folder.link and folder.link.address}")

    def below(home: str) -> str | None:
        return home if home in clients else None

    def show_present() -> None:
        gone()
        process.show_present(link)

    def hello(head: Mapping[str, Any]) -> Message:
        unknown = [name for name in sorted(link.present() - gone()) if name not in sizes]
        for name, reply in ask(link, unknown, Message(dict(head)), HELLO_SECONDS).items():
            if is_row_count(size := reply.head.get("size"), config.max_rows):
                sizes[name] = size
            else:
                process.log(f"{name} announces {quoted(size, 30)} rows, which is refused (deploy.max_rows)")
        rows.update(sizes)
        process.record_control(0, "how many rows each client trains on")
        return Message({"sizes": {name: size for name, size in sizes.items() if name not in gone()}})

    def worker(run: str, census: dict[str, int]) -> HostWorker:
        agrees(census, rows)
        party = process.party_run(run, context, census)
        dispatcher = Dispatcher(party, below, link, "sector_client", config.quorum, show_present, gone)
        return HostWorker(party, dispatcher)

    on_end = partial(process.tell_end, link)
    answering = _Answering(process, hello, worker, on_end=on_end, on_wait=show_present, revoked=gone)
    answering.run(process.uplink())


@dataclass
class _Answering:
    """Answers the messages of the party above until it says that the run is over.

    Args:
        hello: answers a `hello` message.
        worker: creates the worker of a run, given the number of rows of each client.
        on_end: called before the process ends, with why if the run was stopped.
        on_wait: called for every message and at every heartbeat.
        revoked: parties below that were revoked, which every reply names.
    """

    process: PartyProcess
    hello: Callable[[Mapping[str, Any]], Message]
    worker: Callable[[str, dict[str, int]], Worker]
    on_end: Callable[[Stopped | None], None] = lambda stopped: None
    on_wait: Callable[[], None] = lambda: None
    revoked: Callable[[], Collection[str]] = frozenset
    stop: threading.Event = field(default_factory=threading.Event)
    current: tuple[str, Worker | None] = ("", None)  # the run and its worker
    ended: bool = False
    stopped: Stopped | None = None

    def run(self, uplink: Uplink) -> None:
        folder, status = self.process.folder, self.process.status
        status.update(phase="waiting")
        threading.Thread(target=self._heartbeat, daemon=True).start()
        uplink.serve(self.answer, self.stop)
        status.update(phase="stopped" if self.stopped else "finished" if self.ended else "ended")
        why = self.stopped or "the federation has finished"
        again = "; what it has is kept, and it carries on when it is started again" if self.stopped else ""
        self.process.log(f"{why}, and {folder.role} {folder.name} ends{again}")

    def answer(self, message: Message) -> Message:
        head = message.head
        if head.get("federation") != self.process.folder.federation.sha256:
            self.process.log("refused a message: it is of another federation than this folder's")
            return Message({"failed": "refused it: its federation.json is another one"})
        self.on_wait()
        match head.get("do"):
            case "hello":
                return self._with_revoked(self.hello(head))
            case "end":
                if not self.ended:  # with a delay, so that the reply is sent first
                    self.stopped = Stopped(before) if type(before := head.get("stopped")) is int else None
                    threading.Timer(1.0, self._leave).start()
                self.ended = True
                return Message({})
            case "work" if isinstance(run := head.get("run"), str) and RUN.fullmatch(run):
                return self._work(run, message)
        self.process.log("refused a message: it asks for nothing that is known here")
        return Message({"failed": "refused it: it asks for nothing that is known here"})

    def _work(self, run: str, message: Message) -> Message:
        if self.current[0] != run:
            try:
                self.current = run, self.worker(run, read_census(message.head, self.process.folder.federation))
            except Refused as error:
                self.process.log(f"refused a message: {error}")
                return Message({"failed": f"refused it: {error}"})
        worker, round = self.current[1], message.head.get("round")
        assert worker is not None
        number = round if type(round) is int else 0
        self.process.status.update(phase=_phase(message.head), round=number)
        reply = worker.answer(message)
        self.process.record_control(number, "training losses and times")
        self.process.status.update(phase="waiting")
        return self._with_revoked(reply)

    def _with_revoked(self, reply: Message) -> Message:
        names = sorted(self.revoked())
        return Message(reply.head | {"revoked": names}, reply.parts) if names else reply

    def _leave(self) -> None:
        self.on_end(self.stopped)
        self.stop.set()

    def _heartbeat(self) -> None:
        while not self.stop.wait(HEARTBEAT):
            self.process.status.update()
            self.on_wait()


def _phase(head: Mapping[str, Any]) -> str:
    """What a `work` message asks for, in one word."""
    tasks = [str(row.get("task", "")) for row in head.get("steps", ()) if isinstance(row, dict)]
    for word, phase in (("distill", "distilling"), ("train", "training")):
        if any(word in task.rpartition(":")[2] for task in tasks):
            return phase
    return "working"
