"""What a watched link remembers: who is connected, who owes an answer, who was refused."""

from __future__ import annotations

import threading
from typing import Any

from headwater.deploy.transport import Message, Unanswered, Visitor
from headwater.deploy.watched_link import MOST_VISITORS, WatchedDownlink, WatchedUplink


class FakeLink:
    """A downlink whose members do what the test says."""

    up = True

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.arrived: list[tuple[int, Message | Unanswered]] = []
        self.refused: list[Visitor] = []
        self.count = 0

    def present(self) -> frozenset[str]:
        return frozenset(self.connected)

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        self.count += 1
        return self.count

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def forget(self, number: int) -> None: ...

    def revoke(self, name: str) -> None:
        self.connected.discard(name)

    def visitors(self) -> list[Visitor]:
        refused, self.refused = self.refused, []
        return refused

    def close(self) -> None: ...


class Watching:
    def __init__(self) -> None:
        self.link, self.now, self.said = FakeLink(), 1000.0, list[tuple[str, str]]()
        self.watched = WatchedDownlink(
            self.link, ("c0", "c1"), lambda text, level: self.said.append((level, text)), lambda: self.now
        )

    def below(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.watched.fields()["below"][name]
        return found

    def warnings(self) -> list[str]:
        return [text for level, text in self.said if level == "warning"]


def test_a_party_that_owes_an_answer_is_named_with_its_times() -> None:
    w = Watching()
    first = w.watched.send("c0", Message({"do": "work", "round": 3}), 600.0)
    second = w.watched.send("c1", Message({"do": "hello"}))
    assert (w.below("c0")["asked"], w.below("c0")["until"], w.below("c0")["what"]) == (
        1000.0,
        1600.0,
        "work of round 3",
    )
    assert w.below("c1")["until"] is None
    w.now += 12
    w.link.arrived = [(first, Message({}))]
    assert w.watched.replies(0.0)
    assert (w.below("c0")["asked"], w.below("c0")["answered"]) == (None, 1012.0)
    assert w.below("c1")["asked"] == 1000.0
    w.link.arrived = [(second, Unanswered("it is not there any more"))]
    w.watched.replies(0.0)
    assert (w.below("c1")["asked"], w.below("c1")["answered"]) == (None, None)
    w.watched.forget(w.watched.send("c0", Message({}), 1.0))
    assert (w.below("c0")["asked"], w.below("c0")["answered"]) == (None, 1012.0)


def test_the_log_names_it_after_half_a_minute_and_then_less_and_less_often() -> None:
    w = Watching()
    w.watched.send("c0", Message({"do": "work", "round": 3}), 600.0)
    for _ in range(599):
        w.now += 1
        w.watched.look()
    assert [text.partition(" (")[0] for text in w.warnings()] == [
        f"c0 has not answered for {seconds} s" for seconds in (30, 60, 120, 240, 480)
    ]
    assert "(work of round 3) and is awaited until " in w.warnings()[0]


def test_connecting_and_disconnecting_is_logged_once() -> None:
    w = Watching()
    for connected in ({"c0"}, {"c0"}, {"c0", "c1"}, {"c1"}):
        w.link.connected = connected
        w.now += 10
        w.watched.look()
    assert [text for _, text in w.said] == ["c0 is connected", "c1 is connected", "c0 disconnected"]
    assert (w.below("c0")["connected"], w.below("c0")["since"]) == (False, 1040.0)


def test_nobody_waits_for_a_member_that_was_revoked() -> None:
    w = Watching()
    w.link.connected = {"c0", "c1"}
    w.watched.look()
    w.watched.send("c0", Message({"do": "work", "round": 3}), 600.0)
    w.watched.revoke("c0")
    for _ in range(100):
        w.now += 1
        w.watched.look()
    assert (w.below("c0")["revoked"], w.below("c0")["asked"], w.below("c0")["connected"]) == (True, None, False)
    assert w.warnings() == []
    assert [text for level, text in w.said if level == "info"] == ["c0 is connected", "c1 is connected"]
    assert w.below("c1")["connected"]


def test_visitors_are_named_by_key_and_cannot_flood_the_log() -> None:
    w = Watching()
    for _ in range(100):
        w.link.refused = [Visitor("SHA256:a", "", 1, w.now, w.now), Visitor("SHA256:b", "c0", 1, w.now, w.now)]
        w.now += 1
        w.watched.look()
    assert len(w.warnings()) == 2 * 7  # at 1, 2, 4, …, 64 attempts
    assert "a stranger with the key SHA256:a asked to join this link and was refused" in w.warnings()
    assert any("somebody with the key of c0 (SHA256:b)" in text for text in w.warnings())
    rows = {row["key"]: row for row in w.watched.fields()["visitors"]}
    assert (rows["SHA256:a"]["attempts"], rows["SHA256:a"]["first"], rows["SHA256:a"]["last"]) == (100, 1000.0, 1099.0)
    before = len(w.warnings())
    w.link.refused = [Visitor(f"SHA256:{at}", "", 2, w.now, w.now) for at in range(1000)]
    w.watched.look()
    assert len(w.watched.fields()["visitors"]) == MOST_VISITORS
    assert w.watched.fields()["other_visitors"] == 2 * (1000 - (MOST_VISITORS - 2))
    assert len(w.warnings()) - before == MOST_VISITORS - 2


def test_an_uplink_remembers_when_it_was_last_asked() -> None:
    class Above:
        up = False

        def serve(self, answer: Any, stop: threading.Event) -> None:
            assert answer(Message({"x": 1})).head == {"y": 2}

        def close(self) -> None: ...

    link = WatchedUplink(Above(), lambda: 7.0)
    assert link.fields()["above"] == {"running": False, "asked": None, "replied": None}
    link.serve(lambda message: Message({"y": 2}), threading.Event())
    assert link.fields()["above"] == {"running": False, "asked": 7.0, "replied": 7.0}
