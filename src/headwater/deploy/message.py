"""What travels between parties: a head of plain things, and arrays as bare bytes. Nothing in it is ever executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One array as it came, not checked yet."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Message:
    """`head` is control and can be written as JSON; `parts` are the payload."""

    head: dict[str, Any]
    parts: tuple[Part, ...] = ()

    @property
    def payload(self) -> int:
        """Bytes of arrays."""
        return sum(len(part.data) for part in self.parts)


class Unanswered(Exception):  # noqa: N818 (stands in place of a reply)
    """Why there is no reply, as part of a sentence."""
