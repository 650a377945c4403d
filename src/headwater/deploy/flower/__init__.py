"""Links between parties over Flower: TLS, node keys, one port for each link. The lower party connects to the upper one.

The upper party runs a Flower SuperLink, the lower one a SuperNode, each in a child process without torch. By default
Flower starts a fresh process for every message, running the app that the SuperLink sends. Here Flower runs in its
isolation mode `process`, in which another program runs the app: a thread in the child process takes each message and
passes it to the party's process over a socket pair. So no code from another party is ever run, a message costs no
process start, and the state stays in the party's process.

Party process: `links` (the two ends of a link) and `child_process` (keeps the child running).
Child processes: `superlink` with `guard` and `redelivery`, `supernode`, and `messages` for both.
"""

from __future__ import annotations

from headwater.deploy.flower.link_ends import FlowerDownlink, FlowerUplink

__all__ = ["FlowerDownlink", "FlowerUplink"]
