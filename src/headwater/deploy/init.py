"""From an experiment to the folders of its parties: the same split, the same configuration, and keys for everybody."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from headwater.config import ARRAYS, CUSTOM, Config
from headwater.core import serialization
from headwater.data import PATHS, kind_of_path
from headwater.deploy import status, units
from headwater.deploy.address import PORTS, Address
from headwater.deploy.folder import CONFIG, DATA, FEDERATION, PUBLIC, VERSION
from headwater.deploy.keys import Authority, Pair, need_cryptography, node
from headwater.deploy.listing import PARTY, find
from headwater.deploy.own import describe
from headwater.errors import ConfigError, OutputError
from headwater.training.experiment import Experiment

CA = "ca"
MOST = 1000  # clients: each gets a folder
REFUSED = {
    "centralized": "pools every client's rows in one place, which is what a federation exists to avoid; train it with "
    "`headwater run`, or choose another algorithm.name"
}
README = "README.md"
COMPOSE = "compose.yaml"
OURS = (PARTY, FEDERATION, CONFIG, PUBLIC, DATA, README, COMPOSE)


@dataclass(frozen=True)
class Party:
    """One folder that was written."""

    name: str
    role: str
    listens: str = ""
    joins: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Written:
    out: Path
    parties: tuple[Party, ...]
    sectors: dict[str, tuple[str, ...]]
    sha256: str  # of federation.json
    left_out: tuple[str, ...]  # clients without rows, and sectors of such clients only
    packages: tuple[str, ...]  # of the user's own, which every party needs
    local: bool  # whether all links are on this machine


def check(config: Config, out: Path, *, force: bool) -> None:
    """Refuse what can be refused before the data is read."""
    if config.method in REFUSED:
        raise ConfigError(f"method {config.method!r} cannot be deployed: it {REFUSED[config.method]}")
    if config.partition.clients > MOST:
        raise ConfigError(
            f"every client gets a folder of its own, and {config.partition.clients} are too many (at most {MOST}); "
            "lower partition.clients"
        )
    _server(config)
    for at, address in enumerate(config.deploy.sector_addresses):
        _dialled(Address.parse(address, f"deploy.sector_addresses[{at}]"), f"deploy.sector_addresses[{at}]")
    need_cryptography()
    _check_out(out, force)


def init(experiment: Experiment, out: Path, *, force: bool = False) -> Written:
    """Write a folder for each party, and one for the authority that signed their certificates, all or none of them."""
    check(experiment.config, out, force=force)
    plan = _Plan.of(experiment)
    whole = out.resolve()
    draft = whole.with_name(f".{whole.name}.{os.getpid()}.draft")
    try:
        parties = tuple(plan.write(draft))
        _check_out(out, force)
        _clear(whole)
        _move(draft, whole)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    config = experiment.config
    named = (config.method, config.model.name)
    packages = tuple(dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in named if ":" in name))
    local = all(address.loopback for address in (plan.server, *plan.hosts.values()))
    return Written(out, parties, plan.sectors, plan.sha256, plan.left_out, packages, local)


@dataclass(frozen=True)
class _Plan:
    """Who is there, who speaks to whom, and what all of them agree on."""

    experiment: Experiment
    config: Config
    sectors: dict[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    server: Address
    hosts: dict[str, Address]  # by sector
    agreed: bytes

    @staticmethod
    def of(experiment: Experiment) -> _Plan:
        partition, config = experiment.partition, _portable(experiment.config)
        lengths = partition.lengths.tolist()
        every: dict[str, list[str]] = {f"s{number}": [] for number in range(max(partition.sectors) + 1)}
        for number, sector in enumerate(partition.sectors):
            every[f"s{sector}"] += [f"c{number}"] if lengths[number] else []
        empty = [f"c{number}" for number, length in enumerate(lengths) if not length]
        sectors = {sector: tuple(clients) for sector, clients in every.items() if clients}
        left_out = (*empty, *(sector for sector in every if sector not in sectors))
        server = _server(config)
        hosts = _hosts(config, server, [*every])
        split = experiment.split
        agreed: dict[str, Any] = {
            "version": VERSION,
            "config": config.to_toml(),
            "shape": list(split.shape),
            "classes": split.classes,
            "words": split.words,
            "class_names": list(experiment.class_names),
            "sectors": sectors,
        }
        if names := _names(experiment, sectors):
            agreed["names"] = names
        if told := describe(experiment):
            agreed["preparation"] = told
        text = json.dumps(agreed, indent=1, ensure_ascii=False) + "\n"
        return _Plan(experiment, config, sectors, left_out, server, hosts, text.encode())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.agreed).hexdigest()

    def write(self, out: Path) -> Iterator[Party]:
        """Every folder below `out`."""
        authority = Authority()
        _directory(out)
        _directory(out / CA)
        _write(out / CA / "ca.crt", authority.pair.public)
        _secret(out / CA / "ca.key", authority.pair.private)
        nodes = {party: node(party) for party in (*self.sectors, *(c for cs in self.sectors.values() for c in cs))}
        yield self._server(out / "server", authority, nodes)
        for sector in self.sectors:
            yield self._sector(out / sector, sector, authority, nodes)
        for sector, clients in self.sectors.items():
            for client in clients:
                yield self._client(out / client, client, sector, authority, nodes)

    def _server(self, folder: Path, authority: Authority, nodes: dict[str, Pair]) -> Party:
        party = Party("server", "server", listens=str(self.server))
        self._common(folder, party, {"link": _link(self.server, [*self.sectors])}, authority)
        self._link_keys(folder, "server", self.server, [*self.sectors], authority, nodes)
        split = self.experiment.split
        public = {
            "validation": split.validation,
            "reference": split.reference,
            "reference_labels": split.reference_labels,
            "test": split.test,
        }
        _write(folder / PUBLIC, b"")
        with (folder / PUBLIC).open("wb") as file:
            serialization.write(public, file)
        return party

    def _sector(self, folder: Path, name: str, authority: Authority, nodes: dict[str, Pair]) -> Party:
        host, clients = self.hosts[name], self.sectors[name]
        party = Party(name, "sector", listens=str(host), joins=str(self.server))
        tables = {"above": {"address": str(self.server)}, "link": _link(host, clients)}
        self._common(folder, party, tables, authority)
        self._link_keys(folder, name, host, clients, authority, nodes)
        _node_keys(folder, nodes[name])
        return party

    def _client(self, folder: Path, name: str, sector: str, authority: Authority, nodes: dict[str, Pair]) -> Party:
        rows = self.experiment.partition.indices[int(name[1:])]
        party = Party(name, "client", joins=str(self.hosts[sector]), rows=len(rows))
        tables = {"above": {"address": str(self.hosts[sector])}, "data": {"name": DATA}}
        self._common(folder, party, tables, authority)
        _node_keys(folder, nodes[name])
        own = self.experiment.split.train.take(rows.copy())  # the partition's own array cannot be written to
        _secret(folder / DATA, b"")
        np.savez(folder / DATA, x=own.x.numpy(), y=own.y.numpy())
        return party

    def _common(self, folder: Path, party: Party, tables: dict[str, Any], authority: Authority) -> None:
        _directory(folder)
        _directory(folder / "keys")
        _write(folder / "keys" / "ca.crt", authority.pair.public)
        told = tomli_w.dumps({"role": party.role, "name": party.name, "insecure": False, **tables})
        _write(folder / PARTY, (PARTY_HEAD + told).encode())
        _write(folder / FEDERATION, self.agreed)
        _write(folder / CONFIG, self.config.to_toml().encode())
        members = tuple(tables["link"]["members"]) if "link" in tables else ()
        packages = tuple(name for name in (self.config.method, self.config.model.name) if ":" in name)
        words = units.readme(
            party.role, party.name, listens=party.listens, joins=party.joins, members=members, packages=packages
        )
        _write(folder / README, words.encode())
        _write(folder / units.unit_name(party.name), units.unit(party.role, party.name).encode())
        _write(folder / COMPOSE, units.compose(party.role, party.name).encode())

    def _link_keys(
        self,
        folder: Path,
        name: str,
        reach: Address,
        members: Sequence[str],
        authority: Authority,
        nodes: dict[str, Pair],
    ) -> None:
        pair = authority.link(name, reach)
        _write(folder / "keys" / "link.crt", pair.public)
        _secret(folder / "keys" / "link.key", pair.private)
        _directory(folder / "keys" / "members")
        for member in members:
            _write(folder / "keys" / "members" / f"{member}.pub", nodes[member].public)


PARTY_HEAD = """\
# Who this party is and whom it speaks to. Relative paths start at this folder.
# insecure = true leaves out encryption and keys, for experiments on one machine only.

