"""The process of a party, which `headwater deploy server|sector|client` runs.

Clients and hosts of sectors answer the messages of the party above. There are three kinds, named by `do` in the head:

- `hello`: how many rows do you train on? A host asks its clients and reports all of them.
- `work`: carry out these steps (see `headwater.deploy.work_messages`).
- `end`: the run is over, and this is the final model; or it was stopped before the round under `stopped`. A host tells
  its clients; then the process ends.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headwater.core.membership import Membership
from headwater.deploy import steps
from headwater.deploy.agreement import Agreement, client_context, host_context
from headwater.deploy.amendment import followed, replace_agreement
from headwater.deploy.answering import Answering
from headwater.deploy.census import AnnouncedRows, is_row_count
from headwater.deploy.control import Stopped
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.final_model import FinalModel, tell_end
from headwater.deploy.folder import FEDERATION, PARTY, PartyFolder
from headwater.deploy.known_members import FILE as MEMBERS
from headwater.deploy.known_members import RunMembers, from_round
from headwater.deploy.observation import Observation
from headwater.deploy.own_data import own_data
from headwater.deploy.party_log import PLAIN, LogStyle, PartyLog
from headwater.deploy.party_run import PartyRun, ValueStore
from headwater.deploy.payload import PayloadReader, Refused
from headwater.deploy.permissions import Permissions
from headwater.deploy.quoting import quoted
from headwater.deploy.refusals import RefusedLog
from headwater.deploy.revocation import Revocations
from headwater.deploy.sent_log import CONTROL, SentLog
from headwater.deploy.status import Status
from headwater.deploy.step_record import StepRecord
from headwater.deploy.transport import Address, Downlink, Message, Uplink, ask
from headwater.deploy.updates import UpdateCheck
from headwater.deploy.work_messages import ClientWorker, HostWorker
from headwater.errors import UserError
from headwater.specs import NoiseAt
from headwater.tasks.devices import find, settle
from headwater.tasks.privacy import privacy_of
from headwater.tasks.task import RunContext
from headwater.training.checkpoint import write_whole

MEGABYTE = 1 << 20
HELLO_SECONDS = 30.0  # to answer `hello`


def serve(folder: PartyFolder, *, style: LogStyle = PLAIN, metrics: Address | None = None) -> int:
    """Run a party until the federation has finished. Returns the exit status 0.

    Args:
        style: of its log.
        metrics: where to serve /healthz and /metrics; None for nowhere.
    """
    from headwater.deploy.metrics import serve_metrics
    from headwater.deploy.server import run_server

    # As many threads everywhere, since results depend on it. A device that is absent is refused now.
    settle(find(folder.device, key=f"{PARTY}: device"), folder.federation.config.engine.threads)
    log, status, sent = PartyLog(folder, style), Status(folder), SentLog(folder)
    process = PartyProcess(folder, log, status, sent, RefusedLog(folder), seen := Observation(log, sent))
    status.live = seen.fields
    try:
        if metrics is not None:
            process.links.append(serve_metrics(metrics, status, seen, process.log))
        {"server": run_server, "sector": _run_sector, "client": _run_client}[folder.role](process)
        return 0
    except UserError as error:  # so that the log and the status say why it has ended
        process.log(str(error), "error")
        raise
    finally:
        process.close()


@dataclass
class PartyProcess:
    """What every party has while it runs: its folder, log, status, records, observation and links."""

    folder: PartyFolder
    file_log: PartyLog
    status: Status
    sent: SentLog
    refused: RefusedLog
    seen: Observation
    links: list[Any] = field(default_factory=list)

    @property
    def max_bytes(self) -> int:
        return int(self.folder.federation.config.deploy.max_mb * MEGABYTE)

    def downlink(self) -> Downlink:
        """Open the link that this party runs."""
        from headwater.deploy.flower import FlowerDownlink

        self.status.update(phase="opening its link")
        opened = FlowerDownlink(self.folder, self.max_bytes, partial(self.log, level="warning"))
        self.links.append(link := self.seen.downlink(opened, self.folder.members))
        return link

    def uplink(self) -> Uplink:
        """Join the link of the party above."""
        from headwater.deploy.flower import FlowerUplink

        opened = FlowerUplink(self.folder, self.max_bytes, partial(self.log, level="warning"))
        self.links.append(link := self.seen.uplink(opened))
        return link

    def party_run(self, run: str, context: RunContext, members: Membership, known: Mapping[str, int]) -> PartyRun:
        """This party in one run.

        Args:
            run: its random name, which the server chose.
            members: who takes part, as the server announced it.
            known: numbers of rows that this party knows itself.

        Raises:
            Refused: the announcement contradicts what this party knows.
        """
        agreement = self.folder.federation
        config = agreement.config
        store = self.store(run)
        trusted = steps.trust(config.method, config.model.name)
        stamp = {**agreement.stamp, "run": run}
        followed = RunMembers(agreement, run, members, known, self.folder.state / MEMBERS)
        updates = UpdateCheck(members.rows, agreement.sector_of, config.deploy.max_norm)
        name, record = self.folder.name, StepRecord(self.folder.state / "steps", run)
        permissions = Permissions(agreement, name, members, record)
        context = replace(context, device=find(self.folder.device))
        own = (name, context, store, self.reader(context), self.sent, trusted, stamp, followed, permissions)
        return PartyRun(*own, self.fault, self.fault, self.refused.add, updates)

    def store(self, run: str) -> ValueStore:
        """The values of this party in one run."""
        server = self.folder.role == "server"
        return ValueStore(self.folder.state / "values", run, self.fault, in_checkpoints=server)

    def reader(self, context: RunContext) -> PayloadReader:
        return PayloadReader(context.models, self.max_bytes)

    def follow(self, head: Mapping[str, Any]) -> None:
        """Take over the amended agreement that a message is of, if nothing but clients was added.

        Raises:
            Refused: it is of another federation, or this party's operator has to act first.
        """
        folder, known = self.folder, self.folder.federation
        file, name = folder.path / FEDERATION, folder.name
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() == head.get("federation"):  # its operator was faster
            more = Agreement.read(file).amendments[len(known.amendments) :]
            if any(row["sector"] == name for row in more):
                raise Refused(f"{name} has to be started again to admit a client that was added")
        else:
            content, rows = followed(content, head, name, known.config.partition.clients)
            kept, more = replace_agreement(folder.path, content), tuple(rows)
            self.log(f"the federation was amended; the agreement before is {kept}")
        self.folder = replace(folder, federation=Agreement.read(file))
        for row in more:
            self.log(f"{row['client']} was added to {row['sector']}, with the key {row['key'] or 'of nobody'}")

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

    def show_present(self, link: Downlink, **fields: Any) -> None:
        self.seen.look()
        self.status.update(present=link.present(), **fields)

    def close(self) -> None:
        for link in reversed(self.links):
            link.close()
        self.status.close()
        self.sent.close()
        self.file_log.close()


def _run_client(process: PartyProcess) -> None:
    folder = process.folder
    data = own_data(folder, process.log)

    def context() -> RunContext:
        return replace(client_context(process.folder.federation, folder.name, data), secret=noise_secret(folder))

    size = len(context().rows[folder.name])
    process.log(f"client {folder.name} has {size} rows to train on; it joins {folder.above}")

    def hello(head: Mapping[str, Any]) -> Message:
        if isinstance(why := head.get("refused"), str):
            process.status.update(late={folder.name: "refused"})
            process.fault(f"{folder.name} came late and has no part in this run; the server says {quoted(why)}")
            return Message({})
        process.record_control(0, "how many rows it trains on")
        return Message({"size": size})

    def worker(run: str, members: Membership) -> ClientWorker:
        made = ClientWorker(process.party_run(run, context(), members, {folder.name: size}))
        for joined in members.joined:
            if joined.client == folder.name:
                process.status.update(late={folder.name: from_round(joined)})
                process.log(f"client {folder.name} came late and takes part {from_round(joined)}")
        return made

    def take(message: Message) -> None:
        final = FinalModel.of(message, process.reader(context()))
        process.log(final.write(folder.path, folder.name, process.folder.federation, process.store(final.run)))

    Answering(process, hello, worker, take).run(process.uplink())


def noise_secret(folder: PartyFolder, at: NoiseAt = "client") -> str:
    """The seed of this party's noise if it must differ from what other parties can compute from the run's seed."""
    config = folder.federation.config
    if not config.deploy.secret_noise or not (at == "client" or privacy_of(config.privacy).adds_noise(at)):
        return ""
    path = folder.state / "secret"
    if not path.exists():
        write_whole(path, secrets.token_hex(32))
        path.chmod(0o600)
    return path.read_text(encoding="ascii")


def _run_sector(process: PartyProcess) -> None:
    folder = process.folder

    def context() -> RunContext:
        return replace(host_context(process.folder.federation), secret=noise_secret(folder, "sector"))

    link, clients = process.downlink(), folder.federation.members_of(folder.name)
    config = folder.federation.config.deploy
    sizes: dict[str, int] = {}
    unfit: set[str] = set()  # clients whose announcement was refused
    runs: list[PartyRun] = []
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
        asked = Message({key: value for key, value in head.items() if key != "refused"})
        for name, reply in ask(link, unknown, asked, HELLO_SECONDS).items():
            if is_row_count(size := reply.head.get("size"), config.max_rows):
                sizes[name] = size
            elif name not in unfit:
                unfit.add(name)
                process.fault(f"{name} announces {quoted(size, 30)} rows, which is refused (deploy.max_rows)")
        if isinstance(refused := head.get("refused"), dict):
            for name in sorted(link.present() & refused.keys()):
                ask(link, [name], Message(dict(head) | {"refused": str(refused[name])}), HELLO_SECONDS)
        rows.update(sizes)
        process.record_control(0, "how many rows each client trains on")
        return Message({"sizes": {name: size for name, size in sizes.items() if name not in gone()}})

    def waiting() -> set[str]:
        """Clients that have come and have no part in the run yet."""
        return set(link.present() - gone() - unfit - runs[-1].members.now.rows.keys()) if runs else set()

    def worker(run: str, members: Membership) -> HostWorker:
        runs.append(party := process.party_run(run, context(), members, rows))
        dispatcher = Dispatcher(party, below, link, "sector_client", config.quorum, show_present, gone)
        return HostWorker(party, dispatcher)

    finals = [FinalModel()]

    def take(message: Message) -> None:
        finals.append(FinalModel.of(message, process.reader(context())))

    def on_end(stopped: Stopped | None) -> None:
        tell_end(process, link, finals[-1], gone, stopped)

    Answering(process, hello, worker, take, on_end, show_present, gone, waiting).run(process.uplink())
