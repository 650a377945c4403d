"""A whole federation on this machine, a real process for each party: to show it, to test it, to measure it.

    python tools/federation.py [CONFIG] [--set KEY=VALUE ...] [--out DIR]

writes the parties' folders, starts everybody on free ports of 127.0.0.1, shows how they get on, and at the end what
has left each of them and whether the model is the simulation's. Nothing that was started is left running, however it
ends. Without CONFIG it is a small one: FedHEAD+ on the digits, 6 clients in 2 sectors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.config import Config
from headwater.deploy import audit, status
from headwater.deploy.listing import ROLES, Found, find
from headwater.errors import UserError

TIERS = ("server_sector", "sector_client")
WAYS = ("up", "down")
LOWEST, HIGHEST = 20_000, 32_000  # ports that no outgoing connection is given
LEAVE = 30.0  # seconds in which a party that is asked to end does so
LINGER = 20.0  # seconds in which a killed party's Flower processes find out and end
JOINED = b"SuperNode ID:"  # what Flower says then
SHORT = ("rounds=3", "data.fraction=0.3", "partition.clients=6", "partition.sectors=2", "algorithm.name=fedhead+")

PLAIN = "import sys; from headwater.cli.app import main; sys.exit(main())"

# The same, but it ends when its standard input does, which is when whoever started it is gone, even by SIGKILL.
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
    """The parties below a directory that `headwater deploy init` wrote, as child processes. Use it with `with`."""

    def __init__(self, out: Path, *, threads: int = 1) -> None:
        self.out = out
        self.found: dict[str, Found] = {party.name: party for party in find(out)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads = threads
        self._before: dict[str, int] = {}  # how long a party's log of its node was when it was started

    @staticmethod
    def init(out: Path, config: Config) -> Federation:
        """Write the folders, anew if they are there, with links at ports that are free."""
        from headwater.deploy import init
        from headwater.training.experiment import prepare

        address = f"127.0.0.1:{free_ports(1 + config.partition.sectors)}"
        made = prepare(config.merged({"deploy": {"server_address": address, "sector_addresses": ()}}))
        init.init(made, out, force=True)
        return Federation(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def names(self, role: str = "") -> list[str]:
        return [name for name, party in self.found.items() if role in ("", party.role)]

    # -- processes

    def start(self, *names: str) -> None:
        """Those named, or all of them. What they say goes to OUT/NAME.out."""
        for name in names or self.names():
            party = self.found[name]
            if self.running(name):
                raise RuntimeError(f"{name} is running already")
            node = self._node_log(name)
            self._before[name] = node.stat().st_size if node.exists() else 0
            with (self.out / f"{name}.out").open("ab") as said:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-c", HEADWATER, "deploy", party.role, str(party.path)],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    env=os.environ | {"OMP_NUM_THREADS": str(self._threads)},
                    process_group=0,  # Ctrl-C is for this process, which then ends the others
                )

    def running(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def kill(self, name: str, linger: float = 10 * LINGER) -> None:
        """SIGKILL, and wait until all that the party had started is gone too."""
        process = self.processes[name]
        below = descendants(process.pid)
        process.kill()
        process.wait()
        self._close(name)
        until(lambda: not any(map(alive, below)), f"the end of what {name} had started", linger)

    def freeze(self, name: str) -> None:
        """It does nothing until it is thawed; its Flower processes do not notice."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def stop(self, *names: str) -> dict[str, int]:
        """Ask those named, or all, to end, and see that they do, with all that they had started; their exit status."""
        chosen = {name: self.processes[name] for name in names or self.processes}
        below = {found for process in chosen.values() for found in descendants(process.pid)}
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
        """Until all have ended by themselves; their exit status."""
        until(lambda: not any(map(self.running, self.processes)), "the end of all parties", seconds, self._why)
        for name in self.processes:
            self._close(name)
        return {name: process.returncode for name, process in self.processes.items()}

    def leftovers(self) -> list[int]:
        """Processes that were started from these folders and are still there, by what they hold open or work in."""
        here = str(self.out.resolve())
        found = []
        for pid in _pids():
            try:
                if os.readlink(f"/proc/{pid}/cwd").startswith(here + "/"):
                    found.append(pid)
            except OSError:
                continue
        return found + [process.pid for process in self.processes.values() if process.poll() is None]

    def _close(self, name: str) -> None:
        pipe = self.processes[name].stdin
        if pipe is not None:
            pipe.close()

    def _why(self) -> str:
        """For who waits in vain: what each said last."""
        lines = [f"{name}: {(self.said(name) or ['nothing'])[-1]}" for name in self.processes if self.running(name)]
        return "; ".join(lines)

    # -- what is known of them

    def status(self, name: str) -> dict[str, Any]:
        return status.read(self.found[name].state)

    def until(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Wait for something, as long as the server lives."""

        def met() -> object:
            if condition():
                return True
            if "server" in self.processes and not self.running("server"):
                raise RuntimeError(f"the server has ended, and there will be no {what}: {self._tail('server')}")
            return False

        until(met, what, seconds, self._why)

    def until_round(self, round: int, seconds: float = 300.0) -> None:
        """Until the server has begun this round."""
        self.until(lambda: (self.status("server").get("round") or 0) >= round, f"round {round}", seconds)

    def until_joined(self, name: str, seconds: float = 180.0) -> None:
        """Until a client or a host is let in at the link above it: one that was killed may have to wait a minute."""

        def joined() -> bool:
            log = self._node_log(name)
            return log.exists() and JOINED in log.read_bytes()[self._before[name] :]

        until(joined, f"{name} to be let in above it", seconds, lambda: self._tail(name))

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
        """Bytes of payload by tier and direction, as all parties have written them down."""
        total: Counter[tuple[str, str]] = Counter()
        for party in self.found.values():
            for line in audit.lines(party.state):
                total[line["tier"], line["direction"]] += line["bytes"]
        return total


def charged(result: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes by tier and direction that the ledger of a run has, of all purposes."""
    ledger = result["ledger"]
    parts = [ledger, *(part for part in ledger.values() if isinstance(part, dict) and set(TIERS) <= part.keys())]
    return {(tier, way): sum(part[tier][f"{way}_bytes"] for part in parts) for tier in TIERS for way in WAYS}


def simulate(federation: Federation, out: Path, *options: str) -> dict[str, Any]:
    """The result of `headwater run` with the configuration that all parties have."""
    config = federation.found["server"].path / "config.toml"
    command("run", str(config), "--out", str(out), "--force", "--quiet", *(options or ("--engine", "inline")))
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found


def command(*words: str, seconds: float = 600.0) -> str:
    """What a command of headwater's prints."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PLAIN, *words], capture_output=True, text=True, timeout=seconds, check=True
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"headwater {' '.join(words)} failed: {error.stderr.strip()}") from error
    return done.stdout


def free_ports(count: int) -> int:
    """The first of so many ports of 127.0.0.1 in a row that nobody listens at. None of them is given to an outgoing
    connection meanwhile."""
    for first in random.SystemRandom().sample(range(LOWEST, HIGHEST), 200):
        if all(map(_is_free, range(first, first + count))):
            return first
    raise RuntimeError(f"there are no {count} free ports in a row on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def until(
    condition: Callable[[], object], what: str, seconds: float, why: Callable[[], str] = lambda: "", every: float = 0.1
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}; {why()}")
        time.sleep(every)


# -- processes of this machine, by what Linux tells about them

Process = tuple[int, str]  # number and time of start: a number may go to somebody else


def descendants(pid: int) -> set[Process]:
    """The processes below one."""
    parents: dict[int, list[Process]] = {}
    for other in _pids():
        if (told := _stat(other)) is not None:
            parents.setdefault(int(told[1]), []).append((other, told[19]))
    found: set[Process] = set()
    queue = [pid]
    while queue:
        below = parents.get(queue.pop(), [])
        found.update(below)
        queue += [other for other, _ in below]
    return found


def alive(process: Process) -> bool:
    told = _stat(process[0])
    return told is not None and told[19] == process[1] and told[0] != "Z"


def _pids() -> list[int]:
    proc = Path("/proc")
    return [int(path.name) for path in proc.iterdir() if path.name.isdigit()] if proc.is_dir() else []


def _stat(pid: int) -> list[str] | None:
    """What follows the name in /proc/PID/stat: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None


# -- the command


def _show(federation: Federation, seconds: float) -> None:
    """What the server says as it says it, and once a round a table of everybody."""
    end = time.monotonic() + seconds
    told, shown = 0, 0
    while True:
        for line in federation.said("server")[told:]:
            print(f"server: {line}", flush=True)
            told += 1
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


def main(given: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("config", nargs="?", help="as `headwater run` takes it")
    asked.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets")
    asked.add_argument("--out", type=Path, default=Path("runs/deploy-demo"))
    asked.add_argument("--seconds", type=float, default=600.0, help="in which the federation must have finished")
    words = asked.parse_args(given)
    for asking in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asking, signal.default_int_handler)
    out: Path = words.out
    try:
        print(f"Writing a folder for each party to {out} ...", flush=True)
        config = Config.load(words.config, [*(() if words.config else SHORT), *words.sets])
        with Federation.init(out, config) as federation:
            print(f"Starting {len(federation.found)} processes: {', '.join(federation.names())}", flush=True)
            federation.start()
            _show(federation, words.seconds)
            ends = federation.wait(60)
        print(f"All {len(ends)} processes have ended by themselves; what has left three of them:")
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
