"""Delay and lose frames between two network interfaces, where the kernel has no `sch_netem` to do it.

    python tools/slow_link.py NEAR FAR --delay 0.2 --loss 0.02

Every frame that arrives at one interface leaves by the other after the delay, or never. It ends when its standard input
is closed. `tools/networks.py` runs it in a namespace of its own making; it needs root.
"""

from __future__ import annotations

import argparse
import random
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence

ALL = 0x0003  # ETH_P_ALL: frames of every protocol
LEVEL, HEADER = (
    263,
    15,
)  # SOL_PACKET, PACKET_VNET_HDR: a frame comes with what is left to do for it (checksum, segments)
LARGEST = 1 << 17  # bytes of a frame that the kernel has not cut into segments yet


def interface(name: str) -> socket.socket:
    """A socket for all frames of an interface."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    found.setsockopt(LEVEL, HEADER, 1)
    found.bind((name, ALL))
    return found


def relay(near: socket.socket, far: socket.socket, delay: float, loss: float, seed: int) -> None:
    """Pass frames on until standard input is closed."""
    drawn, other = random.Random(seed), {near: far, far: near}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()  # in the order of their times, since all wait alike
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([sys.stdin, near, far], [], [], pause)
        if sys.stdin in ready:
            return
        for end in other:
            if end in ready:
                frame, (_, _, kind, *_) = end.recvfrom(LARGEST)
                if kind != socket.PACKET_OUTGOING and drawn.random() >= loss:
                    waiting.append((time.monotonic() + delay, other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            try:
                end.send(frame)
            except OSError:  # the interface is down: this frame is lost, too
                continue


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("near")
    parser.add_argument("far")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds")
    parser.add_argument("--loss", type=float, default=0.02, help="share of the frames")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with interface(options.near) as near, interface(options.far) as far:
        print("ready", flush=True)
        relay(near, far, options.delay, options.loss, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
