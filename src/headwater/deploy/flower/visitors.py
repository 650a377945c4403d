"""Nodes that a SuperLink refused to admit although they proved that they own a key: strangers and twins.

A stranger's key belongs to no member. A twin has the key of a member that is connected already: a second process with
a copy of its folder, or the member itself, started again before the link has noticed the end of its last process.
Flower checks a node's signature before it calls `activate_node`, so a key here is not just claimed.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.superlink.servicer.fleet import fleet_handlers

MOST = 100  # keys between two reports; further ones are left out


class VisitorBook:
    """Counts refused nodes by key until they are reported.

    Args:
        members: file of the public key, by name.
    """

    def __init__(self, members: Mapping[str, str]) -> None:
        self._guard, self._counts = threading.Lock(), Counter[str]()
        self._names = {fingerprint(Path(path).read_bytes()): name for name, path in members.items()}

    def install(self) -> None:
        """Take note of every node that the SuperLink of this process does not admit."""
        activate_node = fleet_handlers.activate_node

        def noting(request: Any, state: Any) -> Any:
            try:
                return activate_node(request=request, state=state)
            except Exception:
                self.note(request.public_key)
                raise

        fleet_handlers.activate_node = noting

    def note(self, public_key: bytes) -> None:
        key = fingerprint(public_key)
        with self._guard:
            if key in self._counts or len(self._counts) < MOST:
                self._counts[key] += 1

    def report(self) -> list[dict[str, Any]]:
        """Attempts by key since the last call."""
        with self._guard:
            counts, self._counts = self._counts, Counter[str]()
        return [{"key": key, "name": self._names.get(key, ""), "attempts": n} for key, n in counts.items()]


def fingerprint(public_key: bytes) -> str:
    """SHA-256 of a public key in PEM or OpenSSH format, as `ssh-keygen -l` prints it; of other bytes, of these."""
    data = public_key
    try:
        pem = public_key.startswith(b"-----")
        key = (serialization.load_pem_public_key if pem else serialization.load_ssh_public_key)(public_key)
        text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        data = base64.b64decode(text.split()[1])
    except Exception:  # a key of a kind that OpenSSH does not know
        pass
    return f"SHA256:{base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}"
