"""FedAvg with server momentum."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, gather, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By, Params
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.corrections import bare, moved
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task


@plain_dataclass(frozen=True)
class MomentumState(State):
    velocity: Located  # at the server


@dataclass(frozen=True, config=STRICT)
class FedAvgM(Method):
    """FedAvg whose server steps towards the mean with momentum instead of replacing its model by the mean.

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.

    Differences from the paper and from other programs:
    * Momentum acts on trained parameters. Statistics of batch norm are those of the plain mean, as in FedDF's program.
    * There is no further learning rate at the server.

    Args:
        local: local training.
        beta: β, the momentum; FedDF's tables use 0.1 to 0.4.
        form: how the velocity v follows from Δ = model − mean. "A" (FedDF's program): v ← βv + Δ, model ← model − v.
            "B" (FedBE's program): v ← βv + (1 − β)Δ. "C" (a benchmark suite, and the paper's Nesterov variant): v as in
            "A", then model ← model − (Δ + βv).
        by: weight of a client in the mean: its number of samples, or "uniform".
        through_sectors: sectors average their clients' models first.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavgm", data="digits", clients=4, rounds=1, local__epochs=1, beta=0.3).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="fedavgm",
        family="averaging",
        summary="average with momentum at the server",
        stages=("train from the global model", "nobody", "average, then step with momentum"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        grids={"algorithm.beta": ("0.1", "0.2", "0.3", "0.4")},  # searched in FedDF's paper
    )

    local: LocalSpec = LOCAL
    beta: Annotated[float, Ge(0), Lt(1)] = 0.9
    form: Literal["A", "B", "C"] = "A"
    by: By = "samples"
    through_sectors: bool = False

    def init(self, fed: Federation, model: Located) -> MomentumState:
        return MomentumState(model, nothing(SERVER))

    def round(self, fed: Federation, state: MomentumState) -> MomentumState:
        start = spread(fed, state.model, self.through_sectors)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by=self.by)
        new = fed.run(
            momentum_step,
            at=SERVER,
            start=state.model,
            mean=gather(fed, local, self.through_sectors),
            velocity=maybe(state.velocity),
            beta=self.beta,
            damping=1 - self.beta if self.form == "B" else 1.0,
            nesterov=self.form == "C",
        )
        return MomentumState(new["model"], new["velocity"])


@task("average", returns=lambda ctx, start, **_: {"model": start, "velocity": start})
def momentum_step(
    ctx: TaskContext, start: Params, mean: Params, velocity: Params | None, beta: float, damping: float, nesterov: bool
) -> dict[str, Params]:
    """Server momentum with start − mean as the gradient: v ← beta · v + damping · (start − mean), then start − v.

    With Nesterov's look-ahead the step is beta · v + (start − mean). Buffers are those of `mean`.
    """
    slope = bare(start - mean)
    v = slope * damping if velocity is None else velocity * beta + slope * damping
    step = moved(slope, v, beta) if nesterov else v
    return {"model": moved(moved(mean, slope, 1.0), step, -1.0), "velocity": v}
