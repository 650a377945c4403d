"""A network of namespaces on this machine: one for each party, joined by a bridge, with faults made on purpose.

The bridge is in a namespace of its own, so the machine's own network is not touched. A namespace lives as long as a
process that holds it, whose standard input is this process: nothing is left, even if this process is killed. Names of
parties are resolved by one file of hosts, which only they see. It needs Linux, root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

COMMANDS = ("ip", "nsenter", "unshare", "mount")
TRIAL = "ip link add name near type veth peer name far && ip link add name joint type bridge"
HOLD = "ip link set lo up && echo ready && exec cat"
SEE_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'
DOMAIN = "test"  # reserved for tests: no name server knows it
PREFIX = "10.77"
MASK = 16
DELAY, LOSS = 0.2, 0.02  # seconds and share of the packets, in each direction
SHORT = 30.0  # seconds for a command
PROXIES = ("http_proxy", "https_proxy", "all_proxy")  # parties of these namespaces reach none


def missing() -> str:
    """Why there can be no network of namespaces here, as a sentence; empty if there can be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a network of namespaces needs root on Linux"
    if absent := [name for name in COMMANDS if shutil.which(name) is None]:
        return f"a network of namespaces needs the commands {', '.join(absent)}: apt-get install iproute2 util-linux"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", TRIAL], capture_output=True, text=True, timeout=SHORT
    )
    return f"no network of namespaces can be made here: {tried.stderr.strip()}" if tried.returncode else ""


class Networks:
    """A namespace for each name, with an address on a common bridge. Use it with `with`.

    Args:
        names: of parties.
        place: directory for the file of hosts.
    """

    def __init__(self, names: Sequence[str], place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.hosts = place / "hosts"
        self.address: dict[str, str] = {}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._relays: dict[str, subprocess.Popen[str]] = {}
        self._given = 0  # addresses so far; none is given twice
        try:
            self._hold("")
            self._run("", "ip", "link", "add", "name", "bridge", "type", "bridge")
            self._run("", "ip", "link", "set", "bridge", "up")
            self.netem = self._has_netem()
            for name in names:
                self._add(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @staticmethod
    def host(name: str) -> str:
        """The name under which others reach a party."""
        return f"{name}.{DOMAIN}"

    def words(self, name: str) -> list[str]:
        """The words before a command that runs in the namespace of a party; its process id stays the same."""
        clean = ["env", *(word for proxy in PROXIES for word in ("-u", proxy, "-u", proxy.upper()))]
        return [*self._enter(name), *clean, "unshare", "--mount", "sh", "-c", SEE_HOSTS, str(self.hosts)]

    def close(self) -> None:
        """Remove all namespaces. Processes in them should have ended: they keep theirs alive."""
        for process in (*self._relays.values(), *self._holders.values()):
            _end(process)
        self._relays.clear()
        self._holders.clear()

    # -- faults

    def cut(self, name: str) -> None:
        """Take the link of a party down until `mend`."""
        self._run("", "ip", "link", "set", "dev", name, "down")

    def mend(self, name: str) -> None:
        """End `cut` and `slow`."""
        self._run("", "ip", "link", "set", "dev", name, "up")
        if self.netem:
            for where, link in (("", name), (name, "eth0")):
                self._run(where, "tc", "qdisc", "del", "dev", link, "root", check=False)
        elif (relay := self._relays.pop(name, None)) is not None:
            _end(relay)
            self._run("", "ip", "link", "del", "dev", f"{name}-near")
            self._run("", "ip", "link", "set", "dev", name, "master", "bridge")

    def slow(self, name: str, delay: float = DELAY, loss: float = LOSS, seed: int = 0) -> None:
        """Delay packets of a party, and lose some, in each direction, until `mend`.

        Args:
            delay: seconds.
            loss: share of the packets.
            seed: of what is lost, where frames are passed on by `slow_link.py`; netem draws its own numbers.
        """
        if self.netem:
            netem = ("netem", "delay", f"{1000 * delay:.0f}ms", "loss", f"{100 * loss:g}%")
            for where, link in (("", name), (name, "eth0")):
                self._run(where, "tc", "qdisc", "replace", "dev", link, "root", *netem)
            return
        near, far = f"{name}-near", f"{name}-far"
        self._run("", "ip", "link", "add", "name", near, "type", "veth", "peer", "name", far)
        for link in (near, far):
            self._run("", "ip", "link", "set", "dev", link, "up")
        self._run("", "ip", "link", "set", "dev", name, "nomaster")
        self._run("", "ip", "link", "set", "dev", far, "master", "bridge")
        program = str(Path(__file__).with_name("slow_link.py"))
        settings = ("--delay", str(delay), "--loss", str(loss), "--seed", str(seed))
        self._relays[name] = _start([*self._enter(""), sys.executable, program, name, near, *settings])

    def move(self, name: str) -> str:
        """Give a party another address in place of its own, and its name with it. Returns the new one."""
        self._run(name, "ip", "address", "flush", "dev", "eth0", "scope", "global")
        self._give(name)
        return self.address[name]

    # -- parts

    def _add(self, name: str) -> None:
        holder = self._hold(name)
        peer = ("peer", "name", "eth0", "netns", str(holder.pid))
        self._run("", "ip", "link", "add", "name", name, "type", "veth", *peer)
        self._run("", "ip", "link", "set", "dev", name, "master", "bridge", "up")
        self._run(name, "ip", "link", "set", "eth0", "up")
        self._give(name)

    def _give(self, name: str) -> None:
        self._given += 1
        high, low = divmod(self._given, 250)
        self.address[name] = f"{PREFIX}.{high}.{low + 1}"
        self._run(name, "ip", "address", "add", f"{self.address[name]}/{MASK}", "dev", "eth0")
        lines = ["127.0.0.1 localhost", *(f"{at} {self.host(party)}" for party, at in self.address.items())]
        with self.hosts.open("r+" if self.hosts.exists() else "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")  # in place, since the parties see this very file
            file.truncate()

    def _hold(self, name: str) -> subprocess.Popen[str]:
        self._holders[name] = holder = _start(["unshare", "--net", "sh", "-c", HOLD])
        return holder

    def _enter(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net", "--"]

    def _run(self, where: str, *words: str, check: bool = True) -> bool:
        done = subprocess.run([*self._enter(where), *words], capture_output=True, text=True, timeout=SHORT)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed for {where or 'the bridge'}: {done.stderr.strip()}")
        return not done.returncode

    def _has_netem(self) -> bool:
        """Whether the kernel can delay and lose packets itself."""
        tried = ("tc", "qdisc", "add", "dev", "bridge", "root", "netem", "delay", "1ms")
        if shutil.which("tc") is None or not self._run("", *tried, check=False):
            return False
        return self._run("", "tc", "qdisc", "del", "dev", "bridge", "root")


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that says `ready` and ends when its standard input is closed."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{' '.join(words)} failed: {_end(process)}")
    return process


def _end(process: subprocess.Popen[str]) -> str:
    """Close its standard input and wait for it. Returns what it wrote as errors."""
    try:
        return process.communicate(timeout=5)[1].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1].strip()
