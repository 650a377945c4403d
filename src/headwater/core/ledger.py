"""The ledger: bytes, models and round trips by round, purpose, tier and direction. Only moves write to it.

A row is opened when a move is submitted and holds the name of the value. Its size is known once the value exists.
`settle` gets the sizes of a round and adds its rows up, so memory does not grow with past rounds. The counts by
sender and receiver role are the audit of who saw what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater.core.serialization import ValueInfo

TIERS = ("server_sector", "sector_client")
UP, DOWN = "up", "down"


class Path(NamedTuple):
    """What all moves of one kind have in common: round, purpose, tiers, direction and roles."""

    round: int
    purpose: str  # train, setup, evaluate, export
    tiers: tuple[str, ...]  # tiers that are crossed
    direction: str
    roles: tuple[str, str]  # of the true ends, sender and receiver: server, sector, leader, client


class Row(NamedTuple):
    """One move: a value to one or several receivers, or the values of a group, one sender each."""

    path: Path
    name: str
    lower: tuple[str, ...]  # the nodes at the lower ends, for counting round trips
    members: tuple[str, ...] = ()  # for a group: the member that each lower node sends


@dataclass(repr=False)
class Ledger:
    """Counts of what was moved. `bytes`, `round_trips` and `summary` read it.

    Args:
        bytes_: bytes by (round, purpose, tier, direction).
        models: models by (purpose, tier, direction).
        trips: round trips by (purpose, tier).
        seen: values by (purpose, sender role, receiver role, kind of value).
        waits: of the rounds that were settled last, by round and tier: the most round trips of training that any lower
            node made, since every round waits for that node.
    """

    bytes_: Counter[tuple[int, str, str, str]] = field(default_factory=Counter)
    models: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    trips: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    # By purpose and tier: lower nodes that received and have not sent since; none of the sets is empty.
    _sent: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _open: list[Row] = field(default_factory=list)
    waits: dict[int, dict[str, int]] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        links = (
            f"{tier} {self.bytes(tier, UP):,} bytes up, {self.bytes(tier, DOWN):,} down, {self.round_trips(tier):,} "
            "round trips"
            for tier in TIERS
        )
        return f"<Ledger: {'; '.join(links)}>"

    def charge(self, row: Row) -> None:
        """Open a row."""
        self._open.append(row)

    def prepare(self, kind: str, up: Mapping[str, int], down: int) -> None:
        """Charge the exchange of data statistics before the first round.

        Args:
            kind: kind of value.
            up: bytes that each client sent.
            down: bytes that each client received.
        """
        for tier in TIERS:  # straight through: sectors only relay
            self.bytes_[0, "setup", tier, UP] += sum(up.values())
            self.bytes_[0, "setup", tier, DOWN] += down * len(up)
        self.seen["setup", "client", "server", kind] += len(up)
        self.seen["setup", "server", "client", kind] += len(up)

    def provide(self, kind: str, size: int, sectors: int, clients: int) -> None:
        """Charge a value that every sector gets before the first round and passes on to its clients.

        Args:
            kind: kind of value.
            size: its bytes.
            sectors: how many sectors get it.
            clients: how many clients get it.
        """
        self.bytes_[0, "setup", "server_sector", DOWN] += size * sectors
        self.bytes_[0, "setup", "sector_client", DOWN] += size * clients
        self.seen["setup", "server", "sector", kind] += sectors
        self.seen["setup", "sector", "client", kind] += clients

    def settle(self, infos: Mapping[str, ValueInfo | Mapping[str, ValueInfo | None] | None], until: int) -> None:
        """Add up the rows of rounds up to `until`. A value whose sender was lost has no size and is not charged.

        Args:
            infos: name of a value → its size; for a group, sizes by member.
            until: number of the last finished round.
        """
        due = [row for row in self._open if row.path.round <= until]
        self._open = [row for row in self._open if row.path.round > until]
        alike: Counter[tuple[Path, ValueInfo]] = Counter()  # counted together: a round has many equal moves
        trips: dict[tuple[int, str], Counter[str]] = {}  # of training, by round, tier and lower node
        for path, name, lower, members in due:
            info = infos[name]
            if isinstance(info, Mapping):
                sent = [info.get(member) for member in members]
                sizes = Counter(size for size in sent if size is not None)
                lower = tuple(node for node, size in zip(lower, sent, strict=True) if size)
            else:
                sizes = Counter() if info is None else Counter({info: len(lower)})
            if not sizes:
                continue
            for size, count in sizes.items():
                alike[path, size] += count
            for tier in path.tiers:
                waiting = self._sent.setdefault((path.purpose, tier), set())
                if path.direction == DOWN:
                    waiting.update(lower)
                else:
                    answered = waiting.intersection(lower)
                    waiting -= answered
                    self.trips[path.purpose, tier] += len(answered)
                    if path.purpose == "train":
                        trips.setdefault((path.round, tier), Counter()).update(answered)
        self._sent = {edge: nodes for edge, nodes in self._sent.items() if nodes}
        self.waits = {number: dict.fromkeys(TIERS, 0) for number in {row.path.round for row in due}}
        for (number, tier), by_node in trips.items():
            self.waits[number][tier] = max(by_node.values(), default=0)
        for (path, size), count in alike.items():
            self.seen[path.purpose, *path.roles, size.kind] += count
            for tier in path.tiers:
                self.bytes_[path.round, path.purpose, tier, path.direction] += count * size.bytes
                self.models[path.purpose, tier, path.direction] += count * size.models

    def bytes(
        self, tier: str, direction: str | None = None, *, purpose: str = "train", round: int | None = None
    ) -> int:
        """Bytes that crossed a tier.

        Args:
            tier: "server_sector" (the long link) or "sector_client".
            direction: "up" or "down"; None for both.
            purpose: "train", "setup", "evaluate" or "export".
            round: number of a round; None for all.
        """
        if tier not in TIERS:
            raise ValueError(f"a tier is one of {', '.join(TIERS)}, got {tier!r}")
        rounds = {r for r, *_ in self.bytes_} if round is None else (round,)
        directions = (UP, DOWN) if direction is None else (direction,)
        return sum(self.bytes_.get((r, purpose, tier, d), 0) for r in rounds for d in directions)

    def of_round(self, round: int) -> dict[str, dict[str, int]]:
        """Training bytes of one round by tier and direction, as in rounds.jsonl."""
        return {t: {d: self.bytes(t, d, round=round) for d in (UP, DOWN)} for t in TIERS}

    def round_trips(self, tier: str) -> int:
        """Times that a lower node received something and then sent something over this tier."""
        return self.trips["train", tier]

    def summary(self) -> dict[str, Any]:
        """The ledger as `result.json` shows it."""
        purposes = {key[0] for key in self.models} - {"train", "setup"}
        rows: dict[str, Any] = self._tiers("train") | {"setup": self._tiers("setup")}
        rows |= {purpose: self._tiers(purpose) for purpose in sorted(purposes)}
        rows["moves"] = [
            {"purpose": p, "from": a, "to": b, "kind": kind, "count": n}
            for (p, a, b, kind), n in sorted(self.seen.items())
        ]
        return rows

    def _tiers(self, purpose: str) -> dict[str, dict[str, int]]:
        return {
            tier: {f"{d}_bytes": self.bytes(tier, d, purpose=purpose) for d in (UP, DOWN)}
            | {f"{d}_models": self.models[purpose, tier, d] for d in (UP, DOWN)}
            | {"round_trips": self.trips[purpose, tier]}
            for tier in TIERS
        }

    def copy(self) -> Ledger:
        """The counts as they are now, without open rows."""
        counted = (self.bytes_.copy(), self.models.copy(), self.trips.copy(), self.seen.copy())
        return Ledger(*counted, {edge: nodes.copy() for edge, nodes in self._sent.items()})

    def state(self) -> dict[str, Any]:
        """The counts as plain lists, for a checkpoint."""
        rows: dict[str, Any] = {
            name: [[*key, n] for key, n in getattr(self, name).items()]
            for name in ("bytes_", "models", "trips", "seen")
        }
        return rows | {"sent": sorted((*edge, node) for edge, nodes in self._sent.items() for node in nodes)}

    @staticmethod
    def restore(state: dict[str, Any]) -> Ledger:
        """The ledger that `state` described."""

        def counter(name: str) -> Counter[Any]:
            return Counter({tuple(row[:-1]): row[-1] for row in state[name]})

        sent: dict[tuple[str, str], set[str]] = {}
        for purpose, tier, lower in state["sent"]:
            sent.setdefault((purpose, tier), set()).add(lower)
        return Ledger(counter("bytes_"), counter("models"), counter("trips"), counter("seen"), sent)
