"""Upper bound: training on pooled data."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train, own_rows, pooled


@plain_dataclass(frozen=True)
class PooledState(State):
    rows: Located  # at the server: everybody's data


@dataclass(frozen=True, config=STRICT)
class Centralized(Method):
    """A baseline, not a federation: all data is pooled at the server and trained on there. It bounds from above what a
    federation can reach.

    Every client's rows leave the client, which is what a federation exists to avoid. The move is made and charged like
    any other, before the first round, so the ledger and the audit show it. Not from a paper.

    Args:
        local: training at the server.

    Example:
        >>> import headwater as hw
        >>> hw.run("centralized", data="digits", clients=4, rounds=1, local__epochs=1).ledger.bytes("server_sector")
        0
    """

    INFO = MethodInfo(
        name="centralized",
        family="baseline",
        summary="upper bound: all data pooled at the server (data leaves its clients)",
        stages=("train on the pooled data", "nobody", "none"),
        models="none (before: every row, on both links)",
        moves={"before the first round": "client → server examples"},
        sees={"server": "every client's rows", "host": "its clients' rows", "client": "nothing"},
        pooled=True,
    )

    local: LocalSpec = LOCAL

    def init(self, fed: Federation, model: Located) -> PooledState:
        rows = fed.up(fed.run(own_rows, at=CLIENTS), to=SERVER)
        return PooledState(model, fed.run(pooled, at=SERVER, rows=rows))

    def round(self, fed: Federation, state: PooledState) -> PooledState:
        return replace(
            state, model=fed.run(local_train, at=SERVER, start=state.model, data=state.rows, spec=self.local)
        )
