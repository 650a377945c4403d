"""A whole federation on this machine, with a real process for each party: for demonstrations, tests and measurements.

    python tools/federation.py [CONFIG] [--set KEY=VALUE ...] [--out DIR]

writes the parties' folders, starts all parties on free ports of 127.0.0.1 and shows their status. At the end it shows
what they have sent and whether the model is that of the simulation. All processes are ended in any case. Without
CONFIG the federation is a small one: FedHEAD+ on the digits, 6 clients in 2 sectors.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.config import Config
from headwater.deploy import sent_log, status
from headwater.deploy.folder import ROLES, FoundParty, find
from headwater.errors import UserError
from networks import Networks
from process_tree import alive, descendants, free_ports, until, working_below

TIERS = ("server_sector", "sector_client")
WAYS = ("up", "down")
LEAVE = 30.0  # seconds in which a party ends after SIGTERM
LINGER = 20.0  # seconds in which the Flower processes of a killed party notice and end
PORT = 9100  # of every link in a namespace of its own
JOINED = b"SuperNode ID:"  # logged by Flower when a node was admitted
SHORT = ("rounds=3", "data.fraction=0.3", "partition.clients=6", "partition.sectors=2", "algorithm.name=fedhead+")

PLAIN = "import sys; from headwater.cli.app import main; sys.exit(main())"

# The same, but it ends when its standard input is closed, so also when the process that started it is killed.
HEADWATER = """
import os, signal, sys, threading
def watch():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=watch, daemon=True).start()
from headwater.cli.app import main
sys.exit(main())
"""


class Federation:
    """The parties of a directory that `headwater deploy init` wrote, as child processes. Use it with `with`.

    Args:
        out: the directory.
        threads: of each process, as OMP_NUM_THREADS.
        networks: namespaces that the parties run in; None for this machine's loopback.
        source: checkout whose code the parties run; None for the code that runs this.
    """

    def __init__(
        self, out: Path, *, threads: int = 1, networks: Networks | None = None, source: Path | None = None
    ) -> None:
        self.out, self.networks, self.source = out, networks, source
        self.found: dict[str, FoundParty] = {party.name: party for party in find(out)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.options: dict[str, tuple[str, ...]] = {}  # of a party's command, by party
        self.programs: dict[str, tuple[str, ...]] = {}  # by party, in place of the usual one; see trial_party.py
        self._threads = threads
        self._before: dict[str, int] = {}  # size of a party's SuperNode log when it was started

    @staticmethod
    def init(out: Path, config: Config, networks: Networks | None = None, *, enrol: bool = False) -> Federation:
        """Write the folders, with links at free ports. Folders that are there are replaced.

        Args:
            networks: namespaces for the server, all sectors and all clients, whose links are known by name then.
            enrol: leave it to the parties to make their keys.
        """
        from headwater.deploy import init
        from headwater.training.experiment import prepare

        sectors = config.partition.sectors
        if networks is None:
            links = {"server_address": f"127.0.0.1:{free_ports(1 + sectors)}", "sector_addresses": ()}
        else:
            server, *hosts = (
                f"{networks.host(name)}:{PORT}" for name in ("server", *map("s{}".format, range(sectors)))
            )
            links = {"server_address": server, "sector_addresses": tuple(hosts)}
        init.init(prepare(config.merged({"deploy": links})), out, force=True, enrol=enrol)
        return Federation(out, networks=networks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def names(self, role: str = "") -> list[str]:
        return [name for name, party in self.found.items() if role in ("", party.role)]

    # -- processes

    def start(self, *names: str) -> None:
        """Start these parties, or all. Their output goes to OUT/NAME.out."""
        for name in names or self.names():
            party = self.found[name]
            if self.running(name):
                raise RuntimeError(f"{name} is running already")
            node = self._node_log(name)
            self._before[name] = node.stat().st_size if node.exists() else 0
            where = self.networks.words(name) if self.networks else []
            with (self.out / f"{name}.out").open("ab") as output:
                self.processes[name] = subprocess.Popen(
                    [
                        *where,
                        sys.executable,
                        *self.programs.get(name, ("-c", HEADWATER)),
                        "deploy",
                        party.role,
                        str(party.path.resolve()),
                        *self.options.get(name, ()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=_environment(self.source) | {"OMP_NUM_THREADS": str(self._threads)},
                    process_group=0,  # Ctrl-C is for this process, which then ends the others
                )

    def running(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def kill(self, name: str, linger: float = 10 * LINGER) -> None:
        """Kill a party, and wait until its Flower processes have ended too."""
        process = self.processes[name]
        below = descendants(process.pid)
        process.kill()
        process.wait()
        self._close(name)
        until(lambda: not any(map(alive, below)), f"the end of what {name} had started", linger)

    def freeze(self, name: str) -> None:
        """Stop a party until `thaw`; its Flower processes keep running."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def stop(self, *names: str) -> dict[str, int]:
        """End these parties, or all, with all processes that they started. Returns their exit status."""
        chosen = {name: self.processes[name] for name in names or self.processes}
        below = {child for process in chosen.values() for child in descendants(process.pid)}
        for process in chosen.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + LEAVE
        for name, process in chosen.items():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._close(name)
        end = time.monotonic() + LINGER
        while time.monotonic() < end and any(map(alive, below)):
            time.sleep(0.1)
        for pid, since in below:
            if alive((pid, since)):
                os.kill(pid, signal.SIGKILL)
        return {name: process.returncode for name, process in chosen.items()}

    def wait(self, seconds: float) -> dict[str, int]:
        """Wait until all have ended by themselves. Returns their exit status."""
        until(lambda: not any(map(self.running, self.processes)), "the end of all parties", seconds, self._last_lines)
        for name in self.processes:
            self._close(name)
        return {name: process.returncode for name, process in self.processes.items()}

    def leftovers(self) -> list[int]:
        """Ids of processes that were started from these folders and still run."""
        return working_below(self.out) + [process.pid for process in self.processes.values() if process.poll() is None]

    def _close(self, name: str) -> None:
        pipe = self.processes[name].stdin
        if pipe is not None:
            pipe.close()

    def _last_lines(self) -> str:
        """The last log line of each running party, for errors."""
        lines = [f"{name}: {(self.said(name) or ['nothing'])[-1]}" for name in self.processes if self.running(name)]
        return "; ".join(lines)

    # -- status, logs and results

    def status(self, name: str) -> dict[str, Any]:
        return status.read(self.found[name].state)

    def until(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Wait until a condition holds; raises RuntimeError if the server ends first."""

        def met() -> object:
            if condition():
                return True
            if "server" in self.processes and not self.running("server"):
                raise RuntimeError(f"the server has ended, and there will be no {what}: {self._tail('server')}")
            return False

        until(met, what, seconds, self._last_lines)

    def until_round(self, round: int, seconds: float = 300.0) -> None:
        """Wait until the server has begun this round."""
        self.until(lambda: (self.status("server").get("round") or 0) >= round, f"round {round}", seconds)

    def until_joined(self, name: str, seconds: float = 180.0) -> None:
        """Wait until a party is admitted to the link above it, which takes up to a minute after a kill."""

        def joined() -> bool:
            log = self._node_log(name)
            return log.exists() and JOINED in log.read_bytes()[self._before[name] :]

        until(joined, f"{name} to join the link above it", seconds, lambda: self._tail(name))

    def _node_log(self, name: str) -> Path:
        return self.found[name].state / "logs" / "supernode.log"

    def said(self, name: str) -> list[str]:
        """The lines of a party's log, without time and name."""
        path = self.found[name].state / "logs" / "party.log"
        if not path.exists():
            return []
        return [line.partition(f" {name}: ")[2] for line in path.read_text(encoding="utf-8").splitlines()]

    def _tail(self, name: str) -> str:
        path = self.out / f"{name}.out"
        return " / ".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]) if path.exists() else ""

    @property
    def run(self) -> Path:
        return self.found["server"].state / "run"

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "result.json").read_text(encoding="utf-8"))
        return found

    def sent(self) -> Counter[tuple[str, str]]:
        """Bytes of payload by tier and direction, as all parties have recorded them."""
        total: Counter[tuple[str, str]] = Counter()
        for party in self.found.values():
            for line in sent_log.lines(party.state):
                total[line["tier"], line["direction"]] += line["bytes"]
        return total


