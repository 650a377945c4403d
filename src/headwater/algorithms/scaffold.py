"""Every client knows how its gradient differs from everybody's, and takes that difference out of each of its steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, corrected | nobody | average at the server |

| paper | here | | paper | here |
|---|---|---|---|---|
| c, c_i | common, own | | η_l, η_g | local.lr, server_lr |
| options I, II | variates = "gradient", "path" | | K | the steps that a client really takes |

Cost a round, in models (N active clients, M sectors; up, down): long link 2N, 2N and inside sectors 2N, 2N; upwards N
and N with `reconstruct`; 2M, 2M and 2N, 2N with `through_sectors`.
Moves a round: server → client model; client → server model.

Differences from the paper and from other programs:
* `variates="path"` (option II) reads a client's mean gradient off its path, (received − trained) / (K · lr), with the K
  of this very client: clients of unequal sizes take unequally many steps when `local.epochs` is given. It needs plain
  SGD at a constant rate and refuses momentum, Adam and `lr_time_decay`; `variates="gradient"` (option I) does with any,
  for one more pass over the data. Clipping (`local.clip`) is let through, although a clipped path tells clipped
  gradients.
* `reconstruct` leaves out the second upload: the server works out from a client's model how its variate of option II
  changed.
* `by="samples"` weighs clients by size in the model and in `common`, which is then the mean of `own` by size. The
  paper's way, all alike, is the default. `common` is the mean of `own` whoever takes part, also when clients are lost.
* Variates are kept for what is trained. With batch norm its statistics stay uncorrected, which a run warns of.

>>> import headwater as hw
>>> run = hw.run("scaffold", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
>>> run.ledger.summary()["server_sector"]["up_models"]
8
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, LocalSpec, Positive
from headwater.tasks.average import average
from headwater.tasks.corrections import (
    buffers_caution,
    check_path,
    minus,
    rebuilt,
    shift,
    step_towards,
    total,
    variate,
    zeros_like,
)
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import total_steps


@plain_dataclass(frozen=True)
class ScaffoldState(State):
    common: Located  # at the server: c
    own: Located  # at clients: c_i


@dataclass(frozen=True, config=STRICT)
class Scaffold:
    local: LocalSpec = LOCAL
    variates: Literal["path", "gradient"] = "path"  # where a client's new variate comes from
    server_lr: Positive = 1.0
    by: By = "uniform"  # how clients weigh
    reconstruct: bool = False  # the server works the variates' changes out instead of being sent them
    through_sectors: bool = False  # sum up at sectors on the way

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "local": {"optimizer": "sgd", "lr": 0.1},
        "model": {"norm": "group"},
    }

    def __post_init__(self) -> None:
        if self.variates == "path":
            check_path(self.local, "variates = 'path'", "use variates = 'gradient', or plain 'sgd' at a constant rate")
        if self.reconstruct and (self.variates != "path" or self.through_sectors):
            raise ValueError(
                "reconstruct works a variate out from its client's own model at the server; "
                "use it with variates = 'path' and without through_sectors"
            )

    def cautions(self, model: ModelSpec, participation: float = 1.0) -> tuple[str, ...]:
        return buffers_caution(model)

    def init(self, fed: Federation, model: Located) -> ScaffoldState:
        return ScaffoldState(model, fed.run(zeros_like, at=SERVER, model=model), nothing(CLIENTS))

    def round(self, fed: Federation, state: ScaffoldState) -> ScaffoldState:
        through, spec, own = self.through_sectors, self.local, maybe(state.own)
        start, common = spread(fed, state.model, through), spread(fed, state.common, through)
        correction = fed.run(minus, at=CLIENTS, a=common, b=own)
        local = fed.run(local_train, at=CLIENTS, start=start, corrections=(correction,), spec=spec, by=self.by)
        one = self.variates == "gradient"
        new = fed.run(variate, at=CLIENTS, start=start, mine=local, common=common, own=own, spec=spec, gradient=one)
        mean, change = self._gathered(fed, state, new)
        model = fed.run(step_towards, at=SERVER, start=state.model, mean=mean, rate=self.server_lr)
        share = 1 / (sum(fed.tree.client_sizes.values()) if self.by == "samples" else len(fed.tree.holders))
        common = fed.run(shift, at=SERVER, old=state.common, by=change, share=share)
        return ScaffoldState(model, common, fed.update(state.own, new["own"]))

    def _gathered(self, fed: Federation, state: ScaffoldState, new: Located) -> tuple[Located, Located]:
        """At the server: the mean of models, and the weighted sum of how variates changed."""
        if not self.reconstruct:
            mean = gather(fed, new["model"], self.through_sectors)
            return mean, gather(fed, new["delta"], self.through_sectors, total)
        steps = {client: total_steps(fed.sizes[client], self.local) for client in fed.clients}
        models = fed.up(new["model"], to=SERVER)
        known = {"start": state.model, "common": state.common, "lr": self.local.lr, "steps": steps}
        return fed.run(average, at=SERVER, models=models), fed.run(rebuilt, at=SERVER, models=models, **known)
