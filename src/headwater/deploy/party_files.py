"""The files in a party's folder: settings, agreement, keys, data, and what runs the party as a service."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from headwater import __version__
from headwater.config import Config
from headwater.core import sealed
from headwater.deploy.agreement import PUBLIC_SETS
from headwater.deploy.folder import CONFIG, DATA, FEDERATION, PARTY, PUBLIC
from headwater.deploy.keys import Authority, KeyPair, node_keys
from headwater.deploy.transport import Address
from headwater.training.experiment import Experiment

CA = "ca"
README, COMPOSE = "README.md", "compose.yaml"
FINAL = ("model.safetensors", "personal.safetensors")  # written when a run is over
FILES = (PARTY, FEDERATION, CONFIG, PUBLIC, DATA, README, COMPOSE, *FINAL)
REJOIN = 65  # seconds until a link admits a node again that was killed
UNIT_TEXT = """\
# For systemd, as a unit of the user that owns this folder:
#   cp {unit} ~/.config/systemd/user/ && systemctl --user daemon-reload
#   systemctl --user enable --now {unit}; loginctl enable-linger
# Set two paths first: where this folder is, and where headwater is installed. %h is the user's home.
[Unit]
Description=Headwater federation: {role} {name}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
WorkingDirectory=%h/headwater/{name}
Environment=PATH=%h/headwater/venv/bin:/usr/local/bin:/usr/bin:/bin
ExecStart=/usr/bin/env headwater deploy {role} .
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec=90
Restart=on-failure
RestartSec={pause}
# 2 is a mistake in the folder, which a restart does not correct; 130 is a stop by the user.
RestartPreventExitStatus=2
SuccessExitStatus=130
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""
COMPOSE_TEXT = """\
# `docker compose up -d` in this folder. No image is published: build headwater:{version} with Python and
# headwater[flower] in it, such as
#   FROM python:3.12-slim
#   RUN pip install 'headwater[flower]'
services:
  {name}:
    image: headwater:{version}
    command: ["headwater", "deploy", "{role}", "/party"]
    user: "${{PARTY_UID:-1000}}:${{PARTY_GID:-1000}}"  # the owner of this folder, who alone can read its keys
    network_mode: host  # one port per link; use the firewall of the host
    environment:
      HOME: /tmp
    volumes:
      - .:/party
    read_only: true
    tmpfs:
      - /tmp
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    stop_signal: SIGINT
    stop_grace_period: 90s
    # Compose cannot tell exit statuses apart: a mistake in the folder (2), which a restart does not correct, is tried
    # again too, at growing intervals. `docker compose logs` shows the sentence about it.
    restart: on-failure
"""
README_TEXT = """\
This is the folder of {who}: it holds {secrets}, so keep it private, and only on the machine of that party.
There, `pip install 'headwater[flower]=={version}'`{own}; then `headwater deploy {role} DIR` starts it.
It {speaks}.
{does}
`headwater deploy status DIR` shows its status, `headwater deploy audit DIR` what it has sent.
"""
PURPOSE = {
    "server": "Results are in state/run, as `headwater run` writes them. After a restart it continues from state/.",
    "sector": "It averages or passes on what its clients send. After a restart it continues from state/.",
    "client": "Its rows are data.npz, or its own: see [data] in party.toml. They never leave this machine; models do.",
}
PARTY_HEAD = """\
# Role and name of this party and its links. Relative paths start at this folder.
# insecure = true leaves out encryption and keys, for experiments on one machine only.

"""


@dataclass(frozen=True)
class WrittenParty:
    """One folder that was written.

    Args:
        listens: address of the link that the party runs; empty for a client.
        joins: address of the link that it joins; empty for the server.
        rows: of a client.
    """

    name: str
    role: str
    listens: str = ""
    joins: str = ""
    rows: int = 0


