"""A leader in each sector learns from the ensemble of its sector's models on its own data; with +, leaders then teach
the server.

Chowdhury, Liang, Tizghadam, Albanese: Communication-Efficient Loss Minimization over Heterogeneous Data with Federated
Hierarchical Ensemble Aggregation via Distillation (FedHEAD, FedHEAD+).

| | stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|---|
| FedHEAD | train from the one model | sector members → their leader | distil at leaders, average at the server |
| FedHEAD+ | the same | the same, then leaders → server | the same, then distil at the server |

| paper | here | | paper | here |
|---|---|---|---|---|
| n_l, n_s, n_g | local, sector, server .epochs | | z, z_m | seed, taught |
| w_k, w_m | local, mean | | D_ref | data.reference |
| p_k, p_m | weights that travel with models | | ℓ(m) | leader |

Cost a round, in models (N active clients, M sectors; up, down): long link 2M, 2M; inside sectors N − M, N − M (a
leader does not talk to itself). The validation set goes to the clients once, before the first round; with `weights =
"labels"` each client's label counts (one number a class) go to its leader and, if they weigh at the server (+), their
sums from there to the server.
Moves before the first round: server → sector examples; sector → client examples.
Moves a round: server → leader model; leader → client model; client → leader model; leader → server model.
Moves a round by label counts: also client → leader array.

Differences from the paper and from its authors' code:
* `leader`: "random" by p_k/p_m (paper), "fixed" to the largest client (its table 7), or "rotating".
* `val_source`: early stopping is judged on the server's hold-out, as the code does; "leader" judges on a fifth of the
  leader's rows.
* `[sector] restore`: the code keeps the last epoch ("last"); the library's own default is "best_or_init".
* `[sector] mix`, `weights`: the paper averages probabilities by samples. "labels" weighs a member's probability of a
  class by its count of that class, "confidence" by its certainty; "learned" fits a share for each member to the
  validation set that the leader holds. `[server]` (+) has the same choices, a sector being one member.
* `server_teacher="pre_sync"` (+) lets the sector means before synchronisation teach; without sector distillation the
  leaders' models are all equal, and the server would learn nothing from them.
* Between organisations a leader that is lost, before or while it distils, is replaced by another draw among the others.
* Under partial participation shares are taken over the active clients; a sector with none is left out.

>>> import headwater as hw
>>> run = hw.run("fedhead", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1, sector__epochs=1)
>>> run.ledger.round_trips("server_sector")
4
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, rejoined
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.leaders import Leader, choose, reseat, vacant
from headwater.specs import DISTILL, LOCAL, STRICT, DistillSpec, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.distill import distill, validation
from headwater.tasks.local import label_counts, local_train
from headwater.tasks.model_sampling import tally

ValSource = Literal["server", "leader"]


@plain_dataclass(frozen=True)
class HeadState(State):
    val: Located  # at clients: the hold-out, for whoever leads


@dataclass(frozen=True, config=STRICT)
class FedHead:
    local: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    leader: Leader = "random"
    val_source: ValSource = "server"

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        _without_labels(self.sector)

    def init(self, fed: Federation, model: Located) -> HeadState:
        return HeadState(model, hold_out(self, fed))

    def round(self, fed: Federation, state: HeadState) -> HeadState:
        _, taught, _ = sectors_teach(self, fed, state)
        return replace(state, model=fed.run(average, at=SERVER, models=taught))


@dataclass(frozen=True, config=STRICT)
class FedHeadPlus:
    local: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    server: DistillSpec = DISTILL
    leader: Leader = "random"
    val_source: ValSource = "server"
    server_teacher: Literal["leaders", "pre_sync"] = "leaders"

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        _without_labels(self.sector)

    def init(self, fed: Federation, model: Located) -> HeadState:
        return HeadState(model, hold_out(self, fed))

    def round(self, fed: Federation, state: HeadState) -> HeadState:
        means, taught, counts = sectors_teach(self, fed, state)
        teachers = means if self.server_teacher == "pre_sync" else taught
        model = fed.run(average, at=SERVER, models=taught)
        model = fed.run(distill, at=SERVER, start=model, teachers=teachers, counts=counts, spec=self.server)
        return replace(state, model=model)


def _without_labels(sector: DistillSpec) -> None:
    if sector.labelled:
        raise ValueError(f"sector.labelled = {sector.labelled:g}: leaders distil without labels; remove it")


def hold_out(method: FedHead | FedHeadPlus, fed: Federation) -> Located:
    """The server's labelled hold-out at every client, so that whoever leads finds it."""
    return fed.down(fed.down(fed.run(validation, at=SERVER))) if method.val_source == "server" else nothing(CLIENTS)


def sectors_teach(
    method: FedHead | FedHeadPlus, fed: Federation, state: HeadState
) -> tuple[Located, Located, Located | None]:
    """Steps 1 to 10 of the paper. At the server then: sector means, leaders' models, and label counts if they weigh."""
    here = method.sector.weights == "labels"
    above = isinstance(method, FedHeadPlus) and method.server.weights == "labels"

    def teach(fed: Federation, team: Located, counts: Located | None) -> Located:
        weighs = {"counts": counts if here else None, "hold": 0.2 if method.val_source == "leader" else 0.0}
        start = fed.down(seed)
        return fed.run(
            distill, at=SECTORS, start=start, teachers=team, val=maybe(state.val), spec=method.sector, **weighs
        )

    fed = fed.seat(choose(method.leader, fed))  # sectors are now their leaders
    start = fed.down(fed.down(state.model))
    local = fed.run(local_train, at=CLIENTS, start=start, spec=method.local)
    team = fed.up(local)  # stays inside the sector
    mean = fed.run(average, at=SECTORS, models=team)
    means = fed.up(mean)
    while lost := vacant(fed, mean):
        fed, there = reseat(fed, lost)
        again = there.up(local)
        anew = there.run(average, at=SECTORS, models=again)
        team, mean, means = fed.update(team, again), fed.update(mean, anew), rejoined(means, there.up(anew))
    seed = fed.run(average, at=SERVER, models=means)
    held = fed.run(label_counts, at=CLIENTS) if here or above else None
    counts = fed.up(held) if held else None
    tallies = fed.up(fed.run(tally, at=SECTORS, models=counts)) if counts and above else None
    students = teach(fed, team, counts)
    taught = fed.up(students)
    while lost := vacant(fed, students):
        fed, there = reseat(fed, lost)
        anew = teach(there, there.up(local), there.up(held) if held else None)
        students, taught = fed.update(students, anew), rejoined(taught, there.up(anew))
    return means, taught, tallies
