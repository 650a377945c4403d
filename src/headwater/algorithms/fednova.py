"""FedNova."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from pydantic.dataclasses import dataclass

from headwater.algorithms import SameAs
from headwater.algorithms.base import Method, MethodInfo, State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, each
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.corrections import step_towards
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import total_steps


@dataclass(frozen=True, config=STRICT)
class FedNova(Method):
    """FedAvg in which no client counts more for having taken more steps: updates are averaged per step.

    Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
    NeurIPS 2020. The paper's τ_i is the number of steps that a client takes, ‖a_i‖₁ is `effective_steps`, and p_i is
    the share of the weight that travels with a model. The new model is x + τ_eff · Σ p_i · (x_i − x) / ‖a_i‖₁, with
    τ_eff = Σ p_i · ‖a_i‖₁.

    Differences from the paper:
    * Clients send x + (x_i − x) · m / ‖a_i‖₁ instead of the quotient, where m is the smallest ‖a_i‖₁ of the round, and
      the server steps τ_eff / m times as far as their mean. This is the same in exact arithmetic. It never makes an
      update longer, and it is FedAvg to the last bit where all clients take the same number of steps.
    * τ_eff counts the clients that begin a round, also those that are lost in it.
    * Statistics of batch norm are averaged as in FedAvg.
    * Momentum at the server and the proximal term of the paper's other local solvers are left out.

    Args:
        local: local training: SGD with or without momentum. Adam, `lr_time_decay` and `low_bit` are refused, because
            their steps do not add up to a known number of gradients.
        by: weight of a client: its number of samples, or "uniform".
        through_sectors: sectors average their clients' models first.

    Example:
        >>> import headwater as hw
        >>> hw.run("fednova", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="fednova",
        family="averaging",
        summary="average of updates per local step",
        stages=("train from the global model", "nobody", "average updates per step, times the mean number of steps"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        defaults={"local": {"optimizer": "sgd", "lr": 0.1, "clip": 1.0}},
    )

    local: LocalSpec = LOCAL
    by: By = "samples"
    through_sectors: bool = False

    def __post_init__(self) -> None:
        spec = self.local
        odd = f"optimizer = {spec.optimizer!r}" if spec.optimizer != "sgd" else ""
        odd = odd or (f"lr_time_decay = {spec.lr_time_decay}" if spec.lr_time_decay else "")
        odd = odd or (f"low_bit = {spec.low_bit!r}" if spec.low_bit != "none" else "")
        if odd:
            raise ValueError(
                f"fednova divides an update by the gradients that add up to it, which local.{odd} does not let it "
                "count; use optimizer = 'sgd' at a constant rate, with any momentum, and low_bit = 'none'"
            )

    def same_as(self, counts: Iterable[Sequence[int]]) -> SameAs | None:
        if len({total_steps(sum(own), self.local) for own in counts}) > 1:
            return None
        return SameAs("fedavg", "all clients take the same number of local steps")

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        steps = {c: effective_steps(total_steps(fed.sizes[c], self.local), self.local.momentum) for c in fed.clients}
        weights = {c: fed.sizes[c] if self.by == "samples" else 1 for c in fed.clients}
        shortest = min(filter(None, steps.values()), default=1.0)
        relative = {c: steps[c] / shortest for c in fed.clients}  # all 1 if all clients take the same number of steps
        start = spread(fed, state.model, self.through_sectors)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by=self.by)
        # A client without a step has no update to shorten.
        shares = each({c: 1 / times if times else 1.0 for c, times in relative.items()})
        scaled = fed.run(step_towards, at=CLIENTS, start=start, mean=local, rate=shares)
        mean = gather(fed, scaled, self.through_sectors)
        rate = sum(weights[c] * relative[c] for c in relative) / sum(weights.values())  # τ_eff / m
        return State(fed.run(step_towards, at=SERVER, start=state.model, mean=mean, rate=rate))


@cache
def effective_steps(steps: int, momentum: float) -> float:
    """‖a_i‖₁: how often the gradients of so many steps enter the update, a gradient once in plain SGD.

    With momentum ρ a gradient enters its own step and, with ρ, ρ², …, the steps after it.
    """
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        total += velocity
    return total
