"""Write your own method: FedAdam (Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295). The mean
update Δ of the clients is taken as a gradient, and the server makes a step of Adam with it. With this file as adam.py,
`headwater run adam:FedAdam --set algorithm.lr=0.02` trains it, too.

    m ← β₁ m + (1 − β₁) Δ,    v ← β₂ v + (1 − β₂) Δ²,    x ← x + η m / (√v + τ)
"""

from dataclasses import dataclass, replace

import headwater as hw
from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SERVER, Located, maybe, nothing
from headwater.specs import LOCAL, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train
from headwater.tasks.task import task


@dataclass(frozen=True)
class Moments(State):  # what the method keeps from round to round: the model (in State), m and v, all at the server
    m: Located
    v: Located


# A task runs at a node; this one at the server. `returns` is for `headwater plan`: all three are as large as `start`.
@task("average", returns=lambda ctx, start, **_: {"model": start, "m": start, "v": start})
def adam_step(ctx, start, mean, m, v, lr, tau, betas):
    update = mean - start
    m = (m or update * 0.0) * betas[0] + update * (1 - betas[0])  # m and v are None before the first round
    v = (v or update * 0.0) * betas[1] + replace(update, vector=update.vector.square()) * (1 - betas[1])
    return {"model": replace(mean, vector=start.vector + lr * m.vector / (v.vector.sqrt() + tau)), "m": m, "v": v}


@dataclass(frozen=True)
class FedAdam(Method):
    INFO = MethodInfo(name="fedadam", summary="Adam at the server", defaults={"local": {"optimizer": "sgd"}})
    local: LocalSpec = LOCAL  # the section [local] of the configuration; all further fields are keys of [algorithm]
    lr: float = 0.03  # η
    tau: float = 0.001  # τ: how far v limits the step; the paper's value
    betas: tuple[float, float] = (0.9, 0.99)  # β₁ and β₂

    def init(self, fed, model):  # the state before the first round; `model` is at the server
        return Moments(model, nothing(SERVER), nothing(SERVER))

    def round(self, fed, state):
        start = fed.down(state.model, to=CLIENTS)
        trained = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        mean = fed.run(average, at=SERVER, models=fed.up(trained, to=SERVER))
        known = {"start": state.model, "mean": mean, "m": maybe(state.m), "v": maybe(state.v)}
        new = fed.run(adam_step, at=SERVER, **known, lr=self.lr, tau=self.tau, betas=self.betas)
        return Moments(new["model"], new["m"], new["v"])


if __name__ == "__main__":  # where τ hides v and β₁ is 0, FedAdam is FedAvg
    settings = {"model": "mlp", "clients": 6, "rounds": 5, "local__epochs": 1, "local__optimizer": "sgd"}
    for options in ({"lr": 1e4, "tau": 1e4, "betas": (0.0, 0.99)}, {}):
        adam, plain = (hw.run(method, **settings) for method in (FedAdam(**options), "fedavg"))
        apart = (adam.params[""].vector - plain.params[""].vector).abs().max()
        print(f"{options}: fedadam {adam.accuracy:.3f}, fedavg {plain.accuracy:.3f}, weights differ by {apart:.1e}")
