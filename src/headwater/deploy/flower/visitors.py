"""Nodes that a SuperLink refused to admit although they proved that they own a key: strangers and twins.

A stranger's key belongs to no member. A twin has the key of a member that is connected already: a second process with
a copy of its folder, or the member itself, started again before the link has noticed the end of its last process.
A stranger, and a member that was revoked, is refused by `guard` when its headers have arrived; a twin is refused by
Flower in `activate_node`. Both check the signature before, so a key here is not just claimed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.superlink.servicer.fleet import fleet_handlers

from headwater.deploy.keys import fingerprint

MOST = 100  # keys, and signatures of strangers, between two reports; further ones are left out


class VisitorBook:
    """Counts refused nodes by key until they are reported.

    Args:
        members: file of the public key, by name.
    """

    def __init__(self, members: Mapping[str, str]) -> None:
        self._guard, self._counts, self._left = threading.Lock(), Counter[str](), MOST
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

    def may_check(self) -> bool:
        """Whether one more caller's signature may be checked before the next report; if so, it counts as checked."""
        with self._guard:
            self._left = max(0, self._left - 1)
            return self._left > 0

    def revoke(self, name: str) -> None:
        """Take a member for a stranger from now on."""
        with self._guard:
            self._names = {key: member for key, member in self._names.items() if member != name}

    def note(self, public_key: bytes | None) -> None:
        """Count an attempt; None for a caller that has not proved that it owns its key, which is not counted."""
        if public_key is None:
            return
        key = fingerprint(public_key)
        with self._guard:
            if key in self._counts or len(self._counts) < MOST:
                self._counts[key] += 1

    def report(self) -> list[dict[str, Any]]:
        """Attempts by key since the last call."""
        with self._guard:
            counts, self._counts, self._left = self._counts, Counter[str](), MOST
            return [{"key": key, "name": self._names.get(key, ""), "attempts": n} for key, n in counts.items()]