@dataclass(frozen=True)
class FolderWriter:
    """Writes the folders of all parties.

    Args:
        experiment: with the data.
        config: that all parties use.
        sectors: clients by sector.
        server: address of the server's link.
        hosts: addresses of the links of sectors.
        agreed: content of federation.json.
    """

    experiment: Experiment
    config: Config
    sectors: dict[str, tuple[str, ...]]
    server: Address
    hosts: dict[str, Address]
    agreed: bytes

    def write(self, out: Path) -> Iterator[WrittenParty]:
        """Write all folders below `out`, and one for the certificate authority."""
        authority = Authority()
        _directory(out)
        _directory(out / CA)
        _write(out / CA / "ca.crt", authority.pair.public)
        _secret(out / CA / "ca.key", authority.pair.private)
        names = (*self.sectors, *(client for clients in self.sectors.values() for client in clients))
        nodes = {name: node_keys(name) for name in names}
        yield self._server(out / "server", authority, nodes)
        for sector in self.sectors:
            yield self._sector(out / sector, sector, authority, nodes)
        for sector, clients in self.sectors.items():
            for client in clients:
                yield self._client(out / client, client, sector, authority, nodes[client])

    def _server(self, folder: Path, authority: Authority, nodes: dict[str, KeyPair]) -> WrittenParty:
        party = WrittenParty("server", "server", listens=str(self.server))
        self._common(folder, party, {"link": _link_table(self.server, [*self.sectors])}, authority)
        _link_keys(folder, "server", self.server, [*self.sectors], authority, nodes)
        public = {name: getattr(self.experiment.split, name) for name in PUBLIC_SETS}
        _write(folder / PUBLIC, b"")
        with (folder / PUBLIC).open("wb") as file:
            sealed.write(public, file)
        return party

    def _sector(self, folder: Path, name: str, authority: Authority, nodes: dict[str, KeyPair]) -> WrittenParty:
        host, clients = self.hosts[name], self.sectors[name]
        party = WrittenParty(name, "sector", listens=str(host), joins=str(self.server))
        tables = {"above": {"address": str(self.server)}, "link": _link_table(host, clients)}
        self._common(folder, party, tables, authority)
        _link_keys(folder, name, host, clients, authority, nodes)
        _node_keys(folder, nodes[name])
        return party

    def _client(self, folder: Path, name: str, sector: str, authority: Authority, pair: KeyPair) -> WrittenParty:
        rows = self.experiment.partition.indices[int(name[1:])]
        party = WrittenParty(name, "client", joins=str(self.hosts[sector]), rows=len(rows))
        tables = {"above": {"address": str(self.hosts[sector])}, "data": {"name": DATA}}
        self._common(folder, party, tables, authority)
        _node_keys(folder, pair)
        own = self.experiment.split.train.take(rows.copy())  # the partition's own array is read-only
        _secret(folder / DATA, b"")
        np.savez(folder / DATA, x=own.x.numpy(), y=own.y.numpy())
        return party

    def _common(self, folder: Path, party: WrittenParty, tables: dict[str, Any], authority: Authority) -> None:
        _directory(folder)
        _directory(folder / "keys")
        _write(folder / "keys" / "ca.crt", authority.pair.public)
        settings = tomli_w.dumps({"role": party.role, "name": party.name, "insecure": False, **tables})
        members = tables["link"]["members"] if "link" in tables else ()
        packages = tuple(name for name in (self.config.method, self.config.model.name) if ":" in name)
        _write(folder / PARTY, (PARTY_HEAD + settings).encode())
        _write(folder / FEDERATION, self.agreed)
        _write(folder / CONFIG, self.config.to_toml().encode())
        _write(folder / README, _readme(party, len(members), packages).encode())
        _write(folder / unit_name(party.name), _unit(party).encode())
        compose = COMPOSE_TEXT.format(version=__version__, role=party.role, name=party.name)
        _write(folder / COMPOSE, compose.encode())


def unit_name(name: str) -> str:
    """File name of a party's systemd unit."""
    return f"headwater-{name}.service"


def _unit(party: WrittenParty) -> str:
    pause = 5 if party.role == "server" else REJOIN
    return UNIT_TEXT.format(unit=unit_name(party.name), role=party.role, name=party.name, pause=pause)


def _readme(party: WrittenParty, members: int, packages: Sequence[str]) -> str:
    role = party.role
    links = [f"listens at {party.listens} for {members} {'sectors' if role == 'server' else 'clients'}"]
    links = (links if party.listens else []) + ([f"joins the link at {party.joins}"] if party.joins else [])
    own = f" and {', '.join(f'`{package}`' for package in packages)}, which the configuration names" if packages else ""
    return README_TEXT.format(
        role=role,
        who="the server" if role == "server" else f"{role} {party.name}",
        secrets="private keys and data" if role == "client" else "private keys",
        version=__version__,
        own=own,
        speaks=" and ".join(links),
        does=PURPOSE[role],
    )


def _link_table(reach: Address, members: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"address": str(reach.listen_address)}
    return table | ({"reach": str(reach)} if reach.listen_address != reach else {}) | {"members": list(members)}


def _link_keys(
    folder: Path, name: str, reach: Address, members: Sequence[str], authority: Authority, nodes: dict[str, KeyPair]
) -> None:
    pair = authority.link(name, reach)
    _write(folder / "keys" / "link.crt", pair.public)
    _secret(folder / "keys" / "link.key", pair.private)
    _directory(folder / "keys" / "members")
    for member in members:
        _write(folder / "keys" / "members" / f"{member}.pub", nodes[member].public)


def _node_keys(folder: Path, pair: KeyPair) -> None:
    _secret(folder / "keys" / "node.key", pair.private)
    _write(folder / "keys" / "node.pub", pair.public)


def _directory(path: Path) -> None:
    path.mkdir(parents=True)
    path.chmod(0o700)  # independent of the umask


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _secret(path: Path, content: bytes) -> None:
    _write(path, content, 0o600)
