"""What runs a party without anybody watching: a systemd unit, a compose file, and five lines to read first."""

from __future__ import annotations

from headwater import __version__

IMAGE = f"headwater:{__version__}"
REJOIN = 65  # seconds: a link takes a node back only after it has noticed that the old one is gone
UNIT = """\
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
# 2 is a mistake in the folder, which another start does not put right; 130 is a stop that was asked for.
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
COMPOSE = """\
# `docker compose up -d` in this folder. No image is published: {image} stands for one of your own with
# Python and headwater[flower] in it, such as
#   FROM python:3.12-slim
#   RUN pip install 'headwater[flower]'
services:
  {name}:
    image: {image}
    command: ["headwater", "deploy", "{role}", "/party"]
    user: "${{PARTY_UID:-1000}}:${{PARTY_GID:-1000}}"  # who owns this folder: its keys are for that user alone
    network_mode: host  # one port a link; a firewall is the host's
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
    restart: on-failure
"""
README = """\
This is the folder of {who}: it holds {secrets}, so keep it private, and only where that party is.
There, `pip install 'headwater[flower]=={version}'`{own}; then `headwater deploy {role} DIR` starts it.
It {speaks}.
{does}
`headwater deploy status DIR` tells how it goes, `headwater deploy audit DIR` what has left it.
"""
DOES = {
    "server": "Results come to state/run, as `headwater run` leaves them. Started again, it carries on from state/.",
    "sector": "It averages or passes on what its clients send. Started again, it carries on from state/.",
    "client": "Its rows are data.npz, or its own: see [data] in party.toml. They never leave this machine; models do.",
}


def unit_name(name: str) -> str:
    return f"headwater-{name}.service"


def unit(role: str, name: str) -> str:
    return UNIT.format(unit=unit_name(name), role=role, name=name, pause=5 if role == "server" else REJOIN)


def compose(role: str, name: str) -> str:
    return COMPOSE.format(image=IMAGE, role=role, name=name)


def readme(
    role: str, name: str, *, listens: str, joins: str, members: tuple[str, ...], packages: tuple[str, ...] = ()
) -> str:
    """Five lines."""
    below = f"{len(members)} {'sectors' if role == 'server' else 'clients'}"
    speaks = [f"listens at {listens} for {below}"] if listens else []
    speaks += [f"joins the link at {joins}"] if joins else []
    own = f" and {', '.join(f'`{package}`' for package in packages)}, which the configuration names" if packages else ""
    return README.format(
        role=role,
        who="the server" if role == "server" else f"{role} {name}",
        secrets="private keys and data" if role == "client" else "private keys",
        version=__version__,
        own=own,
        speaks=" and ".join(speaks),
        does=DOES[role],
    )
