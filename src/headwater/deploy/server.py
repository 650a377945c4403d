"""The server of a deployed federation: waits for clients, trains with `DeployedEngine`, and tells all when it is over.

It sends `hello` to its sectors until all clients have reported their number of rows, or `deploy.start` seconds have
passed. Then it chooses a name for the run and writes both to state/begun.json, which a restarted server goes on with.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from headwater.core import serialization
from headwater.deploy.agreement import deployed_experiment, server_split
from headwater.deploy.deployed_engine import DeployedEngine
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.final_model import FinalModel, tell_end
from headwater.deploy.folder import PUBLIC
from headwater.deploy.party_process import HELLO_SECONDS, PartyProcess, is_row_count
from headwater.deploy.transport import Downlink, Message, ask
from headwater.errors import TaskError
from headwater.training.checkpoint import write_whole
from headwater.training.loop import train
from headwater.training.opening import run_context
from headwater.training.progress import Event

BEGUN = "begun.json"
RETRY = 2.0  # seconds between two rounds of `hello`
PHASES = {"train": "clients train", "distill": "distilling", "average": "averaging", "evaluate": "measuring"}


def run_server(process: PartyProcess) -> None:
    """Train to the end. A run that has finished already is only reported to the sectors."""
    folder, agreement = process.folder, process.folder.federation
    out = folder.state / "run"
    if (out / "result.json").exists():
        process.log(f"this federation has finished; its results are in {out}")
        begun = json.loads((folder.state / BEGUN).read_text(encoding="utf-8"))
        final = FinalModel.read(out / "checkpoints", begun["run"])
        tell_end(process, process.downlink(), final)  # the server may have ended before it could tell
        return
    config = agreement.config.deploy
    if agreement.config.algorithm.get("sigma") and not config.secret_noise:
        process.log(
            "the noise of this run follows from its seed, which every party has, so it hides nothing from them; "
            "deploy.secret_noise = true at `headwater deploy init` changes that"
        )
    link = process.downlink()
    try:
        begun = _begin(process, link)
        split = server_split(agreement, serialization.read(folder.path / PUBLIC))
        experiment = deployed_experiment(agreement, split, begun["sizes"])
        party = process.party_run(begun["run"], run_context(experiment))
        sector_of = agreement.sector_of

        def below(home: str) -> str | None:
            return home if home in agreement.sectors else sector_of.get(home)

        def before_round(round: int) -> None:
            process.status.update(round=round, phase="waiting for sectors")
            _await_sectors(process, link, max(1, -int(-config.quorum * len(agreement.sectors) // 1)), round)
            process.status.update(phase="sectors at work")

        dispatcher = Dispatcher(party, below, link, "server_sector", config.quorum, lambda: process.show_present(link))
        engine = DeployedEngine(party.store, dispatcher, config.deadline, before_round)
        run = train(experiment, out=out, engine=engine, watch=lambda event: _show(process, event))
        from headwater import report

        report.write([out], out / "report.html")
        accuracy = run.result["accuracy"]
        process.status.update(phase="finished", accuracy=accuracy)
        process.log(f"finished after {run.result['rounds']} rounds with accuracy {accuracy:.3f}; results are in {out}")
        tell_end(process, link, FinalModel.read(out / "checkpoints", begun["run"]))
    except TaskError as error:
        process.log(str(error), "error")
        raise


def _begin(process: PartyProcess, link: Downlink) -> dict[str, Any]:
    """The name of the run and the clients' numbers of rows, from state/begun.json or from the clients."""
    path, agreement = process.folder.state / BEGUN, process.folder.federation
    if path.exists():
        begun: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        process.log("the server was started again, and carries on")
        return begun
    sizes: dict[str, int] = {}
    missing = set(agreement.sector_of)
    until = time.monotonic() + agreement.config.deploy.start
    process.log(f"waiting for {len(agreement.sectors)} sectors and {len(missing)} clients")
    process.status.update(phase="waiting for everybody")
    while missing:
        sectors = [s for s in sorted(link.present()) if missing.intersection(agreement.sectors[s])]
        hello = Message({"do": "hello", "federation": agreement.sha256})
        for sector, reply in ask(link, sectors, hello, 2 * HELLO_SECONDS).items():
            reported = reply.head.get("sizes")
            for client, size in reported.items() if isinstance(reported, dict) else ():
                if client in agreement.sectors[sector] and is_row_count(size):
                    sizes[client] = size
            if failed := reply.head.get("failed"):
                process.log(f"{sector} {failed}")
        missing -= sizes.keys()
        process.seen.expect(missing, max(0.0, until - time.monotonic()))
        process.show_present(link)
        if time.monotonic() > until and sizes:
            break
        if missing:
            time.sleep(RETRY)
    process.seen.expect(())
    if missing:
        process.log(
            f"{', '.join(sorted(missing))} did not come within deploy.start = {agreement.config.deploy.start:g} s; the "
            "run begins without"
        )
    begun = {"run": secrets.token_hex(8), "sizes": sizes}
    write_whole(path, json.dumps(begun))
    process.log(f"{len(sizes)} clients are there with {sum(sizes.values())} rows in all; the run begins")
    return begun


def _await_sectors(process: PartyProcess, link: Downlink, least: int, round: int) -> None:
    """Wait until enough sectors are connected."""
    logged = False
    while len(link.present()) < least:
        if not logged:
            process.log(f"round {round}: {len(link.present())} sectors are there and {least} are needed; waiting")
            logged = True
        process.seen.expect(set(process.folder.members) - link.present())
        process.show_present(link)
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
