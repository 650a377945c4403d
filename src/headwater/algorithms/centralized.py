"""A reference, not a federation: all data is pooled at the server and trained on there.

It bounds from above what a federation can reach, and it does what a federation exists to avoid: every client's rows
leave the client. The move is made and charged like any other, before the first round, so the ledger and the audit
show it.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train on the pooled data | nobody | none |

Cost a round: nothing. Before the first round: every row of every client, up both links.
Moves before the first round: client → server examples.

>>> import headwater as hw
>>> hw.run("centralized", data="digits", clients=4, rounds=1, local__epochs=1).ledger.bytes("server_sector")
0
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train, own_rows, pooled


@plain_dataclass(frozen=True)
class PooledState(State):
    rows: Located  # at the server: everybody's data


@dataclass(frozen=True, config=STRICT)
class Centralized:
    local: LocalSpec = LOCAL

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> PooledState:
        rows = fed.up(fed.run(own_rows, at=CLIENTS), to=SERVER)
        return PooledState(model, fed.run(pooled, at=SERVER, rows=rows))

    def round(self, fed: Federation, state: PooledState) -> PooledState:
        return replace(
            state, model=fed.run(local_train, at=SERVER, start=state.model, data=state.rows, spec=self.local)
        )
