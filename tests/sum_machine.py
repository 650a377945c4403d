"""A secure sum as a state machine: members and an aggregator that exchange bytes, and what can happen to messages.

Messages are lost, doubled, reordered and damaged, and members say what is not so. Whatever happens, the sum is that of
the members whose masked values arrived, to the bit, or it is lost because too few were left; no member whose messages
were sound is put out by those of others; and nobody reveals both seeds of a member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headwater.secure import protocol
from headwater.secure.fixed_point import to_words
from headwater.secure.protocol import LeftOut, Secret, TooFew
from headwater.secure.setting import SecureSums

EXPONENT = 30
MOST = 3  # messages of one sum that are lost on their way up, so that many sums come to their last step
COUNTS, SHARES = st.integers(3, 7), st.sampled_from([0.51, 0.6, 0.8, 1.0])
STEPS = ("keys", "shares", "opened", "value", "reveal")


@dataclass
class Party:
    """A member that knows only what it made and what was sent to it."""

    name: str
    values: np.ndarray
    number: int = 0
    inbox: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.secret = Secret.of(f"{self.name} {self.number}".encode() * 8)

    def share(self, roster: dict[str, bytes], threshold: int) -> dict[str, bytes]:
        self.roster, self.threshold = roster, threshold
        boxes, self.kept = protocol.shared(self.secret, self.name, roster, threshold)
        return boxes

    def opened(self) -> list[str]:
        self.shares = protocol.readable(self.secret, self.name, self.roster, self.inbox)
        return list(self.shares)

    def mask(self, core: tuple[str, ...] = ()) -> bytes:
        self.core = core or self.core
        words, mine = to_words(self.values, EXPONENT), (self.secret, self.name, self.roster)
        return protocol.masked(words, *mine, self.shares, self.core, self.threshold).tobytes()

    def reveal(self, alive: list[str]) -> dict[str, bytes]:
        shares = self.shares | {self.name: self.kept}
        return protocol.revealed(self.name, shares, len(self.roster), self.core, alive, self.threshold)


def parties(count: int, length: int = 50, number: int = 0) -> list[Party]:
    rng = np.random.default_rng(5)
    return [Party(f"client{i}", rng.normal(size=length), number) for i in range(count)]


def plain_sum(members: list[Party]) -> np.ndarray:
    words = [to_words(member.values, EXPONENT) for member in members]
    return np.sum(words, axis=0, dtype=np.uint64)


def flip(box: bytes) -> bytes:
    return box[:-1] + bytes([box[-1] ^ 1])


@dataclass(frozen=True, eq=False)
class Packet:
    """What a member sends to the aggregator in a step."""

    sum: int  # the number of the sum
    sender: str
    step: str
    content: Any
    sound: bool = True


class SecureSum(RuleBasedStateMachine):
    """Some sums, one after another. The aggregator waits in each step until `go_on`."""

    tally: ClassVar[Counter[str]] = Counter()  # cases, and what was done to messages

    @initialize(count=COUNTS, share=SHARES)
    def begin(self, count: int, share: float) -> None:
        self.tally["cases"] += 1
        self.under_way: list[Packet] = []
        self.number = 0
        self.first_step(count, share)

    @precondition(lambda self: self.over)
    @rule(count=COUNTS, share=SHARES)
    def begin_another(self, count: int, share: float) -> None:
        """Messages of the last one may still be under way."""
        self.check()
        self.first_step(count, share)

    def first_step(self, count: int, share: float) -> None:
        self.tally["sums begun"] += 1
        self.number += 1
        self.members = {member.name: member for member in parties(count, length=6, number=self.number)}
        self.threshold = SecureSums(share=share).threshold(count)
        self.step, self.arrived = STEPS[0], dict[str, Packet]()
        self.unsound: set[str] = set()  # members that a damaged or false message of theirs has arrived from
        self.losses = 0
        self.asked = set(self.members)  # members that got every answer so far
        self.told: dict[tuple[str, str], set[bytes]] = {}  # speaker and member → shares that it revealed
        self.total: np.ndarray | None = None
        self.lost: TooFew | None = None
        keys = {name: member.secret.advertised() for name, member in self.members.items()}
        self.under_way += [Packet(self.number, name, "keys", key) for name, key in keys.items()]

    @property
    def over(self) -> bool:
        return self.total is not None or self.lost is not None

    # -- what happens to messages

    def at(self, pick: int) -> int:
        return pick % len(self.under_way)

    def hand_over(self, packet: Packet) -> None:
        if self.over or (packet.sum, packet.step) != (self.number, self.step) or packet.sender in self.arrived:
            return  # late, or a copy
        self.arrived[packet.sender] = packet
        if not packet.sound:
            self.unsound.add(packet.sender)

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def deliver(self, pick: int) -> None:
        self.tally["reordered" if self.at(pick) else "delivered in order"] += 1
        self.hand_over(self.under_way.pop(self.at(pick)))

    @precondition(lambda self: self.under_way)
    @rule()
    def deliver_all(self) -> None:
        """So that more sums come to their later steps."""
        self.tally["delivered in order"] += len(self.under_way)
        while self.under_way:
            self.hand_over(self.under_way.pop(0))

    @precondition(lambda self: self.under_way)
    @rule(pick=st.integers(0, 99))
    def deliver_twice(self, pick: int) -> None:
        """The copy stays under way, also into later steps."""
        self.tally["doubled"] += 1
        self.hand_over(self.under_way[self.at(pick)])

    @precondition(lambda self: self.under_way and self.losses < MOST)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        self.tally["lost"] += 1
        self.losses += 1
        self.under_way.pop(self.at(pick))

    @precondition(lambda self: any(packet.step == "shares" for packet in self.under_way))
    @rule(pick=st.integers(0, 99), which=st.sets(st.integers(0, 6), min_size=1))
    def damage(self, pick: int, which: set[int]) -> None:
        """Shares for some of the others cannot be opened."""
        self.tally["damaged"] += 1
        packet = self.one_of("shares", pick)
        boxes = {to: flip(box) if at in which else box for at, (to, box) in enumerate(packet.content.items())}
        self.under_way.append(replace(packet, content=boxes, sound=boxes == packet.content and packet.sound))

    @precondition(lambda self: any(packet.step == "opened" for packet in self.under_way))
    @rule(pick=st.integers(0, 99), which=st.sets(st.integers(0, 7)))
    def lie(self, pick: int, which: set[int]) -> None:
        """A member says of any others that it could open their shares, and of the rest that it could not."""
        self.tally["false reports"] += 1
        packet = self.one_of("opened", pick)
        names = [name for at, name in enumerate([*self.members, "nobody"]) if at in which]
        self.under_way.append(replace(packet, content=names, sound=False))

    def one_of(self, step: str, pick: int) -> Packet:
        """Take one of the messages of a step."""
        found = [packet for packet in self.under_way if packet.step == step]
        packet = found[pick % len(found)]
        self.under_way = [other for other in self.under_way if other is not packet]
        return packet

    @precondition(lambda self: (self.arrived or not self.under_way) and not self.over)
    @rule(deaf=st.sets(st.integers(0, 6), max_size=1))
    def go_on(self, deaf: set[int]) -> None:
        """The aggregator ends a step with what has arrived. Some members do not get its answer."""
        self.tally["steps ended"] += 1
        self.tally["lost"] += sum(name in self.asked for at, name in enumerate(self.members) if at in deaf)
        content = {name: self.arrived[name].content for name in self.members if name in self.arrived}
        try:
            answer = getattr(self, f"after_{self.step}")(content)
        except TooFew as short:
            self.lost = short
            return
        if self.step == STEPS[-1]:
            self.total = answer
            return
        self.step, self.arrived = STEPS[STEPS.index(self.step) + 1], {}
        self.asked -= {name for at, name in enumerate(self.members) if at in deaf}
        if self.step == "reveal":
            self.asked &= {*self.alive}
        for name in sorted(self.asked):
            try:
                self.under_way.append(Packet(self.number, name, self.step, self.said(self.members[name], answer)))
            except LeftOut:
                self.tally["members left out"] += 1
                self.asked.discard(name)
            except TooFew:
                self.asked.discard(name)

    # -- the aggregator

    def after_keys(self, content: Mapping[str, bytes]) -> dict[str, bytes]:
        protocol.enough(list(content), self.threshold, len(self.members), "advertised keys")
        self.roster = dict(content)
        return self.roster

    def after_shares(self, content: Mapping[str, dict[str, bytes]]) -> dict[str, dict[str, bytes]]:
        protocol.enough(list(content), self.threshold, len(self.members), "shared their seeds")
        self.sharers = set(content)
        return {to: {sender: boxes[to] for sender, boxes in content.items() if to in boxes} for to in self.members}

    def after_opened(self, content: Mapping[str, list[str]]) -> tuple[str, ...]:
        protocol.enough(list(content), self.threshold, len(self.members), "opened their shares")
        self.core = protocol.core_of(content, self.threshold)
        sound = {name for name in content if name in self.sharers - self.unsound}
        if len(sound) >= self.threshold:
            assert sound <= {*self.core}, "a member whose messages were sound is left out"
        protocol.enough(self.core, self.threshold, len(self.members), "could read each other's shares")
        return self.core

    def after_value(self, content: Mapping[str, bytes]) -> list[str]:
        self.alive = list(content)
        assert {*self.alive} <= {*self.core}
        protocol.enough(self.alive, self.threshold, len(self.members), "sent their masked values")
        self.masked = np.sum([np.frombuffer(sent, np.uint64) for sent in content.values()], axis=0, dtype=np.uint64)
        return self.alive

    def after_reveal(self, content: Mapping[str, dict[str, bytes]]) -> np.ndarray:
        return protocol.unmasked(self.masked, self.roster, self.core, self.alive, content, self.threshold)

    # -- the members

    def said(self, member: Party, answer: Any) -> Any:
        """What a member answers to the aggregator, at the beginning of a step."""
        if self.step == "shares":
            return member.share(answer, self.threshold)
        if self.step == "opened":
            member.inbox = {**answer[member.name]}
            return member.opened()
        if self.step == "value":
            return member.mask(answer)
        told = member.reveal(answer)
        for name, share in told.items():
            shares = self.told.setdefault((member.name, name), set())
            shares.add(share)
            assert len(shares) == 1, f"{member.name} revealed both seeds of {name}"
        return told

    # -- what must hold

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        while not self.over:  # deliver the rest; the sum has to end
            while self.under_way:
                self.hand_over(self.under_way.pop(0))
            self.go_on(set())
        self.check()

    def check(self) -> None:
        if self.total is not None:
            assert len(self.alive) >= self.threshold
            assert (self.total == plain_sum([self.members[name] for name in self.alive])).all()
            self.tally["sums opened"] += 1
        elif self.step == "reveal":  # as many as must remain have not revealed a share of each
            self.few_revealed()
        self.tally["sums lost"] += self.lost is not None

    def few_revealed(self) -> None:
        told = {name: packet.content for name, packet in self.arrived.items()}
        fewest = min((sum(name in of for of in told.values()) for name in self.core), default=0)
        assert fewest < self.threshold
