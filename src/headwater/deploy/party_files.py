"""The files in a party's folder: settings, agreement, keys, data, and what runs the party as a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from headwater import __version__
from headwater.config import Config
from headwater.core import sealed
from headwater.deploy import approval
from headwater.deploy.agreement import PUBLIC_SETS
from headwater.deploy.approval import ApprovedKeys, KeyApproval
from headwater.deploy.authority import Authority
from headwater.deploy.folder import CONFIG, DATA, FEDERATION, PARTY, PUBLIC
from headwater.deploy.keys import KeyPair, node_keys
from headwater.deploy.private_files import PRIVATE, directory, write
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
There, `pip install 'headwater[flower]=={version}'`{own}; then {enrol}`headwater deploy {role} DIR` starts it.
It {speaks}.
{does}
`headwater deploy status DIR` shows its status, `headwater deploy audit DIR` what it has sent.
"""
ENROL_FIRST = "`headwater deploy enrol DIR` makes its keys and a request to the operator; when that is approved, "
PURPOSE = {
    "server": "Results are in state/run, as `headwater run` writes them. After a restart it continues from state/.",
    "sector": "It averages or passes on what its clients send. After a restart it continues from state/.",
    "client": "Its rows are data.npz, or its own: see [data] in party.toml. They never leave this machine; models do.",
}
PARTY_HEAD = """\
# Role and name of this party and its links. Relative paths start at this folder.
# insecure = true leaves out encryption and keys, for experiments on one machine only.
# device = "cpu" (or "cuda", "cuda:1", "mps") is what this party computes on; without it, a GPU if there is one.

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
class MadeKeys:
    """The authority of a new federation and the keys that were made for its parties.

    Args:
        nodes: of parties that join a link; empty where each party makes its own.
        links: of parties that run one; likewise.
    """

    authority: Authority
    nodes: Mapping[str, KeyPair]
    links: Mapping[str, KeyPair]

    def approved(self, name: str) -> ApprovedKeys:
        """The public keys of a party."""
        return ApprovedKeys(*(made[name].public.decode() if name in made else "" for made in (self.nodes, self.links)))

    def write(self, keys: Path, name: str, members: Sequence[str]) -> None:
        """Write the folder `keys` of a party.

        Args:
            members: that join its link.
        """
        directory(keys)
        write(keys / "ca.crt", self.authority.pair.public)
        for kind, made, public in (("link", self.links, "link.crt"), ("node", self.nodes, "node.pub")):
            if name in made:
                write(keys / public, made[name].public)
                write(keys / f"{kind}.key", made[name].private, PRIVATE)
        if members:
            directory(keys / "members")
        for member in members:
            if member in self.nodes:
                write(keys / "members" / f"{member}.pub", self.nodes[member].public)


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
        sha256: of that.
        enrol: whether parties make their keys themselves; else they are made here.
    """

    experiment: Experiment
    config: Config
    sectors: dict[str, tuple[str, ...]]
    server: Address
    hosts: dict[str, Address]
    agreed: bytes
    sha256: str
    enrol: bool = False

    def write(self, out: Path) -> Iterator[WrittenParty]:
        """Write all folders below `out`, and one for the certificate authority."""
        made = self._make_keys()
        directory(out)
        directory(out / CA)
        write(out / CA / "ca.crt", made.authority.pair.public)
        write(out / CA / "ca.key", made.authority.pair.private, PRIVATE)
        write(out / CA / FEDERATION, self.agreed)  # with it and the register, keys are approved later
        register = KeyApproval(self.sha256, 1, {name: made.approved(name) for name in (*made.links, *made.nodes)})
        write(out / CA / approval.FILE, approval.approval_text(register, made.authority))
        yield self._server(out / "server", made)
        for sector in self.sectors:
            yield self._sector(out / sector, sector, made)
        for sector, clients in self.sectors.items():
            for client in clients:
                yield self._client(out / client, client, sector, made)

    def _make_keys(self) -> MadeKeys:
        authority = Authority()
        if self.enrol:
            return MadeKeys(authority, {}, {})
        reach = {"server": self.server} | {sector: self.hosts[sector] for sector in self.sectors}
        names = (*self.sectors, *(client for clients in self.sectors.values() for client in clients))
        links = {name: authority.link(name, address) for name, address in reach.items()}
        return MadeKeys(authority, {name: node_keys(name) for name in names}, links)

    def _server(self, folder: Path, made: MadeKeys) -> WrittenParty:
        party = WrittenParty("server", "server", listens=str(self.server))
        self._common(folder, party, {"link": _link_table(self.server, [*self.sectors])}, made)
        public = {name: getattr(self.experiment.split, name) for name in PUBLIC_SETS}
        write(folder / PUBLIC, b"")
        with (folder / PUBLIC).open("wb") as file:
            sealed.write(public, file)
        return party

    def _sector(self, folder: Path, name: str, made: MadeKeys) -> WrittenParty:
        host, clients = self.hosts[name], self.sectors[name]
        party = WrittenParty(name, "sector", listens=str(host), joins=str(self.server))
        tables = {"above": {"address": str(self.server)}, "link": _link_table(host, clients)}
        self._common(folder, party, tables, made)
        return party

    def _client(self, folder: Path, name: str, sector: str, made: MadeKeys) -> WrittenParty:
        rows = self.experiment.partition.indices[int(name[1:])]
        party = WrittenParty(name, "client", joins=str(self.hosts[sector]), rows=len(rows))
        tables = {"above": {"address": str(self.hosts[sector])}, "data": {"name": DATA}}
        self._common(folder, party, tables, made)
        own = self.experiment.split.train.take(rows.copy())  # the partition's own array is read-only
        write(folder / DATA, b"", PRIVATE)
        np.savez(folder / DATA, x=own.x.numpy(), y=own.y.numpy())
        return party

    def _common(self, folder: Path, party: WrittenParty, tables: dict[str, Any], made: MadeKeys) -> None:
        members = tables["link"]["members"] if "link" in tables else ()
        directory(folder)
        made.write(folder / "keys", party.name, members)
        settings = tomli_w.dumps({"role": party.role, "name": party.name, "insecure": False, **tables})
        packages = tuple(name for name in (self.config.method, self.config.model.name) if ":" in name)
        write(folder / PARTY, (PARTY_HEAD + settings).encode())
        write(folder / FEDERATION, self.agreed)
        write(folder / CONFIG, self.config.to_toml().encode())
        write(folder / README, _readme(party, len(members), packages, self.enrol).encode())
        write(folder / unit_name(party.name), _unit(party).encode())
        compose = COMPOSE_TEXT.format(version=__version__, role=party.role, name=party.name)
        write(folder / COMPOSE, compose.encode())


def request_name(name: str) -> str:
    """File name of a party's request for the approval of its keys."""
    return f"{name}.request.json"


def unit_name(name: str) -> str:
    """File name of a party's systemd unit."""
    return f"headwater-{name}.service"


def _unit(party: WrittenParty) -> str:
    pause = 5 if party.role == "server" else REJOIN
    return UNIT_TEXT.format(unit=unit_name(party.name), role=party.role, name=party.name, pause=pause)


def _readme(party: WrittenParty, members: int, packages: Sequence[str], enrol: bool) -> str:
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
        enrol=ENROL_FIRST if enrol else "",
        speaks=" and ".join(links),
        does=PURPOSE[role],
    )


def _link_table(reach: Address, members: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"address": str(reach.listen_address)}
    return table | ({"reach": str(reach)} if reach.listen_address != reach else {}) | {"members": list(members)}
