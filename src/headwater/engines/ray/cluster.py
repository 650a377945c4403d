"""The Ray cluster of this process: one that is there already, or one of its own on this machine alone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headwater.engines.workers.process import environment
from headwater.errors import ConfigError, MissingExtra, said

SECTOR = "headwater_"  # a node that offers the resource headwater_s0 takes the tasks of sector s0
PATIENCE = 20.0  # seconds that others have to give back a CPU
REACH = 5.0  # seconds for an address to answer
LEAST = 80 << 20  # bytes below which Ray makes no store
WAY_OUT = "name another with --address, leave it out to start one on this machine, or use --engine pool"
TOKEN = "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as its nodes have them; else "


@dataclass(frozen=True)
class Node:
    id: str
    sectors: frozenset[str]  # whose tasks it takes
    room: int  # workers that it has free CPUs for
    here: bool  # where this process is: what is kept here is there as long as this process is


@dataclass
class Cluster:
    """`ours`: started by this process, and ended by it. Workers then take no CPUs: there is nobody else to ask."""

    address: str
    ours: bool
    joined: bool  # by us, and not by a program that uses Ray itself
    users: int = 1

    def options(self, threads: int) -> dict[str, Any]:
        """Of every worker."""
        added = {key: value for key, value in environment(threads).items() if os.environ.get(key) != value}
        if not self.ours:
            added.pop("PYTHONPATH", None)  # other machines have their own
        cpus = 0 if self.ours else threads
        return {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "runtime_env": {"env_vars": added}}

    def nodes(self, threads: int) -> list[Node]:
        """Those that are alive now; this one first, then those of sectors."""
        ray = imported()
        here, free = ray.get_runtime_context().get_node_id(), ray._private.state.available_resources_per_node()
        found = []
        for each in ray.nodes():
            if each["Alive"]:
                id, offers = each["NodeID"], each["Resources"]
                sectors = frozenset(name.removeprefix(SECTOR) for name in offers if name.startswith(SECTOR))
                found.append(Node(id, sectors, int(free.get(id, {}).get("CPU", 0) // threads), id == here))
        return sorted(found, key=lambda node: (not node.here, not node.sectors, node.id))

    def places(self, workers: int, threads: int) -> list[Node]:
        """A node for each worker, by turns; fewer than asked for where there is no room for more."""
        if self.ours:
            return [self.nodes(threads)[0]] * (workers or os.cpu_count() or 1)
        end = time.monotonic() + PATIENCE
        while not (free := [node for node in self.nodes(threads) if node.room]):
            if time.monotonic() > end:
                raise ConfigError(
                    f"the Ray cluster at {self.address} has no node with {threads} free CPU{'s' * (threads > 1)}; "
                    "wait until others are done with it, add a node, or use --engine pool"
                )
            time.sleep(0.5)
        turns = [node for turn in range(max(node.room for node in free)) for node in free if node.room > turn]
        return turns[:workers] if workers else turns


_lock = threading.Lock()
_cluster: Cluster | None = None


def join(address: str, memory: float) -> Cluster:
    """The cluster at an address, `auto` for the one that this machine belongs to; without one, a new one here."""
    global _cluster
    ray = imported()
    with _lock:
        if _cluster is not None and ray.is_initialized():
            if _cluster.address != address and _cluster.joined:
                raise ConfigError(
                    f"this process is in the Ray cluster at {_cluster.address or 'this machine'} and cannot be in "
                    f"that at {address or 'this machine'} too; close the other engine first"
                )
            _cluster.users += 1
        elif ray.is_initialized():
            _cluster = Cluster(address, ours=False, joined=False)
        else:
            _begin(ray, address, memory)
            _cluster = Cluster(address, ours=not address, joined=True)
        return _cluster


def leave(cluster: Cluster) -> None:
    """Who is last ends what was begun here, and nothing else."""
    global _cluster
    with _lock:
        cluster.users -= 1
        if cluster is _cluster and not cluster.users:
            _cluster = None
            if cluster.joined:
                imported().shutdown()


def imported() -> Any:
    """Ray, quietly."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else whatever runs beside its workers goes first
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it talks about what it will do in future
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("Ray", "ray") from error
    return ray


def _begin(ray: Any, address: str, memory: float) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.FATAL, "configure_logging": True}
    if not address:
        store = {"object_store_memory": max(LEAST, int(memory * (1 << 20)))} if memory else {}
        # No CPUs, since only workers of ours take any: Ray would start processes beforehand that nobody needs.
        own = {"address": "local", "num_cpus": 0, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        with _told("Ray could not be started", "use --engine pool"), _own_signals(), _loopback(ray):
            ray.init(**own, **store, **quiet)
        return
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is for clients outside a cluster, whose values would all go through one proxy; run headwater "
            f"on a node of the cluster, with --address {address.removeprefix('ray://').partition(':')[0]}:6379 or auto"
        )
    if address != "auto":
        _reach(address)
    with _told(f"the Ray cluster at {address} cannot be used", TOKEN + WAY_OUT), _own_signals():
        ray.init(address=address, **quiet)


def _reach(address: str) -> None:
    """Ray itself tries for a minute, and then ends the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"engine.address takes host:port, such as 10.0.0.1:6379, or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise ConfigError(f"nothing answers at {address} ({said(error)}); {WAY_OUT}") from None


@contextmanager
def _told(what: str, cure: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{what}: {said(error).rstrip('.')}; {cure}") from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; here it stays what it was, for a run leaves its state when it is asked to end."""
    heeded = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if heeded:
            with suppress(TypeError):  # set by something that is no Python
                signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Ray takes 127.0.0.1 for a mistake and listens where others can reach it, except on systems that would ask."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
