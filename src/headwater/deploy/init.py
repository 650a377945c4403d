"""`headwater deploy init`: from an experiment to the folders of its parties, with the same split and configuration.

All folders are written to a draft directory first, which then takes the place of the old one: all or none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.algorithms import ALGORITHMS
from headwater.config import ARRAYS, CUSTOM, Config
from headwater.core.membership import Membership
from headwater.data import PATHS, kind_of_path
from headwater.deploy import approval, status
from headwater.deploy.agreement import VERSION, Agreement, public_rows
from headwater.deploy.amendment import as_file
from headwater.deploy.folder import PARTY, find
from headwater.deploy.keys import need_cryptography
from headwater.deploy.party_files import CA, FILES, FolderWriter, WrittenParty, request_name, unit_name
from headwater.deploy.rehearsed_rounds import RehearsedRun
from headwater.deploy.transport import PORTS, Address
from headwater.errors import ConfigError, OutputError
from headwater.training.experiment import Experiment
from headwater.training.opening import check_needs

MOST = 1000  # clients, since each gets a folder


@dataclass(frozen=True)
class WrittenFederation:
    """What `init` wrote.

    Args:
        out: directory of all folders.
        sectors: clients by sector.
        sha256: of federation.json.
        left_out: clients without rows, and sectors that have no other clients.
        packages: of the user's own, which every party needs.
        local: whether all links are on this machine.
        enrol: whether the parties make their keys themselves.
    """

    out: Path
    parties: tuple[WrittenParty, ...]
    sectors: dict[str, tuple[str, ...]]
    sha256: str
    left_out: tuple[str, ...]
    packages: tuple[str, ...]
    local: bool
    enrol: bool = False


def check(config: Config, out: Path, *, force: bool) -> None:
    """Check all that can be checked before the data is read.

    Args:
        out: directory for the folders.
        force: whether a federation that is there may be replaced.

    Raises:
        ConfigError: if this configuration cannot be deployed.
        OutputError: if the folders cannot be written to `out`.
    """
    if ALGORITHMS.info(config.method).pooled:
        raise ConfigError(
            f"method {config.method!r} cannot be deployed: it pools every client's rows in one place, which is what a "
            "federation exists to avoid; train it with `headwater run`, or choose another algorithm.name"
        )
    if config.privacy.secure != "none" and not config.privacy.secure_masks:
        raise ConfigError(
            "privacy.secure_masks = false leaves out the masks of a simulation, and a deployed federation needs them; "
            "set privacy.secure_masks = true"
        )
    if config.attack.kind != "none":
        raise ConfigError(
            f"attack.kind = {config.attack.kind!r} simulates an attack, and parties of a deployed federation do not; "
            "set attack.kind = 'none'"
        )
    if config.model.start:
        raise ConfigError(
            "model.start is a file of this machine, which the other parties do not have; remove it to deploy with new "
            "weights"
        )
    if config.partition.local_test and config.partition.local_test_source == "test":
        raise ConfigError(
            "partition.local_test_source = 'test' draws clients' own tests from the common test set, which only the "
            "server has; use 'train', or set partition.local_test = 0"
        )
    if config.partition.clients > MOST:
        raise ConfigError(
            f"every client gets a folder of its own, and {config.partition.clients} are too many (at most {MOST}); "
            "lower partition.clients"
        )
    _server_address(config)
    _sector_addresses(config)
    need_cryptography()
    _check_out(out, force)


def init(experiment: Experiment, out: Path, *, force: bool = False, enrol: bool = False) -> WrittenFederation:
    """Write a folder for each party, and one for the authority that signed their certificates.

    Args:
        experiment: whose split and configuration the parties get.
        out: directory for the folders.
        force: replace a federation that is there, with new keys.
        enrol: make no keys; each party makes its own with `headwater deploy enrol`.

    Raises:
        ConfigError, OutputError: as `check`.
    """
    config = experiment.config
    check(config, out, force=force)
    check_needs(experiment)
    portable = _portable(config)
    partition = experiment.partition
    lengths = partition.lengths.tolist()
    every: dict[str, list[str]] = {f"s{number}": [] for number in range(max(partition.sectors) + 1)}
    for number, sector in enumerate(partition.sectors):
        every[f"s{sector}"] += [f"c{number}"] if lengths[number] else []
    empty = [f"c{number}" for number, length in enumerate(lengths) if not length]
    sectors = {sector: tuple(clients) for sector, clients in every.items() if clients}
    left_out = (*empty, *(sector for sector in every if sector not in sectors))
    server = _server_address(portable)
    hosts = _host_addresses(portable, server, [*every])
    agreed = _agreed(experiment, portable, sectors)
    sha256 = hashlib.sha256(agreed).hexdigest()
    _check_rehearsal(experiment, portable, sectors)
    whole = out.resolve()
    draft = whole.with_name(f".{whole.name}.{os.getpid()}.draft")
    try:
        writer = FolderWriter(experiment, portable, sectors, server, hosts, agreed, sha256, enrol)
        parties = tuple(writer.write(draft))
        _check_out(out, force)
        _clear(whole)
        _move(draft, whole)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    named = (config.method, config.model.name)
    packages = tuple(dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in named if ":" in name))
    local = all(address.loopback for address in (server, *hosts.values()))
    return WrittenFederation(out, parties, sectors, sha256, left_out, packages, local, enrol)


def _check_rehearsal(experiment: Experiment, config: Config, sectors: dict[str, tuple[str, ...]]) -> None:
    """Raise ConfigError if parties could not derive from the configuration what they may be asked."""
    split, names = experiment.split, experiment.class_names
    facts = (config, split.shape, split.classes, split.words, names, sectors, "")
    census = {client: experiment.tree.sizes[client] for clients in sectors.values() for client in clients}
    RehearsedRun(Agreement(*facts, public=public_rows(split)), Membership(census), None).round(1)


def _agreed(experiment: Experiment, config: Config, sectors: dict[str, tuple[str, ...]]) -> bytes:
    """The content of federation.json."""
    split = experiment.split
    fields: dict[str, Any] = {
        "version": VERSION,
        "config": config.to_toml(),
        "shape": list(split.shape),
        "classes": split.classes,
        "words": split.words,
        "class_names": list(experiment.class_names),
        "sectors": sectors,
        "public": public_rows(split),
    }
    if names := _names_in_data(experiment, sectors):
        fields["names"] = names
    if experiment.prepared:
        fields["preparation"] = experiment.prepared
    return as_file(fields)


def _names_in_data(experiment: Experiment, sectors: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """What the data itself calls sectors and clients."""
    partition = experiment.partition
    names: dict[str, str] = {}
    if partition.sector_names:
        names |= {sector: partition.sector_names[int(sector[1:])] for sector in sectors}
    if partition.client_names:
        names |= {c: partition.client_names[int(c[1:])] for clients in sectors.values() for c in clients}
    return names


def _portable(config: Config) -> Config:
    """The configuration without paths of this machine, where no party reads its data. A folder of data cannot be
    described elsewhere; the label of its tables is in `preparation`."""
    config = config.merged({"data": {"dir": ""}})
    if config.data.name in (ARRAYS, CUSTOM) or kind_of_path(config.data.name) != PATHS[2]:
        return config
    return config.merged({"data": {"name": ARRAYS, "label": Config().data.label}})


# -- addresses of links


def _server_address(config: Config) -> Address:
    return _reachable(config.deploy.server_address, "deploy.server_address")


def _sector_addresses(config: Config) -> list[Address]:
    texts = enumerate(config.deploy.sector_addresses)
    return [_reachable(text, f"deploy.sector_addresses[{at}]") for at, text in texts]


def _reachable(text: str, key: str) -> Address:
    address = Address.parse(text, key)
    if address.wildcard:
        raise ConfigError(
            f"{key} is where others reach the link, and {address} cannot be dialled; give a host's own name"
        )
    return address


def _host_addresses(config: Config, server: Address, sectors: Sequence[str]) -> dict[str, Address]:
    """The address of each sector's link: as configured, else the ports after the server's."""
    hosts = _sector_addresses(config)
    if hosts and len(hosts) != len(sectors):
        raise ConfigError(
            f"deploy.sector_addresses names {len(hosts)} addresses for {len(sectors)} sectors ({sectors[0]} to "
            f"{sectors[-1]}); give one for each, or none to have them on the server's host"
        )
    if not hosts and server.port + len(sectors) > PORTS:
        raise ConfigError(
            f"{len(sectors)} sectors take the ports after {server.port}, the server's, and there are not so many; "
            "lower the port of deploy.server_address, or set deploy.sector_addresses"
        )
    hosts = hosts or [server.of_sector(number) for number in range(len(sectors))]
    for at, address in enumerate(hosts):
        if address in (server, *hosts[:at]):
            raise ConfigError(
                f"two links cannot be at {address}; give each of deploy.sector_addresses another port or host"
            )
    return dict(zip(sectors, hosts, strict=True))


# -- the directory of all folders


def _check_out(out: Path, force: bool) -> None:
    for part in (out, *out.parents):
        if part.exists() and not part.is_dir():
            raise OutputError(f"{part} is a file, so folders cannot go to {out}; choose another --out")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / CA / "ca.crt").is_file() or not (out / "server" / PARTY).is_file():
        raise OutputError(f"{out} is not empty and holds no federation; choose another --out")
    if not force:
        raise OutputError(
            f"{out} already holds a federation; choose another --out, or replace it with --force, which makes new "
            "keys, so that every party needs its folder again"
        )
    running = [party.name for party in find(out) if status.read(party.state)["up"]]
    if running:
        raise OutputError(
            f"{', '.join(running)} of {out} {'is' if len(running) == 1 else 'are'} running; end that first"
        )


def _clear(out: Path) -> None:
    """Remove the files of a federation, and none that the user put beside them."""
    if not out.exists() or not any(out.iterdir()):
        return
    for party in find(out):
        for name in (*FILES, unit_name(party.name), request_name(party.name)):
            (party.path / name).unlink(missing_ok=True)
        for name in ("keys", "state"):
            shutil.rmtree(party.path / name, ignore_errors=True)
        if not any(party.path.iterdir()):
            party.path.rmdir()
    shutil.rmtree(out / CA, ignore_errors=True)
    (out / approval.FILE).unlink(missing_ok=True)


def _move(draft: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        draft.rename(out)
        return
    for item in sorted(draft.rglob("*")):  # folders come before their content
        target = out / item.relative_to(draft)
        if item.is_dir():
            target.mkdir(exist_ok=True)
            target.chmod(0o700)
        else:
            item.replace(target)
    out.chmod(0o700)