def charged(result: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes by tier and direction in the ledger of a run, over all purposes."""
    ledger = result["ledger"]
    parts = [ledger, *(part for part in ledger.values() if isinstance(part, dict) and set(TIERS) <= part.keys())]
    return {(tier, way): sum(part[tier][f"{way}_bytes"] for part in parts) for tier in TIERS for way in WAYS}


def simulate(federation: Federation, out: Path, *options: str) -> dict[str, Any]:
    """The result of `headwater run` with the configuration of the federation."""
    config = federation.found["server"].path / "config.toml"
    command("run", str(config), "--out", str(out), "--force", "--quiet", *(options or ("--engine", "inline")))
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found


def command(*words: str, seconds: float = 600.0, source: Path | None = None) -> str:
    """The output of a `headwater` command, of another checkout if one is given."""
    line = [sys.executable, "-c", PLAIN, *words]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=seconds, check=True, env=_environment(source)
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"headwater {' '.join(words)} failed: {error.stderr.strip()}") from error
    return done.stdout


def _environment(source: Path | None) -> dict[str, str]:
    return dict(os.environ) if source is None else os.environ | {"PYTHONPATH": str(source / "src")}


# -- the command


def _show(federation: Federation, seconds: float) -> None:
    """Print the server's log as it grows, and once a round the status of all parties."""
    end = time.monotonic() + seconds
    printed, shown = 0, 0
    while True:
        for line in federation.said("server")[printed:]:
            print(f"server: {line}", flush=True)
            printed += 1
        if not federation.running("server"):
            return
        round = federation.status("server").get("round") or 0
        if round > shown and any(federation.status(name).get("round") == round for name in federation.names("client")):
            shown = round
            _headwater("deploy", "status", str(federation.out))
        if time.monotonic() > end:
            raise TimeoutError(f"the federation did not finish within {seconds:.0f} s; logs are in {federation.out}")
        time.sleep(0.5)


def _headwater(*words: str) -> None:
    print(f"\n$ headwater {' '.join(words)}", flush=True)
    print(command(*words), flush=True)


def _compare(federation: Federation, simulated: Mapping[str, Any]) -> bool:
    result, sent = federation.result(), federation.sent()
    due = charged(result)
    for tier, way in due:
        same = "as in the ledger" if sent[tier, way] == due[tier, way] else f"but {due[tier, way]:,} in the ledger"
        print(f"{tier} {way}: {sent[tier, way]:,} bytes of payload were sent, {same}")
    print(f"relayed inside sectors, up and down: {sum(sent['relay', way] for way in WAYS):,} bytes")
    same_model = result["model_sha256"] == simulated["model_sha256"]
    print(f"model_sha256 of the federation  {result['model_sha256']}")
    print(f"model_sha256 of the simulation  {simulated['model_sha256']}")
    print("The federation's model is the simulation's, bit for bit." if same_model else "THE MODELS DIFFER.")
    return same_model and all(sent[key] == due[key] for key in due)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="as `headwater run` takes it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets")
    parser.add_argument("--out", type=Path, default=Path("runs/deploy-demo"))
    parser.add_argument("--seconds", type=float, default=600.0, help="in which the federation must have finished")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    out: Path = options.out
    try:
        print(f"Writing a folder for each party to {out} ...", flush=True)
        config = Config.load(options.config, [*(() if options.config else SHORT), *options.sets])
        with Federation.init(out, config) as federation:
            print(f"Starting {len(federation.found)} processes: {', '.join(federation.names())}", flush=True)
            federation.start()
            _show(federation, options.seconds)
            ends = federation.wait(60)
        print(f"All {len(ends)} processes have ended by themselves; what three of them have sent:")
        for role in ROLES:
            _headwater("deploy", "audit", str(federation.found[federation.names(role)[0]].path))
        print("The same in a simulation, to compare ...", flush=True)
        good = _compare(federation, simulate(federation, out / "simulation")) and not any(ends.values())
    except KeyboardInterrupt:
        print("\nStopped; all processes have ended.")
        return 130
    except (RuntimeError, TimeoutError, UserError) as error:
        print(f"federation: {error}", file=sys.stderr)
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
