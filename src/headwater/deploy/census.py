"""How many rows each client of a run has: the server asks for it once, and announces it in every message.

All parties need it to derive what the method does, and the weights of clients' models are held against it. So it is
checked against what they know themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from headwater.core.records import parse_json
from headwater.deploy.agreement import Agreement
from headwater.deploy.payload import Refused
from headwater.training.checkpoint import write_whole

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE = "rows.json"
MAX_ROWS = 1 << 40  # of a client


def is_row_count(size: Any, most: int = 0) -> TypeGuard[int]:
    """Whether a received value can be a number of rows; `most` is `deploy.max_rows`."""
    return type(size) is int and 0 <= size <= (most or MAX_ROWS)


def read_census(head: Mapping[str, Any], agreement: Agreement) -> dict[str, int]:
    """The number of rows by client that a message announces.

    Raises:
        Refused: it announces none, or that of a client which is not in the federation.
    """
    census = head.get("census")
    if not (isinstance(census, dict) and census and all(map(is_row_count, census.values()))):
        raise Refused("it does not say how many rows each client has")
    if unknown := sorted(set(census) - agreement.sector_of.keys()):
        raise Refused(f"it speaks of {unknown[0]!r:.40}, which is no client of this federation")
    return dict(census)


def agrees(census: Mapping[str, int], known: Mapping[str, int]) -> None:
    """Raise Refused if a client has another number of rows than is known here."""
    for name, rows in known.items():
        if census.get(name, rows) != rows:
            raise Refused(f"it says that {name} has {census[name]} rows, and it has {rows}")


class AnnouncedRows(Mapping[str, int]):
    """Number of rows by client, in the host's `state/`, so that a host that was started again still knows them.

    Args:
        folder: of the host.
    """

    def __init__(self, folder: PartyFolder) -> None:
        self._path = folder.state / FILE
        self._rows: dict[str, int] = {}
        try:
            held = parse_json(self._path.read_text(encoding="utf-8"))
            self._rows = {name: size for name, size in held.items() if type(size) is int}
        except (OSError, ValueError, AttributeError):
            pass  # it was never written, or is damaged: clients are asked before the next run

    def update(self, sizes: Mapping[str, int]) -> None:
        """Take over what clients have announced now."""
        if any(self._rows.get(name) != size for name, size in sizes.items()):
            self._rows |= sizes
            write_whole(self._path, json.dumps(self._rows))

    def __getitem__(self, client: str) -> int:
        return self._rows[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
