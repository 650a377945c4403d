"""Clients and sectors of a run: their places, names and accuracies, as partition.json and the rows record them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.report import style
from headwater.report.numbers import number
from headwater.report.runs import RunRecord

MOST_CLIENTS = 400  # with more, the tree shows sectors only


@dataclass(frozen=True)
class TreeNode:
    """The server, a sector or a client with its samples: (class, colour, number)."""

    name: str
    samples: int
    mix: list[tuple[str, str, int]]
    below: list[TreeNode]

    @property
    def words(self) -> str:
        return ", ".join(f"{name}: {amount}" for name, _, amount in self.mix) or "no samples"


class _PackedSectors(Mapping[int, int]):
    """Client number to sector, for populations too large for a dict."""

    def __init__(self, sectors: tuple[int, ...]) -> None:
        self._sectors = sectors

    def __getitem__(self, client: int) -> int:
        if not 0 <= client < len(self._sectors):
            raise KeyError(client)
        return self._sectors[client]

    def __len__(self) -> int:
        return len(self._sectors)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._sectors)))


def client_sectors(partition: Mapping[str, Any] | None) -> Mapping[int, int]:
    """The sector of each client that partition.json lists."""
    sectors = (partition or {}).get("sectors")
    if isinstance(sectors, str):
        from headwater.partition.partition import unpack  # imports NumPy, which few reports need

        try:
            return _PackedSectors(unpack(sectors))
        except ValueError:
            return {}
    pairs = enumerate(map(number, sectors)) if isinstance(sectors, list) else ()
    return {client: int(sector) for client, sector in pairs if sector is not None}


def caller(partition: Mapping[str, Any] | None) -> Callable[[str, int], str]:
    """A function that names a client or sector: as the data calls it, else "client 3" or "sector 0"."""
    known = {
        kind: [str(name) for name in names]
        for kind in ("client", "sector")
        if isinstance(names := (partition or {}).get(f"{kind}_names"), list)
    }

    def called(kind: str, at: int) -> str:
        names = known.get(kind, [])
        return f"{kind} {names[at] if 0 <= at < len(names) else at}"

    return called


def class_names(names: Any, size: int) -> list[str]:
    """The names of `size` classes; classes without a name get their number."""
    known = [str(name) for name in names] if isinstance(names, list) else []
    return [known[at] if at < len(known) else str(at) for at in range(size)]


def client_accuracy(run: RunRecord) -> dict[str, float]:
    """The last recorded accuracy per client, without clients that have no data."""
    found = run.last("client_accuracy")
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, raw in pairs if (value := number(raw)) is not None}


def tree(run: RunRecord) -> TreeNode | None:
    """Server, sectors and clients with their label counts; None if the run has no counts."""
    manifest = run.partition or {}
    counts = manifest.get("counts")
    if not isinstance(counts, list) or not counts or not all(isinstance(row, list) for row in counts):
        return None
    names = class_names(manifest.get("classes"), max(map(len, counts)))
    known, called = client_sectors(manifest), caller(manifest)
    members: dict[int, list[int]] = {}
    for client in range(len(counts)):
        members.setdefault(known.get(client, 0), []).append(client)

    def node(name: str, clients: Sequence[int], below: list[TreeNode]) -> TreeNode:
        sums = [sum(int(number(counts[c][k]) or 0) for c in clients if k < len(counts[c])) for k in range(len(names))]
        mix = [(names[k], style.ramp(k, len(names)), total) for k, total in enumerate(sums) if total]
        return TreeNode(name, sum(sums), mix, below)

    def below(clients: Sequence[int]) -> list[TreeNode]:
        return [node(called("client", at), [at], []) for at in clients] if len(counts) <= MOST_CLIENTS else []

    sectors = [node(called("sector", at), members[at], below(members[at])) for at in sorted(members)]
    some = manifest.get("counted")
    of = f" (first {some.get('first')} of {some.get('of')} clients counted)" if isinstance(some, dict) else ""
    return node(f"server{of}", [client for inside in members.values() for client in inside], sectors)