"""


def _portable(config: Config) -> Config:
    """The configuration without paths that mean something on this machine only: no party reads its data there. What a
    folder holds can only be told where the folder is; the label of its tables stands in `preparation`."""
    config = config.merged({"data": {"dir": ""}})
    if config.data.name in (ARRAYS, CUSTOM) or kind_of_path(config.data.name) != PATHS[2]:
        return config
    return config.merged({"data": {"name": ARRAYS, "label": Config().data.label}})


def _server(config: Config) -> Address:
    return _dialled(Address.parse(config.deploy.server_address, "deploy.server_address"), "deploy.server_address")


def _dialled(address: Address, key: str) -> Address:
    if address.everywhere:
        raise ConfigError(
            f"{key} is where others reach the link, and {address} cannot be dialled; give a host's own name"
        )
    return address


def _hosts(config: Config, server: Address, sectors: Sequence[str]) -> dict[str, Address]:
    given = config.deploy.sector_addresses
    if given and len(given) != len(sectors):
        raise ConfigError(
            f"deploy.sector_addresses names {len(given)} addresses for {len(sectors)} sectors ({sectors[0]} to "
            f"{sectors[-1]}); give one for each, or none to have them on the server's host"
        )
    if not given and server.port + len(sectors) > PORTS:
        raise ConfigError(
            f"{len(sectors)} sectors take the ports after {server.port}, the server's, and there are not so many; "
            "lower the port of deploy.server_address, or set deploy.sector_addresses"
        )
    if given:
        hosts = [Address.parse(text, f"deploy.sector_addresses[{at}]") for at, text in enumerate(given)]
    else:
        hosts = [Address(server.host, server.port + 1 + at) for at in range(len(sectors))]
    for at, address in enumerate(hosts):
        if address in (server, *hosts[:at]):
            raise ConfigError(
                f"two links cannot be at {address}; give each of deploy.sector_addresses another port or host"
            )
    return dict(zip(sectors, hosts, strict=True))


def _link(reach: Address, members: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"address": str(reach.bound)}
    return told | ({"reach": str(reach)} if reach.bound != reach else {}) | {"members": list(members)}


def _names(experiment: Experiment, sectors: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """What the data itself calls sectors and clients."""
    partition = experiment.partition
    found: dict[str, str] = {}
    if partition.sector_names:
        found |= {sector: partition.sector_names[int(sector[1:])] for sector in sectors}
    if partition.client_names:
        found |= {c: partition.client_names[int(c[1:])] for clients in sectors.values() for c in clients}
    return found


def _node_keys(folder: Path, pair: Pair) -> None:
    _secret(folder / "keys" / "node.key", pair.private)
    _write(folder / "keys" / "node.pub", pair.public)


def _directory(path: Path) -> None:
    path.mkdir(parents=True)
    path.chmod(0o700)  # whatever the umask is


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _secret(path: Path, content: bytes) -> None:
    _write(path, content, 0o600)


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
    """Remove what belongs to a federation, and no file that somebody put beside it."""
    if not out.exists() or not any(out.iterdir()):
        return
    for party in find(out):
        for name in (*OURS, units.unit_name(party.name)):
            (party.path / name).unlink(missing_ok=True)
        for name in ("keys", "state"):
            shutil.rmtree(party.path / name, ignore_errors=True)
        if not any(party.path.iterdir()):
            party.path.rmdir()
    shutil.rmtree(out / CA, ignore_errors=True)


def _move(draft: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        draft.rename(out)
        return
    for item in sorted(draft.rglob("*")):  # folders come before what is in them
        target = out / item.relative_to(draft)
        if item.is_dir():
            target.mkdir(exist_ok=True)
            target.chmod(0o700)
        else:
            item.replace(target)
    out.chmod(0o700)
