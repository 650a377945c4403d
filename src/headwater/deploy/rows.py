"""The numbers of rows that clients announced to their host, which the weights of their models are held against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from headwater.training.checkpoint import write_whole

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE = "rows.json"
MAX_ROWS = 1 << 40  # of a client


def is_row_count(size: Any, most: int = 0) -> TypeGuard[int]:
    """Whether a received value can be a number of rows; `most` is `deploy.max_rows`."""
    return type(size) is int and 0 <= size <= (most or MAX_ROWS)


class AnnouncedRows(Mapping[str, int]):
    """Number of rows by client, in the host's `state/`, so that a host that was started again still knows them.

    Args:
        folder: of the host.
    """

    def __init__(self, folder: PartyFolder) -> None:
        self._path = folder.state / FILE
        self._rows: dict[str, int] = {}
        try:
            held = json.loads(self._path.read_text(encoding="utf-8"))
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
