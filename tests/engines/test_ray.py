"""What every engine promises, on Ray, and what only Ray can get wrong.

Ray listens on the network, so every cluster here is started in a network of its own that has nothing but a loopback,
by a process that is started for it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.cli.options import Options
from headwater.core import serialization
from headwater.engines.ray.cluster import join
from headwater.engines.ray.object_store import info_of, outline, packed, unpacked
from headwater.errors import ConfigError
from processes import output_of, own_network

pytest.importorskip("ray", reason="ray is not installed; get it with: pip install 'headwater[ray]'")
HERE = Path(__file__).parent
HEADWATER = [sys.executable, "-c", "import sys; from headwater.cli.app import main; sys.exit(main())"]
PATIENCE = 1800  # seconds; on a busy machine all of this is slow


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The words before a command that is to have a network of its own."""
    return own_network()


def running_in(network: str) -> list[str]:
    """Commands of the processes that belong to a network."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns" / "net") == network:
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it is gone
            continue
    return found


def passes(alone: list[str], *words: str) -> None:
    """Run tests in a network of its own."""
    command = [*alone, sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"HEADWATER_TEST_ENGINES": "ray", "OMP_NUM_THREADS": "1"}
    assert " passed" in output_of(command, PATIENCE, environment, HERE.parent.parent)


def test_ray_gives_the_same_bits(alone: list[str]) -> None:
    """Of a plain run, and of secure sums with clients lost between their steps."""
    tests = ("test_every_engine_gives_the_same_bits[fedavg]", "test_every_engine_gives_the_same_bits_of_secure_sums")
    passes(alone, *(f"{HERE / 'test_contract.py'}::{test}" for test in tests))


@pytest.mark.thorough
def test_the_contract_holds_on_ray(alone: list[str]) -> None:
    passes(alone, str(HERE / "test_contract.py"), "-k", "not photographs and not close_is_safe")


slow = pytest.mark.skipif(
    os.environ.get("HEADWATER_SLOW") != "1", reason="takes minutes: set HEADWATER_SLOW=1 to run this test"
)


@slow
def test_places_lost_workers_lost_nodes_and_a_lost_driver(alone: list[str]) -> None:
    passes(alone, str(HERE / "inside_ray.py"))


@pytest.fixture
def running(alone: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on a cluster of its own, after its first checkpoint."""
    words = ["run", "fedhead", "--engine", "ray", "--rounds", "100000", "--out", str(tmp_path / "out")]
    small = ["--set", "data.fraction=0.3", "--set", "partition.clients=4", "--set", "local.epochs=1", "--quiet"]
    process = subprocess.Popen(
        [*alone, *HEADWATER, *words, *small],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + PATIENCE
        while not any((tmp_path / "out").glob("checkpoints/round-*.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "waited in vain for a checkpoint"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


@slow
def test_ctrl_c_ends_the_run_and_the_cluster_that_it_started(running: subprocess.Popen[str], tmp_path: Path) -> None:
    network = os.readlink(f"/proc/{running.pid}/ns/net")
    assert any("raylet" in command for command in running_in(network))
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    output, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, errors
    assert errors.strip().endswith(f"carry on with: headwater resume {shlex.quote(str(tmp_path / 'out'))}")
    assert output == ""
    assert len(errors.splitlines()) == 1  # Ray has nothing to add
    end = time.monotonic() + PATIENCE
    while left := running_in(network):
        assert time.monotonic() < end, left
        time.sleep(0.1)


# -- without a cluster


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:9", r"nothing answers at 127.0.0.1:9 \(.*\); name another with --address"),
        ("127.0.0.1", r"engine.address takes host:port, such as 10.0.0.1:6379, or auto, got '127.0.0.1'"),
        ("ray://10.0.0.1:10001", r"run headwater on a node of the cluster, with --address 10.0.0.1:6379 or auto"),
    ],
)
def test_an_address_that_is_of_no_use_is_refused(address: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        join(address, 0.0)


def test_an_address_belongs_to_ray() -> None:
    assert Options(address="auto").keys() == {"engine__name": "ray", "engine__address": "auto"}
    with pytest.raises(ConfigError, match="--address is that of a Ray cluster and belongs to --engine ray"):
        Options(engine="pool", address="auto").keys()


def test_a_value_is_the_same_after_the_store_and_known_by_its_outline() -> None:
    """Arrays of every kind, also empty ones and ones without a shape; a part is known without its numbers."""
    import torch

    value = {
        "a": (torch.arange(6).view(2, 3).T, torch.tensor(2.5), torch.zeros(0, 3)),
        "b": [torch.ones(3, dtype=torch.bfloat16), torch.tensor([True]), None, 3],
    }
    held = packed(value)
    for found in (unpacked(held), unpacked(held, copy=True)):
        assert all(torch.equal(x, y) for x, y in zip(found["a"], value["a"], strict=True))
        assert all(x.is_contiguous() for x in found["a"])
        assert torch.equal(found["b"][0], value["b"][0])
        assert (found["b"][1].dtype, found["b"][2:]) == (torch.bool, [None, 3])
    told = outline(held)
    assert told is not None
    for part in ((), ("a",), ("a", 0), ("b", 0), ("b", 3)):
        inner = serialization.part_of(value, part)
        assert info_of(told, part) == serialization.info(inner)
    assert outline(packed(torch.ones(3))) is None
