"""Lower bound: every client alone."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, PersonalState
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class Local(Method):
    """A baseline: every client trains alone from the same start and shares nothing.

    There is no global model; accuracy is the clients' mean on the common test set. Not from a paper.

    Args:
        local: local training.

    Example:
        >>> import headwater as hw
        >>> hw.run("local", data="digits", clients=4, rounds=1, local__epochs=1).ledger.bytes("sector_client")
        0
    """

    INFO = MethodInfo(
        name="local",
        family="baseline",
        summary="lower bound: every client alone, nothing is shared",
        stages=("train from the client's own model", "nobody", "none"),
        models="none (before: 0, N | 0, N)",
        moves={"before the first round": "server → client model"},
        sees={
            "server": "nothing while training; every personal model once, at the end",
            "host": "nothing while training",
            "client": "its own model",
        },
        needs=("client state",),
        personal=True,
    )

    local: LocalSpec = LOCAL

    def init(self, fed: Federation, model: Located) -> PersonalState:
        return PersonalState(fed.down(model, to=CLIENTS))

    def round(self, fed: Federation, state: PersonalState) -> PersonalState:
        mine = fed.run(local_train, at=CLIENTS, start=state.personal, spec=self.local)
        return PersonalState(fed.update(state.personal, mine))
