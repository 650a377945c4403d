"""The process of a party, which `headwater deploy server|sector|client` runs.

Clients and hosts of sectors answer the messages of the party above. There are three kinds, named by `do` in the head:

- `hello`: how many rows do you train on? A host asks its clients and reports all of them.
- `work`: carry out these steps (see `headwater.deploy.work_messages`).
- `end`: the run is over. A host tells its clients; then the process ends.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from headwater.deploy import steps
from headwater.deploy.agreement import client_context, host_context
from headwater.deploy.audit import CONTROL, SentLog
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.final_model import RUN, FinalModel, tell_end
from headwater.deploy.folder import PartyFolder
from headwater.deploy.observation import Observation
from headwater.deploy.own_data import own_data
from headwater.deploy.party_log import PLAIN, LogStyle, PartyLog
from headwater.deploy.party_run import PartyRun, ValueStore
from headwater.deploy.payload import PayloadReader
from headwater.deploy.status import Status
from headwater.deploy.transport import Address, Downlink, Message, Uplink, ask
from headwater.deploy.work_messages import ClientWorker, HostWorker, Worker
from headwater.errors import said
from headwater.tasks.run_context import RunContext
from headwater.training.checkpoint import write_whole

MEGABYTE = 1 << 20
MAX_ROWS = 1 << 40  # of a client
HEARTBEAT = 5.0  # seconds between two updates of the status of a waiting party
HELLO_SECONDS = 30.0  # to answer `hello`


def serve(folder: PartyFolder, *, style: LogStyle = PLAIN, metrics: Address | None = None) -> int:
    """Run a party until the federation has finished. Returns the exit status 0.

    Args:
        style: of its log.
        metrics: where to serve /healthz and /metrics; None for nowhere.
    """
    from headwater.deploy.metrics import serve_metrics
    from headwater.deploy.server import run_server

    torch.set_num_threads(folder.federation.config.engine.threads)  # the same everywhere, since results depend on it
    log, status, sent = PartyLog(folder, style), Status(folder), SentLog(folder)
    process = PartyProcess(folder, log, status, sent, seen := Observation(log, sent))
    status.live = seen.fields
    try:
        if metrics is not None:
            process.links.append(serve_metrics(metrics, status, seen, process.log))
        {"server": run_server, "sector": _run_sector, "client": _run_client}[folder.role](process)
        return 0
    finally:
        process.close()


@dataclass
class PartyProcess:
    """What every party has while it runs: its folder, log, status, record of what it sends, observation and links."""

    folder: PartyFolder
    file_log: PartyLog
    status: Status
    sent: SentLog
    seen: Observation
    links: list[Any] = field(default_factory=list)

    @property
    def max_bytes(self) -> int:
        return int(self.folder.federation.config.deploy.max_mb * MEGABYTE)

    def downlink(self) -> Downlink:
        """Open the link that this party runs."""
        from headwater.deploy.flower import FlowerDownlink

        self.links.append(link := self.seen.downlink(FlowerDownlink(self.folder, self.max_bytes), self.folder.members))
        return link

    def uplink(self) -> Uplink:
        """Join the link of the party above."""
        from headwater.deploy.flower import FlowerUplink

        self.links.append(link := self.seen.uplink(FlowerUplink(self.folder, self.max_bytes)))
        return link

    def party_run(self, run: str, context: RunContext) -> PartyRun:
        """This party in one run.

        Args:
            run: its random name, which the server chose.
        """
        agreement = self.folder.federation
        config = agreement.config
        store = ValueStore(self.folder.state / "values", run)
        trusted = steps.trust(config.method, config.model.name)
        stamp = {"federation": agreement.sha256, "run": run}
        logs = (self.fault, self.fault)
        return PartyRun(self.folder.name, context, store, self.reader(context), self.sent, trusted, stamp, *logs)

    def reader(self, context: RunContext) -> PayloadReader:
        return PayloadReader(context.models, self.max_bytes)

    def log(self, sentence: str, level: str = "info") -> None:
        self.file_log(sentence, level)
        self.status.update(message=sentence)

    def fault(self, sentence: str) -> None:
        """Log that something was refused or went wrong here or below, and count it."""
        self.file_log.fault(sentence)
        self.status.update(message=sentence)

    def record_control(self, round: int, what: str) -> None:
        """Record control data that goes up."""
        self.sent.add(round, "above", CONTROL, "", "up", 0, what)

    def show_present(self, link: Downlink) -> None:
        self.seen.look()
        self.status.update(present=link.present())

    def close(self) -> None:
        for link in reversed(self.links):
            link.close()
        self.status.close()
        self.sent.close()
        self.file_log.close()


def is_row_count(size: Any) -> TypeGuard[int]:
    """Whether a received value can be a number of rows."""
    return type(size) is int and 0 <= size <= MAX_ROWS


def _run_client(process: PartyProcess) -> None:
    folder = process.folder
    data = own_data(folder, process.log)
    context = replace(client_context(folder.federation, folder.name, data), secret=_noise_secret(folder))
    size = len(context.rows[folder.name])
    process.log(f"client {folder.name} has {size} rows to train on; it joins {folder.above}")

    def hello(head: Mapping[str, Any]) -> Message:
        process.record_control(0, "how many rows it trains on")
        return Message({"size": size})

    def worker(run: str) -> ClientWorker:
        return ClientWorker(process.party_run(run, context))

    def take(message: Message) -> None:
        final = FinalModel.of(message, process.reader(context))
        store = ValueStore(folder.state / "values", final.run)
        process.log(final.write(folder.path, folder.name, folder.federation, store))

    _Answering(process, hello, worker, take).run(process.uplink())


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
    link, clients = process.downlink(), folder.members
    quorum = folder.federation.config.deploy.quorum
    sizes: dict[str, int] = {}
    process.log(f"sector {folder.name} waits for {', '.join(clients)} at {folder.link and folder.link.address}")

    def below(home: str) -> str | None:
        return home if home in clients else None

    def show_present() -> None:
        process.show_present(link)

    def hello(head: Mapping[str, Any]) -> Message:
        unknown = [name for name in sorted(link.present()) if name not in sizes]
        for name, reply in ask(link, unknown, Message(dict(head)), HELLO_SECONDS).items():
            if is_row_count(size := reply.head.get("size")):
                sizes[name] = size
        process.record_control(0, "how many rows each client trains on")
        return Message({"sizes": dict(sizes)})

    def worker(run: str) -> HostWorker:
        party = process.party_run(run, context)
        return HostWorker(party, Dispatcher(party, below, link, "sector_client", quorum, show_present))

    finals = [FinalModel()]

    def take(message: Message) -> None:
        finals.append(FinalModel.of(message, process.reader(context)))

    def on_end() -> None:
        tell_end(process, link, finals[-1])

    _Answering(process, hello, worker, take, on_end, show_present).run(process.uplink())


@dataclass
class _Answering:
    """Answers the messages of the party above until it says that the run is over.

    Args:
        hello: answers a `hello` message.
        worker: creates the worker of a run.
        take: takes the final model out of an `end` message.
        on_end: called before the process ends.
        on_wait: called for every message and at every heartbeat.
    """

    process: PartyProcess
    hello: Callable[[Mapping[str, Any]], Message]
    worker: Callable[[str], Worker]
    take: Callable[[Message], None] = lambda message: None
    on_end: Callable[[], None] = lambda: None
    on_wait: Callable[[], None] = lambda: None
    stop: threading.Event = field(default_factory=threading.Event)
    current: tuple[str, Worker | None] = ("", None)  # the run and its worker
    ended: bool = False

    def run(self, uplink: Uplink) -> None:
        folder, status = self.process.folder, self.process.status
        status.update(phase="waiting")
        threading.Thread(target=self._heartbeat, daemon=True).start()
        uplink.serve(self.answer, self.stop)
        status.update(phase="finished" if self.ended else "ended")
        self.process.log(f"the federation has finished, and {folder.role} {folder.name} ends")

    def answer(self, message: Message) -> Message:
        head = message.head
        if head.get("federation") != self.process.folder.federation.sha256:
            self.process.fault("refused a message: it is of another federation than this folder's")
            return Message({"failed": "refused it: its federation.json is another one"})
        self.on_wait()
        match head.get("do"):
            case "hello":
                return self.hello(head)
            case "end":
                return self._end(message)
            case "work" if isinstance(run := head.get("run"), str) and RUN.fullmatch(run):
                return self._work(run, message)
        self.process.fault("refused a message: it asks for nothing that is known here")
        return Message({"failed": "refused it: it asks for nothing that is known here"})

    def _work(self, run: str, message: Message) -> Message:
        if self.current[0] != run:
            self.current = run, self.worker(run)
        worker, round = self.current[1], message.head.get("round")
        assert worker is not None
        number = round if type(round) is int else 0
        self.process.status.update(phase=_phase(message.head), round=number)
        reply = worker.answer(message)
        self.process.record_control(number, "training losses and times")
        self.process.status.update(phase="waiting")
        return reply

    def _end(self, message: Message) -> Message:
        """Take the final model and leave, with a delay, so that the reply is sent first. Without the model, too."""
        failed = ""
        try:
            self.take(message)
        except Exception as error:  # whatever is wrong with it, this process ends
            failed = said(error)
            self.process.fault(f"refused the final model: {failed}")
        if not self.ended:
            threading.Timer(1.0, self._leave).start()
        self.ended = True
        return Message({"failed": failed} if failed else {})

    def _leave(self) -> None:
        self.on_end()
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
