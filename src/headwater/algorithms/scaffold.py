"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.membership import share_of, with_newcomers
from headwater.core.params import By, Params
from headwater.models.base import ModelSpec
from headwater.specs import LOCAL, STRICT, LocalSpec, Positive
from headwater.tasks.average import average
from headwater.tasks.corrections import (
    buffers_caution,
    check_path,
    minus,
    moved,
    shift,
    step_towards,
    total,
    variate,
    zeros_like,
)
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import total_steps
from headwater.tasks.task import TaskContext, task


@plain_dataclass(frozen=True)
class ScaffoldState(State):
    common: Located  # at the server: c
    own: Located  # at clients: c_i


@dataclass(frozen=True, config=STRICT)
class Scaffold(Method):
    """Control variates against client drift: every client estimates how its gradient differs from the mean gradient and
    subtracts the difference in each step.

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020. The paper's c and c_i are `common` and `own` of the state; K is the number of steps that a client really
    takes.

    Differences from the paper and from other programs:
    * Clients of different sizes take different numbers of steps if `local.epochs` is given; K is each client's own.
    * `common` is the mean of `own` over all clients, whoever takes part, also when clients are lost.
    * Gradients are clipped to norm 1 by default (`local.clip`): with skewed clients and several epochs, variates that
      are taken from unbounded steps can leave the model at a guess. `local.clip = "none"` is the paper's method.
    * Variates exist for trained parameters only. Statistics of batch norm stay uncorrected; a run warns of it.

    Args:
        local: local training; η_l of the paper is `local.lr`.
        variates: "path" (option II of the paper) computes the mean gradient from the client's path, (received −
            trained) / (K · lr); it needs plain SGD at a constant rate, and refuses momentum, Adam and `lr_time_decay`.
            Clipping (`local.clip`) is allowed, although the path then consists of clipped gradients. "gradient" (option
            I) works with any optimiser, for one more pass over the data.
        server_lr: η_g, learning rate of the server.
        by: weight of a client in the model and in `common`; the paper has "uniform".
        reconstruct: do not send variates up; the server computes their change from the clients' models. Needs
            `variates="path"` and no `through_sectors`.
        through_sectors: sectors sum up their clients' models and variates first.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("scaffold", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
        >>> run.ledger.summary()["server_sector"]["up_models"]
        8
    """

    INFO = MethodInfo(
        name="scaffold",
        family="averaging",
        summary="control variates against client drift",
        stages=("train from the global model, corrected", "nobody", "average at the server"),
        models="2N, 2N | 2N, 2N (through sectors 2M, 2M | 2N, 2N; reconstructed N up)",
        moves={"a round": "server → client model; client → server model"},
        sees={
            "server": "every client's model, and how its variate changed (unless `reconstruct`)",
            "host": "the same of its clients",
            "client": "the global model and variate",
        },
        needs=("client state",),
        defaults={"local": {"optimizer": "sgd", "lr": 0.1, "clip": 1.0}, "model": {"norm": "group"}},
    )

    local: LocalSpec = LOCAL
    variates: Literal["path", "gradient"] = "path"
    server_lr: Positive = 1.0
    by: By = "uniform"
    reconstruct: bool = False
    through_sectors: bool = False

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

    def reference_models(self) -> int:
        return 2

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

    def admit(self, fed: Federation, state: ScaffoldState, first: ScaffoldState) -> ScaffoldState:
        """The server's variate is the mean of all clients' variates, and those of newcomers are zero."""
        common, share = state.common, share_of(fed, fed.clients, self.by)
        common = fed.run(shift, at=SERVER, old=common, by=common, share=-share)
        return replace(with_newcomers(state, first), common=common)

    def _gathered(self, fed: Federation, state: ScaffoldState, new: Located) -> tuple[Located, Located]:
        """At the server: the mean of models, and the weighted sum of how variates changed."""
        if not self.reconstruct:
            mean = gather(fed, new["model"], self.through_sectors)
            return mean, gather(fed, new["delta"], self.through_sectors, total)
        steps = {client: total_steps(fed.sizes[client], self.local) for client in fed.clients}
        models = fed.up(new["model"], to=SERVER)
        known = {"start": state.model, "common": state.common, "lr": self.local.lr, "steps": steps}
        return fed.run(average, at=SERVER, models=models), fed.run(rebuilt, at=SERVER, models=models, **known)


@task("average", streaming=("models",), returns="start")
def rebuilt(
    ctx: TaskContext, models: Mapping[str, Params], start: Params, common: Params, lr: float, steps: Mapping[str, int]
) -> Params:
    """The sum over clients of the changes of their variates (option II), computed from their models alone."""
    result = common * 0.0
    for client, model in models.items():
        if steps[client]:
            change = (start - model) * (1 / (steps[client] * lr)) - common
            result = moved(result, change, model.weight)
    return result
