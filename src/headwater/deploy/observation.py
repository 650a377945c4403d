"""What an operator can see of a running party beyond its phase: links, waits, refusals, faults, bytes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any

from headwater.deploy.party_log import FAULTS, REFUSALS, PartyLog
from headwater.deploy.sent_log import SentLog
from headwater.deploy.transport import Downlink, Uplink
from headwater.deploy.watched_link import FIRST_NOTICE, WatchedDownlink, WatchedUplink, clock_time

NAMED = 8  # parties in one log line


class Observation:
    """Watches the links of a party, and counts.

    Args:
        log: of the party.
        sent: its record of what it sent.
    """

    def __init__(self, log: PartyLog, sent: SentLog) -> None:
        self._log, self._sent = log, sent
        self._links: list[WatchedDownlink | WatchedUplink] = []
        self._awaited: tuple[str, ...] = ()
        self._since, self._noticed = 0.0, FIRST_NOTICE
        self._until: float | None = None

    def downlink(self, link: Downlink, members: Iterable[str]) -> WatchedDownlink:
        self._links.append(watched := WatchedDownlink(link, members, self._log))
        return watched

    def uplink(self, link: Uplink) -> WatchedUplink:
        self._links.append(watched := WatchedUplink(link))
        return watched

    def expect(self, names: Collection[str], seconds: float | None = None) -> None:
        """Note who has not come yet; the log names them from time to time.

        Args:
            names: parties at any depth; none when all have come.
            seconds: how long they are still awaited; None for no limit.
        """
        now, before = time.time(), self._awaited
        self._awaited, self._until = tuple(sorted(names)), None if seconds is None else now + seconds
        if not before:
            self._since, self._noticed = now, FIRST_NOTICE
        elif names and now - self._since >= self._noticed:
            self._noticed *= 2
            first, more = ", ".join(self._awaited[:NAMED]), len(names) - NAMED
            others = f" and {more} more" if more > 0 else ""
            end = clock_time(self._until)
            self._log(f"still waiting for {first}{others}, for {now - self._since:.0f} s now, {end}", "warning")

    def look(self) -> None:
        """Note who is connected and log who keeps this party waiting. Called again and again."""
        for link in self._links:
            link.look()

    def problems(self) -> list[str]:
        """Why this party cannot do its work now; empty if it can."""
        if not self._links:
            return ["no link is up yet"]
        words = {WatchedDownlink: "the link to the parties below", WatchedUplink: "the link to the party above"}
        return [f"{words[type(link)]} is down" for link in self._links if not link.up]

    def fields(self) -> dict[str, Any]:
        """Fields for status.json."""
        sent: dict[str, dict[str, int]] = {}
        for (tier, direction), total in dict(self._sent.bytes).items():
            if tier:
                sent.setdefault(tier, {})[direction] = total
        waits = {"names": list(self._awaited), "since": self._since, "until": self._until} if self._awaited else None
        counts = {kind: self._log.counts[kind] for kind in (REFUSALS, FAULTS)}
        fields: dict[str, Any] = {"awaited": waits, "sent": sent, **counts}
        for link in self._links:
            fields |= link.fields()
        return fields
