"""The Ray cluster that this process uses: an existing one, or one that it starts on this machine alone."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headwater.engines.workers.process import environment
from headwater.errors import ConfigError, MissingExtra, said

SECTOR = "headwater_"  # a node that offers the resource headwater_s0 takes the tasks of sector s0
PATIENCE = 20.0  # seconds to wait for a free CPU
CONNECT_TIMEOUT = 5.0  # seconds for an address to answer
MIN_STORE = 80 << 20  # bytes; the smallest object store that Ray accepts
WAY_OUT = "name another with --address, leave it out to start one on this machine, or use --engine pool"
TOKEN = "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as its nodes have them; else "


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Args:
        id: Ray's id.
        sectors: sectors whose tasks it takes.
        room: workers that it has free CPUs for.
        here: whether this process runs on it, so that its values are lost only with this process.
    """

    id: str
    sectors: frozenset[str]
    room: int
    here: bool


@dataclass
class Cluster:
    """The connection of this process to a cluster.

    Args:
        address: as given by the user; empty for a cluster of this process.
        ours: whether this process started it, and ends it. Workers then reserve no CPUs, since nothing else uses it.
        joined: whether Headwater connected to it, and not a program that uses Ray itself.
        users: engines of this process that use it.
    """

    address: str
    ours: bool
    joined: bool
    users: int = 1

    def actor_options(self, threads: int) -> dict[str, Any]:
        """Return Ray's options for every worker."""
        added = {key: value for key, value in environment(threads).items() if os.environ.get(key) != value}
        if not self.ours:
            added.pop("PYTHONPATH", None)  # other machines have their own
        cpus = 0 if self.ours else threads
        return {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "runtime_env": {"env_vars": added}}

    def nodes(self, threads: int) -> list[Node]:
        """Return the nodes that are alive: first this one, then those that offer sectors."""
        ray = import_ray()
        here, free = ray.get_runtime_context().get_node_id(), ray._private.state.available_resources_per_node()
        nodes = []
        for each in ray.nodes():
            if each["Alive"]:
                id, offers = each["NodeID"], each["Resources"]
                sectors = frozenset(name.removeprefix(SECTOR) for name in offers if name.startswith(SECTOR))
                nodes.append(Node(id, sectors, int(free.get(id, {}).get("CPU", 0) // threads), id == here))
        return sorted(nodes, key=lambda node: (not node.here, not node.sectors, node.id))

    def place_workers(self, workers: int, threads: int) -> list[Node]:
        """Return a node for each worker, round robin.

        Args:
            workers: how many; 0 for as many as there are free CPUs. There may be fewer if there is no room.
            threads: CPUs of each.

        Raises:
            ConfigError: no node had room in time.
        """
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


def gpu_shares(workers: Sequence[str], gpus: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the share of a GPU that each worker of a node gets, by node. Workers of a node share its GPUs evenly.

    Args:
        workers: the node of each worker.
        gpus: GPUs of each node; None asks Ray.

    Raises:
        ConfigError: a worker is on a node without a GPU.
    """
    if gpus is None:
        gpus = {each["NodeID"]: each["Resources"].get("GPU", 0) for each in import_ray().nodes() if each["Alive"]}
    counts = Counter(workers)
    if any(gpus.get(node, 0) < 1 for node in counts):
        raise ConfigError(
            "engine.device is a GPU, and a node of the Ray cluster has none; use --device cpu, or a cluster in which "
            "every node has one"
        )
    return {node: 1 / math.ceil(count / gpus[node]) for node, count in counts.items()}


_lock = threading.Lock()
_cluster: Cluster | None = None


def join(address: str, memory: float) -> Cluster:
    """Connect this process to a cluster, or reuse its connection.

    Args:
        address: host:port, "auto" for the cluster that this machine belongs to, or empty to start one here.
        memory: megabytes of the object store of a new cluster; 0 for Ray's default.

    Raises:
        ConfigError: the cluster cannot be reached or started, or this process is connected to another one.
    """
    global _cluster
    ray = import_ray()
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
    """End an engine's use of a cluster; the last one disconnects, and ends a cluster that this process started."""
    global _cluster
    with _lock:
        cluster.users -= 1
        if cluster is _cluster and not cluster.users:
            _cluster = None
            if cluster.joined:
                import_ray().shutdown()


def import_ray() -> Any:
    """Import Ray with its usage statistics and advertising messages off.

    Raises:
        MissingExtra: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its default gives workers a low priority
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about a future version
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("Ray", "ray") from error
    return ray


def _begin(ray: Any, address: str, memory: float) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.FATAL, "configure_logging": True}
    if not address:
        store = {"object_store_memory": max(MIN_STORE, int(memory * (1 << 20)))} if memory else {}
        # No CPUs, since our workers reserve none: Ray would start one idle process per CPU.
        own = {"address": "local", "num_cpus": 0, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        with _config_error("Ray could not be started", "use --engine pool"), _own_signals(), _loopback(ray):
            ray.init(**own, **store, **quiet)
        return
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is for clients outside a cluster, whose values would all go through one proxy; run headwater "
            f"on a node of the cluster, with --address {address.removeprefix('ray://').partition(':')[0]}:6379 or auto"
        )
    if address != "auto":
        _reach(address)
    with _config_error(f"the Ray cluster at {address} cannot be used", TOKEN + WAY_OUT), _own_signals():
        ray.init(address=address, **quiet)


def _reach(address: str) -> None:
    """Check that an address answers. Ray itself would try for a minute and then end the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"engine.address takes host:port, such as 10.0.0.1:6379, or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConfigError(f"nothing answers at {address} ({said(error)}); {WAY_OUT}") from None


@contextmanager
def _config_error(what: str, cure: str) -> Iterator[None]:
    """Raise any exception as a ConfigError that says what failed and what helps."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{what}: {said(error).rstrip('.')}; {cure}") from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces: a run saves its state when it is terminated."""
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main_thread:
            with suppress(TypeError):  # the handler was not set by Python
                signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Let Ray listen on 127.0.0.1. On Linux it replaces that by an address that other machines can reach."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
