"""Links between parties over Flower: TLS, node keys, one port for each link, and only the party below dials.

Flower's SuperLink and SuperNode each run in a process of ours beside the party's own, with no torch in it. Flower would
start a fresh process for every message, running the app that the SuperLink sends. Here it runs in its isolation mode
`process`, in which the app is somebody else's business: a thread beside it takes each message and hands it to the
party's process. So no code from another party is ever run, a message costs no process start, and the state lives where
the party is.
"""

from __future__ import annotations

from headwater.deploy.flower.link import FlowerLink
from headwater.deploy.flower.uplink import FlowerUplink

__all__ = ["FlowerLink", "FlowerUplink"]
