"""MTGC."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located, maybe, nothing
from headwater.core.membership import with_newcomers
from headwater.core.params import By
from headwater.core.sampling import Leader, choose
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.corrections import (
    alike,
    buffers_caution,
    check_path,
    check_steps,
    corrected,
    gradient_at,
    minus,
    zeros_like,
)
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class MtgcState(State):
    start: Located  # at sectors: the global model as last received; nothing before round 1
    y: Located  # at sectors: from the sector to everybody
    z: Located  # at clients: from the client to its sector


@dataclass(frozen=True, config=STRICT)
class Mtgc(Method):
    """Two gradient corrections at two timescales: z corrects a client towards its sector, y corrects a sector, more
    slowly, towards all.

    Fang, Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient Correction, NeurIPS
    2024. A step is x ← x − γ(g + z + y), where γ is `local.lr`. After an average at the sector z ← z + (own − sector's)
    / (Hγ), after one at the server y ← y + (sector's − global) / (HEγ), with H steps of each client: z is then the
    sector's mean gradient minus the client's, y the global one minus the sector's.

    Cost: in the first round the model goes down at its beginning too, and y is not sent. The start by gradients adds
    N, N inside sectors in each round and M, M between server and sectors in the first. A `leader` sends nothing to
    itself (N − M instead of N inside sectors), and receives the model and y from the sector's host before a round.

    Differences from the paper (its slides) and from its authors' code:
    * `local.epochs` e means H = e · ceil(mean client size / batch) steps for every client, as in the code. Plain SGD
      only.
    * The code clips gradients at 10 (`local.clip`); a clipped path gives clipped gradients. The code forgets to load
      the common start; this implementation does not.
    * A client that is lost after its model was averaged keeps its old z, so z no longer sums to zero in its sector.

    Args:
        local: local training with plain SGD.
        sector_rounds: E, averages at sectors per global round.
        z_init: "keep" carries z over to the next round. "gradient" starts z in every round, and y in the first, from
            gradients at the received model (slides), over all rows of a client; "stochastic" takes one batch instead.
            "zero" starts z at zero in every round (code) and does not reach the optimum. With partial participation
            only "keep" reaches it; a sector with one participant learns no z then.
        use_z: correct clients towards their sector; False is an ablation of the paper.
        use_y: correct sectors towards all; False is an ablation of the paper.
        z_scale: "H" as above and in the code; "HE" divides the change of z by E as well, as one slide has it.
        by: weight of a client in its sector and of a sector at the server. The paper has "uniform"; with "samples" the
            weighted sums of z and of y are zero.
        leader: which client acts as its sector; "none": the sector's host averages.
        sample: draw participants once per round, or the same number anew from each sector in every sector round.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("mtgc", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
        >>> run.ledger.summary()["server_sector"]["up_models"]
        2
    """

    INFO = MethodInfo(
        name="mtgc",
        family="tree",
        summary="two gradient corrections at two timescales",
        stages=(
            "train from the sector's model, corrected twice",
            "nobody",
            "average at sectors several times, then at the server",
        ),
        models="M, M | E·N, (E + 2)·N (first round: M, 2M)",
        moves={
            "a round": "server → sector model; sector → client model; client → sector model; sector → server model",
        },
        sees={
            "server": 'sectors\' means; with `z_init = "gradient"` or "stochastic" their mean gradients in round 1',
            "host": "its clients' models, and its own correction",
            "leader": "its sector's models, if a leader is chosen",
            "client": "its sector's model and correction",
        },
        needs=("client state",),
        defaults={"local": {"optimizer": "sgd", "lr": 0.05}, "model": {"norm": "group"}},
    )

    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2
    z_init: Literal["keep", "gradient", "stochastic", "zero"] = "keep"
    use_z: bool = True
    use_y: bool = True
    z_scale: Literal["H", "HE"] = "H"
    by: By = "uniform"
    leader: Leader | Literal["none"] = "none"
    sample: Literal["round", "sector-round"] = "round"

    def __post_init__(self) -> None:
        check_path(self.local, "MTGC")
        check_steps(self.local, "MTGC")

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        lasting = self.z_init == "keep" or not self.use_z or participation >= 1
        drawn = f"z_init = {self.z_init!r} does not reach the optimum when only some clients take part; use 'keep'"
        return buffers_caution(model) + (() if lasting else (drawn,))

    def reference_models(self) -> int:
        return 2

    def init(self, fed: Federation, model: Located) -> MtgcState:
        return MtgcState(model, nothing(SECTORS), nothing(SECTORS), nothing(CLIENTS))

    def admit(self, fed: Federation, state: MtgcState, first: MtgcState) -> MtgcState:
        """A sector whose first clients join starts from the present global model, and has no correction yet."""
        if not state.start.nodes:  # nobody has one before round 1
            return with_newcomers(state, first)
        new = fed.among(client for client in fed.clients if fed.tree.sector_of[client] not in state.start.nodes)
        start = Located(SECTORS, {**new.down(state.model).nodes, **state.start.nodes})
        return replace(with_newcomers(state, first), start=start)

    def round(self, fed: Federation, state: MtgcState) -> MtgcState:
        received = state.start if state.start.nodes else fed.whole.down(state.model)
        rest, fed = fed, fed if self.leader == "none" else fed.seat(choose(self.leader, fed))
        spec = alike(self.local, [fed.tree.sizes[client] for client in fed.tree.holders])
        pace, rounds = (spec.steps or 0) * spec.lr, self.sector_rounds
        mean, y = fed.hand(received), fed.hand(state.y)
        now, start, z = fed, fed.down(mean), state.z if self.z_init == "keep" else nothing(CLIENTS)
        if self.z_init in ("gradient", "stochastic") and (self.use_z or not y.nodes):
            z, y = self._from_gradients(fed, start, y, spec)
        its_y = fed.down(y)
        for number in range(rounds):  # the server is not asked
            if number and self.sample == "sector-round":
                now = redrawn(fed, number)
                start, its_y = now.down(mean), now.down(y)
            elif number and not self.use_z:
                start = now.down(mean)
            local = now.run(local_train, at=CLIENTS, start=start, corrections=(maybe(z), maybe(its_y)), spec=spec)
            mean = now.run(average, at=SECTORS, models=now.up(local), by=self.by)
            if self.use_z:
                start, slower = now.down(mean), rounds if self.z_scale == "HE" else 1
                z = now.update(
                    z, now.run(corrected, at=CLIENTS, old=maybe(z), mine=local, ours=start, pace=pace * slower)
                )
        model = fed.run(average, at=SERVER, models=fed.up(mean), by=self.by)
        kept = rest.whole.down(model)  # to hosts, also of sectors that sat this one out
        if self.use_y:
            new = fed.run(corrected, at=SECTORS, old=maybe(y), mine=mean, ours=fed.hand(kept), pace=pace * rounds)
            before = state.y if state.y.nodes else rest.whole.run(zeros_like, at=SECTORS, model=received)
            y = rest.update(before, rest.hand(new))
        return MtgcState(model, kept, y, z)

    def _from_gradients(self, fed: Federation, start: Located, y: Located, spec: LocalSpec) -> tuple[Located, Located]:
        """z, and y where there is none yet, from gradients at the model that everybody starts from."""
        own = fed.run(gradient_at, at=CLIENTS, model=start, spec=spec, one_batch=self.z_init == "stochastic")
        ours = fed.run(average, at=SECTORS, models=fed.up(own), by=self.by)
        z = fed.run(minus, at=CLIENTS, a=fed.down(ours), b=own) if self.use_z else nothing(CLIENTS)
        if self.use_y and not y.nodes:
            everybodys = fed.down(fed.run(average, at=SERVER, models=fed.up(ours), by=self.by))
            y = fed.run(minus, at=SECTORS, a=everybodys, b=ours)
        return z, y


def redrawn(fed: Federation, number: int) -> Federation:
    """As many clients of each sector as take part in this round, drawn anew from all of the sector."""
    chosen: list[str] = []
    for sector, team in fed.teams.items():
        members = [client for client in fed.tree.team(sector) if client in fed.tree.holders]
        chosen += fed.rng("sector-round", sector, number).choice(members, size=len(team), replace=False).tolist()
    return fed.among(chosen)
