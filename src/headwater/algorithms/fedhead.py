"""FedHEAD and FedHEAD+."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, rejoined
from headwater.algorithms.step_counter import HELD
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.sampling import Leader, choose, reseat, vacant
from headwater.specs import DISTILL, LOCAL, STRICT, DistillSpec, LocalSpec
from headwater.tasks.average import average, tally
from headwater.tasks.distill import distill, validation
from headwater.tasks.local import label_counts, local_train

ValSource = Literal["server", "leader"]


@plain_dataclass(frozen=True)
class HeadState(State):
    val: Located  # at clients: the hold-out, for whoever leads


@dataclass(frozen=True, config=STRICT)
class FedHead(Method):
    """A leader in each sector learns from the ensemble of its sector's models, on its own data. The server averages the
    leaders' models.

    Chowdhury, Liang, Tizghadam, Albanese: Communication-Efficient Loss Minimization over Heterogeneous Data with
    Federated Hierarchical Ensemble Aggregation via Distillation (FedHEAD, FedHEAD+).

    | paper | here | | paper | here |
    |---|---|---|---|---|
    | n_l, n_s, n_g | local, sector, server .epochs | | z, z_m | seed, taught |
    | w_k, w_m | local, mean | | D_ref | data.reference |
    | p_k, p_m | weights that travel with models | | ℓ(m) | leader |

    Cost: a leader sends nothing to itself. The validation set goes to the clients once, before the first round. With
    `sector.weights = "labels"` each client's label counts (one number per class) go to its leader and, if they are used
    at the server (FedHEAD+), their sums from there to the server.

    Differences from the paper and from its authors' code:
    * `sector.restore`: the code keeps the last epoch ("last"); the default here is "best_or_init".
    * `sector.when`: leaders always distil in the paper; "better-teacher" leaves out those whose teachers are no better
      than the average that they begin with.
    * `sector.mix`, `sector.weights`: the paper averages probabilities by samples. "labels" weighs a member's
      probability of a class by its count of that class, "confidence" by its certainty; "learned" fits a share for each
      member to the validation set that the leader holds. `[server]` (FedHEAD+) has the same choices, where a sector is
      one member.
    * The code has one Adam for all clients, rounds and distillations, whose counter of steps is never reset:
      `lr_schedule = "shared-counter"`, as the presets `fedhead/…-as-coded` have it. There the counter also switches off
      Adam's bias correction; here every training corrects the bias of its own first steps.
    * Between organisations a leader that is lost, before or while it distils, is replaced by another draw among the
      others.
    * Under partial participation shares are taken over the active clients; a sector with none is left out.

    Args:
        local: local training.
        sector: distillation at the leaders.
        leader: "random" by p_k/p_m (paper), "fixed" to the largest client (table 7 of the paper), or "rotating".
        val_source: early stopping is judged on the hold-out of the "server", as in the code, or on a fifth of the rows
            of the "leader".

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedhead", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1, sector__epochs=1)
        >>> run.ledger.round_trips("server_sector")
        4
    """

    INFO = MethodInfo(
        name="fedhead",
        family="tree",
        summary="sectors teach their leaders",
        stages=(
            "train from the global model",
            "sector members → their leader",
            "distil at leaders, average at the server",
        ),
        models="2M, 2M | N − M, N − M",
        moves={
            "before the first round": "server → sector examples; sector → client examples",
            "a round": "server → leader model; leader → client model; client → leader model; leader → server model",
            "a round by label counts": "also client → leader array",
        },
        sees={
            "server": "sectors' means and leaders' models",
            "host": "its clients' models",
            "leader": 'its sector\'s models; with `sector.weights = "labels"` also their label counts',
            "client": "the global model; as leader, the models of its sector; the validation set",
        },
    )

    local: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    leader: Leader = "random"
    val_source: ValSource = "server"

    def __post_init__(self) -> None:
        _without_labels(self.sector)

    def validates_on_server_data(self, stage: str) -> bool:
        return stage != "sector" or self.val_source == "server"

    def init(self, fed: Federation, model: Located) -> HeadState:
        return HeadState(model, hold_out(fed, self.val_source))

    def round(self, fed: Federation, state: HeadState) -> HeadState:
        _, taught, _ = sectors_teach(self, fed, state)
        return replace(state, model=fed.run(average, at=SERVER, models=taught))


@dataclass(frozen=True, config=STRICT)
class FedHeadPlus(Method):
    """FedHEAD, after which the leaders' models teach the averaged model at the server. Citation, cost and differences
    are those of `FedHead`.

    Args:
        local: local training.
        sector: distillation at the leaders.
        server: distillation at the server, on the reference set.
        leader: as in `FedHead`.
        val_source: as in `FedHead`.
        server_teacher: who teaches at the server: the "leaders" or, with "pre_sync", the sector means before
            synchronisation. Without sector distillation all leaders' models are equal, and could teach nothing.

    Example:
        >>> import headwater as hw
        >>> stages = {"local__epochs": 1, "sector__epochs": 1, "server__epochs": 1}
        >>> sorted(hw.run("fedhead+", data="digits", clients=4, sectors=2, rounds=1, **stages).history[0]["distill"])
        ['s0', 's1', 'server']
    """

    INFO = MethodInfo(
        name="fedhead+",
        family="tree",
        summary="sectors teach their leaders, leaders teach the server",
        stages=(
            "train from the global model",
            "sector members → their leader, then leaders → server",
            "distil at leaders, average, distil at the server",
        ),
        models="2M, 2M | N − M, N − M",
        moves={
            "before the first round": "server → sector examples; sector → client examples",
            "a round": "server → leader model; leader → client model; client → leader model; leader → server model",
            "a round by label counts": "also client → leader array",
        },
        sees={
            "server": "sectors' means and leaders' models",
            "host": "its clients' models",
            "leader": 'its sector\'s models; with `sector.weights = "labels"` also their label counts',
            "client": "the global model; as leader, the models of its sector; the validation set",
        },
        needs=("reference data",),
    )

    local: LocalSpec = LOCAL
    sector: DistillSpec = DISTILL
    server: DistillSpec = DISTILL
    leader: Leader = "random"
    val_source: ValSource = "server"
    server_teacher: Literal["leaders", "pre_sync"] = "leaders"

    def __post_init__(self) -> None:
        _without_labels(self.sector)

    def validates_on_server_data(self, stage: str) -> bool:
        return stage != "sector" or self.val_source == "server"

    def init(self, fed: Federation, model: Located) -> HeadState:
        return HeadState(model, hold_out(fed, self.val_source))

    def round(self, fed: Federation, state: HeadState) -> HeadState:
        means, taught, counts = sectors_teach(self, fed, state)
        teachers = means if self.server_teacher == "pre_sync" else taught
        model = fed.run(average, at=SERVER, models=taught)
        model = fed.run(distill, at=SERVER, start=model, teachers=teachers, counts=counts, spec=self.server)
        return replace(state, model=model)


def _without_labels(sector: DistillSpec) -> None:
    if sector.labelled:
        raise ValueError(f"sector.labelled = {sector.labelled:g}: leaders distil without labels; remove it")


def hold_out(fed: Federation, source: ValSource) -> Located:
    """The server's labelled hold-out at every client, so that whoever leads finds it; nothing for another source."""
    return fed.down(fed.down(fed.run(validation, at=SERVER))) if source == "server" else nothing(CLIENTS)


def sectors_teach(
    method: FedHead | FedHeadPlus, fed: Federation, state: HeadState
) -> tuple[Located, Located, Located | None]:
    """Steps 1 to 10 of the paper. At the server then: sector means, leaders' models, and label counts if they weigh."""
    here = method.sector.weights == "labels"
    above = isinstance(method, FedHeadPlus) and method.server.weights == "labels"

    def teach(fed: Federation, team: Located, counts: Located | None) -> Located:
        weighs = {"counts": counts if here else None, "hold": HELD if method.val_source == "leader" else 0.0}
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
    client_counts = fed.run(label_counts, at=CLIENTS) if here or above else None
    counts = fed.up(client_counts) if client_counts else None
    tallies = fed.up(fed.run(tally, at=SECTORS, models=counts)) if counts and above else None
    students = teach(fed, team, counts)
    taught = fed.up(students)
    while lost := vacant(fed, students):
        fed, there = reseat(fed, lost)
        anew = teach(there, there.up(local), there.up(client_counts) if client_counts else None)
        students, taught = fed.update(students, anew), rejoined(taught, there.up(anew))
    return means, taught, tallies
