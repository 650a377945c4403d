"""What a method is: a frozen dataclass with `init` and `round`, which both take a view and return a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from headwater.federation import Federation, Located


@dataclass(frozen=True)
class State:
    """What must survive a round. `model` is at the server: what is evaluated and shipped."""

    model: Located


class Algorithm(Protocol):
    """The contract of a method file.

    `init` sees everybody and gives the first state; `round` sees this round's participants and gives the next.
    `SUITS` holds the method's own defaults for its stages, by section, where they differ from the library's.
    """

    SUITS: ClassVar[dict[str, dict[str, Any]]]

    def init(self, fed: Federation, model: Located) -> Any: ...

    def round(self, fed: Federation, state: Any) -> Any: ...
