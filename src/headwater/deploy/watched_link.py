"""Links that record for operators who is connected and who has not answered, since when and until when.

`WatchedDownlink` and `WatchedUplink` wrap the two ends of a link. They pass everything on unchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headwater.deploy.transport import Downlink, Message, Unanswered, Uplink, Visitor

FIRST_NOTICE = 30.0  # seconds without an answer after which the log names a party; then each time twice as long
MOST_VISITORS = 20  # that are remembered by key

Log = Callable[[str, str], None]


@dataclass(frozen=True)
class MemberState:
    """A party below, as seen from here. Times are those of `time.time`.

    Args:
        connected: whether it is connected now.
        since: when it connected or disconnected; None if it has not connected since this process was started.
        answered: when it last answered; None for never.
        asked: when the request was sent that it has not answered; None if there is none.
        until: when that request is given up; None if never.
        what: what it was asked for.
        revoked: whether its key was revoked, so that it is not waited for.
        noticed: seconds without an answer after which the log names it next.
    """

    connected: bool = False
    since: float | None = None
    answered: float | None = None
    asked: float | None = None
    until: float | None = None
    what: str = ""
    revoked: bool = False
    noticed: float = FIRST_NOTICE


class WatchedDownlink:
    """Implements `Downlink` over another one.

    Args:
        link: that messages go to.
        members: names of all parties that may join it.
        log: takes a sentence and its level.
        clock: the time in seconds; replaced by tests.
    """

    def __init__(
        self, link: Downlink, members: Iterable[str], log: Log, clock: Callable[[], float] = time.time
    ) -> None:
        self._link, self._log, self._clock = link, log, clock
        self._guard = threading.Lock()
        self._members = {name: MemberState() for name in members}
        self._open: dict[int, str] = {}  # by number of the exchange: who was asked
        self._visitors: dict[str, Visitor] = {}
        self._others = 0  # attempts of further visitors

    # -- as every downlink

    def present(self) -> frozenset[str]:
        present = self._link.present()
        self._note_presence(present)
        return present

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        number, now = self._link.send(to, message, seconds), self._clock()
        what = f"{message.head.get('do', 'a message')}{_of_round(message)}"
        with self._guard:
            self._open[number] = to
            until = None if seconds is None else now + seconds
            self._change(to, asked=now, until=until, what=what, noticed=FIRST_NOTICE)
        self._log(f"asked {to} ({what})", "debug")
        return number

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        arrived = self._link.replies(seconds)
        for number, reply in arrived:
            self._settle(number, answered=isinstance(reply, Message))
        return arrived

    def forget(self, number: int) -> None:
        self._link.forget(number)
        self._settle(number, answered=False)

    def revoke(self, name: str) -> None:
        self._link.revoke(name)
        with self._guard:
            before = self._members.get(name, MemberState())
            since = self._clock() if before.connected else before.since
            self._members[name] = MemberState(since=since, answered=before.answered, revoked=True)

    def visitors(self) -> list[Visitor]:
        return self._link.visitors()

    def close(self) -> None:
        self._link.close()

    @property
    def up(self) -> bool:
        return self._link.up

    # -- for the operator

    def look(self) -> None:
        """Record who is connected and who tried to connect, and log who is overdue. Called periodically."""
        self.present()
        for visitor in self.visitors():
            self._note_visitor(visitor)
        now, late = self._clock(), []
        with self._guard:
            for name, member in self._members.items():
                if member.asked is not None and now - member.asked >= member.noticed:
                    late.append((name, member))
                    self._change(name, noticed=2 * member.noticed)
        for name, member in late:
            asked = member.asked or now
            waits = f"has not answered for {now - asked:.0f} s ({member.what})"
            self._log(f"{name} {waits} and is awaited {clock_time(member.until)}", "warning")

    def fields(self) -> dict[str, Any]:
        """Fields of status.json about the parties below, and about visitors that were refused."""
        with self._guard:
            below = {name: asdict(member) for name, member in self._members.items()}
            visitors = [asdict(visitor) for visitor in self._visitors.values()]
            others = self._others
        for row in below.values():
            del row["noticed"]
        return {"below": below, "visitors": visitors, "other_visitors": others}

    def _note_presence(self, present: frozenset[str]) -> None:
        now, changes = self._clock(), []
        with self._guard:
            for name, member in self._members.items():
                if member.connected != (name in present) and not member.revoked:
                    changes.append(f"{name} {'disconnected' if member.connected else 'is connected'}")
                    self._change(name, connected=name in present, since=now)
        for sentence in changes:
            self._log(sentence, "info")

    def _settle(self, number: int, answered: bool) -> None:
        now = self._clock()
        with self._guard:
            name = self._open.pop(number, None)
            if name is None:
                return
            member = self._members.get(name, MemberState())
            if name not in self._open.values():
                self._change(name, asked=None, until=None, what="")
            if answered:
                self._change(name, answered=now)
        if answered:
            took = "" if member.asked is None else f" after {now - member.asked:.1f} s"
            self._log(f"{name} answered{took}", "debug")

    def _note_visitor(self, visitor: Visitor) -> None:
        with self._guard:
            before = self._visitors.get(visitor.key)
            if before is None and len(self._visitors) >= MOST_VISITORS:
                self._others += visitor.attempts
                return
            attempts = visitor.attempts + (before.attempts if before else 0)
            self._visitors[visitor.key] = replace(
                visitor, attempts=attempts, first=before.first if before else visitor.first
            )
        if before is None or attempts.bit_length() > before.attempts.bit_length():  # at 1, 2, 4, 8, … attempts
            count = "" if attempts == 1 else f", {attempts} times so far"
            self._log(f"{visitor.sentence}{count}", "warning")

    def _change(self, name: str, **fields: Any) -> None:
        if name in self._members:
            self._members[name] = replace(self._members[name], **fields)


class WatchedUplink:
    """Implements `Uplink` over another one, and remembers when the party above last asked for something."""

    def __init__(self, link: Uplink, clock: Callable[[], float] = time.time) -> None:
        self._link, self._clock = link, clock
        self._asked: float | None = None
        self._replied: float | None = None

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        def watched(message: Message) -> Message:
            self._asked = self._clock()
            try:
                return answer(message)
            finally:
                self._replied = self._clock()

        self._link.serve(watched, stop)

    def close(self) -> None:
        self._link.close()

    @property
    def up(self) -> bool:
        return self._link.up

    def look(self) -> None:
        """Nothing to note: only the party above begins an exchange."""

    def fields(self) -> dict[str, Any]:
        """Fields of status.json about the party above."""
        return {"above": {"running": self.up, "asked": self._asked, "replied": self._replied}}


def clock_time(until: float | None) -> str:
    """The end of a wait, for a sentence."""
    return "without a limit" if until is None else f"until {time.strftime('%H:%M:%S', time.localtime(until))}"


def _of_round(message: Message) -> str:
    number = message.head.get("round")
    return f" of round {number}" if type(number) is int else ""
