"""Agreed clients that come after the run has begun: the server takes them in between two rounds.

Hosts say in their replies which of their clients have come and take no part yet. The server then asks for their numbers
of rows, writes to state/begun.json from which round on they take part, and announces it in every message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from headwater.core.membership import Membership, Newcomer
from headwater.deploy.agreement import Agreement
from headwater.deploy.census import is_row_count
from headwater.deploy.known_members import from_round
from headwater.deploy.party_process import HELLO_SECONDS, PartyProcess
from headwater.deploy.party_run import PartyRun
from headwater.deploy.rehearsed_rounds import RehearsedRun
from headwater.deploy.revocation import RevocationNotices
from headwater.deploy.transport import Message, ask
from headwater.errors import ConfigError
from headwater.training.checkpoint import write_whole
from headwater.training.opening import Arrivals

BEGUN = "begun.json"


class LateClients(Arrivals):
    """Who joins a deployed run.

    Args:
        process: of the server.
        party: the server in this run.
        link: to the hosts.
        revoked: sectors that were revoked.
        begun: content of state/begun.json.
        before: called before every round, first.
    """

    def __init__(
        self,
        process: PartyProcess,
        party: PartyRun,
        link: RevocationNotices,
        revoked: Callable[[], Collection[str]],
        begun: dict[str, Any],
        before: Callable[[int], None],
    ) -> None:
        super().__init__(party.members.now.joined)
        self._process, self._party, self._link, self._revoked = process, party, link, revoked
        self._begun, self._before = begun, before
        self._agreement = process.folder.federation
        self.refused: dict[str, str] = {}  # clients that cannot take part, with the reason
        self._show()

    def before_round(self, round: int) -> None:
        self._before(round)
        if self.joined and round < self.joined[-1].round:
            return  # after a rollback the run first comes to where it was
        if missing := self._missing():
            self._take_in(round, self._announced(missing))

    def _missing(self) -> set[str]:
        gone = {client for sector in self._revoked() for client in self._agreement.sectors[sector]} | self._link.names
        return self._agreement.sector_of.keys() - self._party.members.now.rows.keys() - gone - self.refused.keys()

    def _announced(self, missing: set[str]) -> dict[str, int]:
        """Numbers of rows of missing clients that have come. A host without clients in the run is asked each time."""
        sectors, here = self._agreement.sectors, self._party.members.now.rows.keys()
        asked = [
            sector
            for sector in sorted(self._link.present())
            if missing & self._link.waiting.get(sector, set())
            or (missing & set(sectors[sector]) and not here & set(sectors[sector]))
        ]
        most, found = self._agreement.config.deploy.max_rows, dict[str, int]()
        hello = Message({"do": "hello", **self._agreement.stamp})
        for sector, reply in ask(self._link, asked, hello, 2 * HELLO_SECONDS).items():
            sizes = reply.head.get("sizes")
            for client, size in sizes.items() if isinstance(sizes, dict) else ():
                if client in missing and client in sectors[sector] and is_row_count(size, most):
                    found[client] = size
        return found

    def _take_in(self, round: int, found: dict[str, int]) -> None:
        more: list[Newcomer] = []
        for client, rows in sorted(found.items()):
            why = cannot_join(self._agreement, self._party.members.now, client, rows) if rows else "it has no rows"
            if why:
                self._refuse(client, why)
            else:
                more.append(Newcomer(round, client, rows))
        if not more:
            return
        self.joined = (*self.joined, *more)
        write_begun(self._process.folder.state / BEGUN, self._begun, self.joined)  # before anybody is told
        self._party.members.join(more)
        self._party.grow()
        self._show()
        for each in more:
            self._process.log(f"{each.client} came late with {each.rows} rows and takes part from round {round} on")
        warn_of_the_largest(self._process, self._party.members.now.rows)

    def _show(self) -> None:
        late = {each.client: from_round(each) for each in self.joined} | dict.fromkeys(self.refused, "refused")
        self._process.status.update(late=late)

    def _refuse(self, client: str, why: str) -> None:
        self.refused[client] = why
        self._show()
        self._process.fault(f"{client} came late and has no part in this run: {why}")
        head = {"do": "hello", **self._agreement.stamp, "refused": {client: why}}
        ask(self._link, [self._agreement.sector_of[client]], Message(head), 2 * HELLO_SECONDS)


def cannot_join(agreement: Agreement, members: Membership, client: str, rows: int) -> str:
    """Why a client cannot take part after the run has begun; empty if it can.

    Args:
        agreement: the agreed configuration.
        members: of the run.
        client: that has come late.
        rows: that it has.
    """
    tried = Membership(members.rows, (Newcomer(1, client, rows),))
    try:
        RehearsedRun(agreement, tried, agreement.sector_of[client]).round(1)
    except ConfigError as error:
        return str(error)
    return ""


def warn_of_the_largest(process: PartyProcess, rows: Mapping[str, int]) -> None:
    """Log a warning if one client has more rows than all others together."""
    largest = max(rows, key=lambda client: rows[client])
    if 2 * rows[largest] > sum(rows.values()):
        process.log(
            f"{largest} announces {rows[largest]} of {sum(rows.values())} rows, more than all others together, so that "
            "its model alone decides a mean; if that cannot be, revoke it, or set deploy.max_rows",
            "warning",
        )


def write_begun(path: Path, begun: dict[str, Any], joined: Collection[Newcomer] = ()) -> None:
    """Write the name of the run and who takes part in it."""
    begun["joined"] = [list(each) for each in joined]
    write_whole(path, json.dumps(begun))


def begun_membership(begun: dict[str, Any]) -> Membership:
    """Who takes part in a run, from what `write_begun` wrote."""
    return Membership(begun["sizes"], tuple(Newcomer(*row) for row in begun.get("joined", ())))
