"""Who takes part in a run, as one party knows it: announced by the server in every message, and never rewritten.

A message names the number of rows of each client that was there when the run began (`census`), and the clients that
joined later with their first rounds (`joined`). A party follows an announcement only if it continues what the party
knows. It writes it to `state/membership.json`, so that a restart forgets nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headwater.core.membership import Membership, Newcomer
from headwater.core.records import parse_json
from headwater.deploy.agreement import Agreement
from headwater.deploy.census import agrees, is_row_count, read_census
from headwater.deploy.payload import Refused
from headwater.training.checkpoint import write_whole

FILE = "membership.json"


def read_membership(head: Mapping[str, Any], agreement: Agreement) -> Membership:
    """The membership that a message announces.

    Raises:
        Refused: it names other clients than the agreed ones, a client twice, a number of rows that is not accepted, or
            rounds that the run does not have or that are not in order.
    """
    first = read_census(head, agreement)
    rows, most = head.get("joined", []), agreement.config.deploy.max_rows
    members, last = Membership(first), 1
    for row in rows if isinstance(rows, list) else [None]:
        if not (isinstance(row, list) and len(row) == 3 and type(row[0]) is int and isinstance(row[1], str)):
            raise Refused("it does not say which clients have joined in which round")
        each = Newcomer(*row)
        if each.client not in agreement.sector_of:
            raise Refused(f"it has {each.client!r:.40} join, which is no client of this federation")
        if each.client in members.rows:
            raise Refused(f"it has {each.client} join, which takes part already")
        if not is_row_count(each.rows, most) or not each.rows:
            raise Refused(f"it has {each.client} join with {each.rows!r:.40} rows, which is not accepted")
        if not last <= each.round <= agreement.config.rounds:
            raise Refused(f"it has {each.client} join in round {each.round}, where {last} is the earliest")
        members, last = members.with_joined(each), each.round
    return members


def from_round(joined: Newcomer) -> str:
    """When a client takes part, as status shows it."""
    return f"from round {joined.round} on"


class RunMembers:
    """The membership of one run, which grows with the announcements of the server.

    Args:
        agreement: of the federation.
        run: name of the run.
        members: as the first message of the run announces it, or as the server knows it.
        known: numbers of rows that this party knows itself.
        path: where it is written; None for nowhere.

    Raises:
        Refused: it does not continue what is written there, or contradicts what is known.
    """

    def __init__(
        self,
        agreement: Agreement,
        run: str,
        members: Membership,
        known: Mapping[str, int] | None = None,
        path: Path | None = None,
    ) -> None:
        self._agreement, self._run, self._known, self._path = agreement, run, known or {}, path
        self._last, self._attempt = 0, None  # the last round that this party was asked for, and its attempt
        self.now = self._written() or members
        self._check(members)
        self._take(members)

    def head(self) -> dict[str, Any]:
        """As every message of the run announces it."""
        return {"census": dict(self.now.first), "joined": [list(each) for each in self.now.joined]}

    def follow(self, head: Mapping[str, Any]) -> bool:
        """Compare what a message announces with what is known. Returns whether clients have joined since.

        Raises:
            Refused: it is of another run, or rewrites who took part.
        """
        members, round = read_membership(head, self._agreement), head.get("round")
        more = self._check(members)
        number = round if type(round) is int else 0
        # Rounds are repeated in a new attempt, when the server was started again; otherwise what was done is done.
        if head.get("attempt") != self._attempt:
            self._last, self._attempt = 0, head.get("attempt")
        earliest = self._last + 1 if number > self._last else number
        if any(each.round < earliest for each in more):
            raise Refused(f"it has {more[0].client} join in round {more[0].round}, which is over")
        self._last = number or self._last
        if more:
            self._take(members)
        return bool(more)

    def join(self, more: Iterable[Newcomer]) -> None:
        """Add clients; for the server."""
        self._take(self.now.with_joined(*more))

    def _check(self, members: Membership) -> tuple[Newcomer, ...]:
        """The clients that have joined beyond what is known."""
        if dict(members.first) != dict(self.now.first):
            raise Refused("it is of another census than that of this run")
        count = len(self.now.joined)
        if members.joined[:count] != self.now.joined:
            raise Refused("it does not continue the list of clients that have joined this run")
        agrees(members.rows, self._known)
        return members.joined[count:]

    def _take(self, members: Membership) -> None:
        self.now = members
        if self._path is not None:
            write_whole(self._path, json.dumps({"run": self._run, **self.head()}))

    def _written(self) -> Membership | None:
        try:
            fields = parse_json(self._path.read_text(encoding="utf-8")) if self._path else {}
            return read_membership(fields, self._agreement) if fields["run"] == self._run else None
        except (OSError, ValueError, KeyError, TypeError, Refused):  # never written, of another run, or damaged
            return None
