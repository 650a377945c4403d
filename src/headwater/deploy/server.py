"""The server of a deployed federation: waits for clients, trains with `DeployedEngine`, and tells all when it is over.

It sends `hello` to its sectors until all clients have reported their number of rows, or `deploy.start` seconds have
passed. Then it chooses a name for the run and writes both to state/begun.json, which a restarted server goes on with.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.core import sealed
from headwater.core.records import parse_json
from headwater.deploy.agreement import deployed_experiment, server_split
from headwater.deploy.census import is_row_count
from headwater.deploy.control import PAUSE, STOP, Control, Stopped
from headwater.deploy.deployed_engine import DeployedEngine
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.final_model import FinalModel, tell_end
from headwater.deploy.folder import INIT_AGAIN, PUBLIC
from headwater.deploy.late_clients import BEGUN, LateClients, begun_membership, warn_of_the_largest, write_begun
from headwater.deploy.party_process import HELLO_SECONDS, PartyProcess, noise_secret
from headwater.deploy.quoting import quoted
from headwater.deploy.revocation import RevocationNotices, Revocations
from headwater.deploy.transport import Downlink, Message, ask
from headwater.errors import ConfigError, OutputError, TaskError, said
from headwater.tasks.privacy import privacy_of
from headwater.training.loop import train
from headwater.training.opening import run_context
from headwater.training.result import Event

RETRY = 2.0  # seconds between two rounds of `hello`
PHASES = {"train": "clients train", "distill": "distilling", "average": "averaging", "evaluate": "measuring"}


def run_server(process: PartyProcess) -> None:
    """Train to the end. A run that has finished already is only reported to the sectors."""
    folder, agreement = process.folder, process.folder.federation
    out = folder.state / "run"
    if (out / "result.json").exists():
        process.log(f"this federation has finished; its results are in {out}")
        begun = parse_json((folder.state / BEGUN).read_text(encoding="utf-8"))
        link = process.downlink()
        gone = Revocations(folder, link, process.log)
        # The server may have ended before it could tell.
        tell_end(process, link, _final_model(process, out, begun["run"]), gone)
        return
    config = agreement.config.deploy
    noisy = agreement.config.algorithm.get("sigma") or privacy_of(agreement.config.privacy).active
    if noisy and not config.secret_noise:
        process.log(
            "deploy.secret_noise = false: the noise of this run follows from its seed, which every party has, so it "
            "hides nothing from them; leave that key out at `headwater deploy init` to change it",
            "warning",
        )
    link = RevocationNotices(folder, process.downlink(), process.log)
    revoked = Revocations(folder, link, process.log)  # of sectors, at the server itself
    control = Control(folder, process.log)
    try:
        begun = _begin(process, link, revoked, control)
        split = server_split(agreement, _public_sets(folder.path / PUBLIC))
        experiment = deployed_experiment(agreement, split, begun["sizes"], folder.device)
        context = replace(run_context(experiment), secret=noise_secret(folder, "server"))
        party = process.party_run(begun["run"], context, begun_membership(begun), {})
        sector_of = agreement.sector_of

        def below(home: str) -> str | None:
            return home if home in agreement.sectors else sector_of.get(home)

        def hold(round: int) -> None:
            control.hold(round, lambda: process.show_present(link, phase="paused"))

        def before_round(round: int) -> None:
            hold(round)
            process.status.update(round=round, phase="waiting for sectors")
            sectors = set(agreement.sectors) - revoked()
            _await_sectors(process, link, sectors, max(1, -int(-config.quorum * len(sectors) // 1)), round, control)
            process.status.update(phase="sectors at work")

        def show_present() -> None:
            control.look()
            process.show_present(link)

        dispatcher = Dispatcher(party, below, link, "server_sector", config.quorum, show_present, revoked)
        engine = DeployedEngine(party.store, dispatcher, config.deadline, before_round, context.secret)
        late = LateClients(process, party, link, revoked, begun, hold)
        run = train(experiment, out=out, engine=engine, watch=lambda event: _show(process, event), arrivals=late)
        from headwater import report

        report.write([out], out / "report.html")
        accuracy = run.result["accuracy"]
        process.status.update(phase="finished", accuracy=accuracy)
        process.log(f"finished after {run.result['rounds']} rounds with accuracy {accuracy:.3f}; results are in {out}")
        control.clear(PAUSE, STOP)  # it came too late
        tell_end(process, link, _final_model(process, out, begun["run"]), revoked)
    except Stopped as error:
        process.status.update(phase="stopped")
        process.log(f"{error}; everybody is told to end, and carries on when started again")
        tell_end(process, link, FinalModel(), revoked, error)
        control.clear(STOP)  # last, so that a server that is killed meanwhile tells the others when it is started again
    except TaskError as error:
        process.log(str(error), "error")
        raise


def _final_model(process: PartyProcess, out: Path, run: str) -> FinalModel:
    """What the clients get; no model if the last checkpoint is damaged, since an older one is of another round."""
    config = process.folder.federation.config
    try:
        return FinalModel.read(out / "checkpoints", run, (config.method, config.model.name))
    except (OutputError, sealed.Damaged, OSError) as error:
        process.fault(f"clients get no final model ({said(error)}); send them {out / 'model.safetensors'}")
        return FinalModel(run=run)


def _public_sets(path: Path) -> dict[str, Any]:
    try:
        sets: dict[str, Any] = sealed.read(path)
        return sets
    except sealed.Damaged as error:
        raise ConfigError(f"{error}; bring it back from a copy, or {INIT_AGAIN}") from None


def _begin(process: PartyProcess, link: RevocationNotices, revoked: Revocations, control: Control) -> dict[str, Any]:
    """The name of the run and the clients' numbers of rows, from state/begun.json or from the clients."""
    path, agreement = process.folder.state / BEGUN, process.folder.federation
    if path.exists():
        begun: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        process.log("the server was started again, and carries on")
        return begun
    sizes: dict[str, int] = {}
    most = agreement.config.deploy.max_rows
    missing = set(agreement.sector_of)
    until = time.monotonic() + agreement.config.deploy.start
    process.log(f"waiting for {len(agreement.sectors)} sectors and {len(missing)} clients")
    process.status.update(phase="waiting for everybody")
    while missing or not sizes:
        sectors = [s for s in sorted(link.present()) if missing.intersection(agreement.sectors[s]) or not missing]
        hello = Message({"do": "hello", **agreement.stamp})
        for sector, reply in ask(link, sectors, hello, 2 * HELLO_SECONDS).items():
            reported = reply.head.get("sizes")
            for client, size in reported.items() if isinstance(reported, dict) else ():
                if client in agreement.sectors[sector] and is_row_count(size, most):
                    sizes[client] = size
            if failed := reply.head.get("failed"):
                process.fault(f"{sector} says {quoted(failed)}")
        gone = {client for sector in revoked() for client in agreement.sectors[sector]} | link.names
        sizes = {client: size for client, size in sizes.items() if client not in gone}
        missing -= sizes.keys() | gone
        process.seen.expect(missing, max(0.0, until - time.monotonic()))
        process.show_present(link)
        if time.monotonic() > until and sizes:
            break
        if control.look() == STOP:
            raise Stopped(0)
        if missing or not sizes:
            time.sleep(RETRY)
    process.seen.expect(())
    if missing:
        process.log(
            f"{', '.join(sorted(missing))} did not come within deploy.start = {agreement.config.deploy.start:g} s; the "
            "run begins without, and a client that comes later takes part from the next round on"
        )
    begun = {"run": secrets.token_hex(8), "sizes": sizes}
    write_begun(path, begun)
    process.log(f"{len(sizes)} clients are there with {sum(sizes.values())} rows in all; the run begins")
    warn_of_the_largest(process, sizes)
    return begun


def _await_sectors(
    process: PartyProcess, link: Downlink, sectors: set[str], least: int, round: int, control: Control
) -> None:
    """Wait until enough sectors are connected."""
    logged = False
    while len(link.present()) < least:
        if not logged:
            process.log(f"round {round}: {len(link.present())} sectors are there and {least} are needed; waiting")
            logged = True
        process.seen.expect(sectors - link.present())
        process.show_present(link)
        if control.look() == STOP:
            raise Stopped(round)
        time.sleep(0.5)
    process.seen.expect(())
    process.show_present(link)


def _show(process: PartyProcess, event: Event) -> None:
    match event.kind:
        case "task":
            process.status.update(round=event.round, phase=PHASES.get(event.phase, event.phase))
        case "warning":
            process.log(event.text, "warning")
        case "round":
            accuracy = "" if event.accuracy is None else f", accuracy {event.accuracy:.3f}"
            process.status.update(round=event.round, accuracy=event.accuracy)
            process.log(f"round {event.round} of {event.rounds} is done{accuracy}")
