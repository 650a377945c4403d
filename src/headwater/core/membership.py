"""Which clients take part from which round on, and how a method's state takes in clients that come late.

A client that comes after a run has begun joins with a round. Until then it is in the tree with size 0, like a client
without data: it is not drawn, leads nobody, is not counted and is sent nothing. From its round on it has its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from headwater.core.params import By
from headwater.core.tree import SERVER
from headwater.core.values import Located
from headwater.engines.jobs import field_names, rebuilt

if TYPE_CHECKING:
    from headwater.core.federation import Federation


Kept = TypeVar("Kept")


class Newcomer(NamedTuple):
    """A client that takes part from a round on.

    Args:
        round: its first round.
        client: its name.
        rows: training rows that it has.
    """

    round: int
    client: str
    rows: int


@dataclass(frozen=True)
class Membership:
    """The clients of a run by round. It only grows.

    Args:
        first: rows of the clients that were there when the run began.
        joined: clients that came later, in the order of their first rounds.
    """

    first: Mapping[str, int]
    joined: tuple[Newcomer, ...] = ()

    @property
    def rows(self) -> dict[str, int]:
        """Rows of all clients, those that came later too."""
        return dict(self.first) | joined_until(self.joined)

    def with_joined(self, *more: Newcomer) -> Membership:
        return Membership(self.first, (*self.joined, *more))


def joined_until(joined: Iterable[Newcomer], round: int | None = None) -> dict[str, int]:
    """Rows of the clients that joined in any round, or up to this one."""
    return {each.client: each.rows for each in joined if round is None or each.round <= round}


def newcomers(joined: Iterable[Newcomer], round: int) -> dict[str, int]:
    """Rows of the clients that join with this round."""
    return {each.client: each.rows for each in joined if each.round == round}


def with_newcomers(state: Kept, first: Any) -> Kept:
    """A state with the values that `first` holds at further clients and sectors. Values at the server stay.

    Args:
        state: of a run that has begun.
        first: of the same method, before the first round of the newcomers.
    """
    return cast(Kept, _joined(state, first))


def _joined(state: Any, first: Any) -> Any:
    if isinstance(state, Located) and isinstance(first, Located):
        if state.place is SERVER or state.place is not first.place:
            return state
        return Located(state.place, {**first.nodes, **state.nodes})
    if (names := field_names(type(state))) and type(state) is type(first):
        parts = {name: _joined(getattr(state, name), getattr(first, name)) for name in names}
        return rebuilt(state, {name: item for name, item in parts.items() if item is not getattr(state, name)})
    if isinstance(state, dict) and isinstance(first, dict):
        return {key: _joined(item, first[key]) if key in first else item for key, item in state.items()}
    if isinstance(state, tuple) and isinstance(first, tuple):
        return tuple(map(_joined, state, first)) + state[len(first) :]
    return state


def share_of(fed: Federation, clients: Iterable[str], by: By = "uniform") -> float:
    """The share that some clients have among all of the tree that hold data, by number or by samples."""
    sizes = fed.tree.sizes
    if by == "samples":
        return sum(sizes[client] for client in clients) / sum(fed.tree.client_sizes.values())
    return len(list(clients)) / len(fed.tree.holders)
