"""A reference: every client trains alone from the same start and shares nothing while it does.

There is no global model; accuracy is the clients' mean on the common test set.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from its own model | nobody | none |

Cost a round: nothing. Before the first round the starting model goes to every client (N on both links).
Moves before the first round: server → client model.

>>> import headwater as hw
>>> hw.run("local", data="digits", clients=4, rounds=1, local__epochs=1).ledger.bytes("sector_client")
0
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import PersonalState
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class Local:
    local: LocalSpec = LOCAL

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> PersonalState:
        return PersonalState(fed.down(model, to=CLIENTS))

    def round(self, fed: Federation, state: PersonalState) -> PersonalState:
        mine = fed.run(local_train, at=CLIENTS, start=state.personal, spec=self.local)
        return PersonalState(fed.update(state.personal, mine))
