"""Write your own method: FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481). Clients with more data take more local
steps, so plain averaging gives them too much influence. FedNova divides the update of client i by its number of steps
τ_i; p_i is its share of all samples. With this file as nova.py, `headwater run nova:FedNova` trains it, too.

    x ← x + τ_eff · Σ p_i (x_i − x) / τ_i,    τ_eff = Σ p_i τ_i
"""

from dataclasses import dataclass, replace

import headwater as hw
from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SERVER
from headwater.specs import LOCAL, LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import total_steps
from headwater.tasks.task import task


def effective_steps(rows, spec):  # τ_i: how far the steps carry a constant gradient, in units of the learning rate
    if spec.optimizer != "sgd":
        raise hw.ConfigError(f"FedNova needs local.optimizer = 'sgd', got {spec.optimizer!r}")
    total = velocity = 0.0
    for _ in range(total_steps(rows, spec)):
        velocity = spec.momentum * velocity + 1  # without momentum, τ_i is the number of steps
        total += velocity
    return total


@task("average", returns="start")  # `returns` is for `headwater plan`: the result is as large as `start`
def normalised_average(ctx, start, models, steps):  # a task runs at a node; this one at the server
    samples = sum(model.weight for model in models.values())  # a model carries its number of samples as weight
    share = {client: model.weight / samples for client, model in models.items() if steps[client]}
    effective = sum(share[client] * steps[client] for client in share)
    update = sum((models[client] - start).vector * (share[client] / steps[client]) for client in share)
    return replace(start, vector=start.vector + effective * update, weight=samples)


@dataclass(frozen=True)
class FedNova(Method):
    INFO = MethodInfo(name="fednova", summary="normalised averaging", defaults={"local": {"optimizer": "sgd"}})
    local: LocalSpec = LOCAL  # the section [local] of the configuration; further fields are keys of [algorithm]

    def init(self, fed, model):  # the state before the first round; `model` is at the server
        return State(model)

    def round(self, fed, state):
        start = fed.down(state.model, to=CLIENTS)
        trained = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        steps = {client: effective_steps(fed.sizes[client], self.local) for client in fed.clients}
        models = fed.up(trained, to=SERVER)
        return State(fed.run(normalised_average, at=SERVER, start=state.model, models=models, steps=steps))


if __name__ == "__main__":  # with equal numbers of steps FedNova equals FedAvg up to rounding; with epochs it does not
    settings = {"model": "mlp", "clients": 6, "scheme": "quantity", "rounds": 3, "local__optimizer": "sgd"}
    for local in ({"local__steps": 6}, {"local__epochs": 3}, {"local__epochs": 3, "local__momentum": 0.5}):
        nova, average = (hw.run(method, **settings, **local) for method in (FedNova(), "fedavg"))
        apart = (nova.params[""].vector - average.params[""].vector).abs().max()
        print(f"{local}: fednova {nova.accuracy:.3f}, fedavg {average.accuracy:.3f}, weights differ by {apart:.1e}")
