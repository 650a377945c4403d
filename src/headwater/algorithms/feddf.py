"""FedDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from math import sqrt
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State, Team, up_models, voting
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By, Params, mean
from headwater.specs import DISTILL, LOCAL, STRICT, Count, DistillSpec, LocalSpec, NotNegative
from headwater.tasks.average import average_like, initial
from headwater.tasks.cost import Ask, Cost, passes_through
from headwater.tasks.distill import distill
from headwater.tasks.local import label_counts, local_train
from headwater.tasks.task import TaskContext, task
from headwater.tasks.teacher_outputs import Outputs, by_name, score
from headwater.tasks.terms import Proximal


@plain_dataclass(frozen=True)
class DfState(State):
    others: dict[str, Located] = field(default_factory=dict)  # at the server: the other architectures' models, by name
    starts: dict[str, Located] = field(default_factory=dict)  # what students started from, where that is tested too
    team: Team | None = None  # the last teachers, where these are tested too

    @property
    def also(self) -> dict[str, Located]:
        return self.others | self.starts


@dataclass(frozen=True, config=STRICT)
class FedDf(Method):
    """The ensemble of all clients' models teaches the server's model on unlabelled data.

    Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.
    AVGLOGITS is `server.mix = "logits"` with `server.weights = "uniform"`; N, η and T are `server.steps`, `server.lr`
    and `server.temperature`; prototypes are `model.name` and `model.also`.

    Cost: with `server.weights = "labels"` each client's label counts (one number per class) go to the server.

    Differences from the paper and from its authors' code:
    * `server.restore`: the code takes the best checkpoint ("best"); the default here lets the start compete too.
    * Distilling with `mix="probs", weights="samples"` is the FedDF of FedHEAD's tables. Weights by label counts, by
      confidence or learnt on the validation set are additions.
    * Different architectures: each has a student of its own, which starts at the mean of its own clients and learns
      from all. If no client of an architecture is present, its student starts at its last fused model. `server.steps =
      0` averages within architectures.
    * With `server.steps = 0` the method is FedAvg (FedProx with `mu`) with `drop_worst`, as in the paper's table 3.
    * `local.low_bit`: one-bit weights by error feedback, as in the code, or straight through. The student has full
      precision. One-bit models are sent packed, a bit per weight and two numbers per filter, and charged as such.

    Args:
        local: local training.
        server: distillation at the server, on the reference set.
        by: weight of a client in the mean that a student starts from; the code has "uniform".
        init_from: where a student starts: at the "average", or at the "previous" fused model, an ablation of the paper.
        drop_worst: leave out models below 1.2 × chance on the server's validation set before averaging and distilling.
        outlier_rule: the code's further rule against outliers among teachers, which the paper does not have.
        skip_inactive: leave a student as it is in rounds without clients of its architecture, as the code does.
        swag: number of additional teachers, drawn around the round's client models. These stand in for the iterates
            that SWAG fits its Gaussian to, because clients send one model here and not their path.
        mu: FedProx's pull at the clients, an ablation of the paper.
        before_fusion: also test the average and the teachers' ensemble (`average_accuracy`, `ensemble_accuracy`), for
            the paper's figures of a round before and after fusion.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("feddf", data="digits", clients=4, rounds=1, local__epochs=1, server__epochs=1)
        >>> run.ledger.round_trips("server_sector")
        4
    """

    INFO = MethodInfo(
        name="feddf",
        family="ensemble",
        summary="clients teach the server",
        stages=("train from the global model", "clients → server", "average, then distil at the server"),
        models="N, N | N, N",
        moves={
            "a round": "server → client model; client → server model",
            "a round by label counts": "also client → server array",
        },
        sees={
            "server": 'every client\'s model; with `server.weights = "labels"` also its label counts',
            "host": "its clients' models",
            "client": "the global model",
        },
        needs=("reference data",),
        defaults={
            "server": {"mix": "logits", "weights": "uniform", "schedule": "cosine", "clip": 5.0, "metric": "accuracy"}
        },
        mixed_architectures=True,
        strengths=("mu",),
        grids={"local.lr": ("0.01", "0.05", "0.1", "0.5", "1.0", "1.5")},
    )

    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    by: By = "samples"
    init_from: Literal["average", "previous"] = "average"
    drop_worst: bool = True
    outlier_rule: bool = False
    skip_inactive: bool = False
    swag: Count = 0
    mu: NotNegative = 0.0
    before_fusion: bool = False

    def __post_init__(self) -> None:
        if self.swag and self.server.weights == "labels":
            raise ValueError(
                f"swag = {self.swag} adds teachers that are nobody's and so have no label counts; use another "
                "server.weights than 'labels', or swag = 0"
            )
        if self.before_fusion and self.init_from != "average":
            raise ValueError(
                f"before_fusion tests the average that students start from, but init_from = {self.init_from!r}; use "
                "init_from = 'average' with it"
            )

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """A sentence if the filter could not be used."""
        unfiltered = sum(bool(row.get("distill", {}).get("server", {}).get("nobody_passed")) for row in history)
        remark = f"in {unfiltered} of {len(history)} rounds no client beat 1.2 × chance in validation, so all were kept"
        return (remark,) if unfiltered else ()

    def reference_models(self) -> int:
        return 1 if self.mu else 0

    def validation_options(self) -> tuple[str, ...]:
        return tuple(name for name in ("drop_worst", "outlier_rule") if getattr(self, name))

    def init(self, fed: Federation, model: Located) -> DfState:
        return DfState(model, {arch: fed.run(initial, at=SERVER, arch=arch) for arch in fed.tree.archs[1:]})

    def round(self, fed: Federation, state: DfState) -> DfState:
        models = dict(zip(fed.tree.archs, (state.model, *state.others.values()), strict=True))
        start = fed.down({client: models[fed.tree.arch(client)] for client in fed.clients})
        pull = (Proximal(self.mu),) if self.mu else ()
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=pull)
        team = up_models(fed, local, self.local)  # every client's model crosses the long link
        counts = fed.up(fed.run(label_counts, at=CLIENTS), to=SERVER) if self.server.weights == "labels" else None
        if self.drop_worst:
            team = fed.run(drop_worst, at=SERVER, models=team)
        teachers = fed.run(drop_outliers, at=SERVER, models=team) if self.outlier_rule else team
        teachers = fed.run(with_swag, at=SERVER, models=teachers, count=self.swag) if self.swag else teachers
        active = {fed.tree.arch(client) for client in fed.clients}
        fused = dict(models)
        starts: dict[str, Located] = {}
        for arch in reversed(fed.tree.archs):  # the run's own last: what is noted of the server is of its student
            if self.skip_inactive and arch not in active:
                continue
            student = models[arch]
            if self.init_from == "average":
                student = starts[arch] = fed.run(average_like, at=SERVER, models=team, like=student, by=self.by)
            fused[arch] = fed.run(distill, at=SERVER, start=student, teachers=teachers, spec=self.server, counts=counts)
        main = fused.pop(fed.tree.archs[0])
        if not self.before_fusion:
            return DfState(main, fused)
        named = {("average" if arch == fed.tree.archs[0] else f"{arch}_average"): x for arch, x in starts.items()}
        return DfState(main, fused, named, Team(teachers, self.server.mix, voting(self.server)))


# -- which models teach


def _filter_cost(ctx: TaskContext, models: Mapping[str, Params], scores: Any = None) -> Cost:
    return Cost() if scores is not None else Cost(passes=passes_through(models.values(), len(ctx.validation)))


_filter = task(
    "distill",
    asks={"scores": Ask("models", score, "validation")},
    cost=_filter_cost,
    returns=lambda ctx, models, **_: dict(models),  # at most
)


@_filter
def drop_worst(ctx: TaskContext, models: Mapping[str, Params], scores: Outputs | None = None) -> dict[str, Params]:
    """FedDF's filter: leaves out members no better than 1.2 × chance on the server's validation set.

    If no member would remain, all do.

    Args:
        ctx: where it runs: the server.
        models: name → model.
        scores: accuracies that were computed beforehand.
    """
    accuracy = _accuracies(ctx, models, scores)
    kept = [name for name in models if accuracy[name] >= 1.2 / ctx.classes]
    ctx.note(dropped=len(accuracy) - len(kept) if kept else 0, nobody_passed=not kept)
    return {name: models[name] for name in kept or accuracy}


@_filter
def drop_outliers(ctx: TaskContext, models: Mapping[str, Params], scores: Outputs | None = None) -> dict[str, Params]:
    """The further rule of FedDF's code, for teachers only: leaves out members under mean − 1.5 std of the accuracies.

    The best member counts neither in the mean nor in the deviation. Fewer than three members have no outlier. The
    arguments are those of `drop_worst`.
    """
    accuracy = _accuracies(ctx, models, scores)
    if len(accuracy) < 3:
        return dict(models)
    others = torch.tensor(sorted(accuracy.values())[:-1], dtype=torch.float64)
    kept = [name for name in models if accuracy[name] >= float(others.mean() - 1.5 * others.std(correction=0))]
    ctx.note(outliers=len(accuracy) - len(kept))
    return {name: models[name] for name in kept}


def _accuracies(ctx: TaskContext, models: Mapping[str, Params], scores: Outputs | None) -> dict[str, float]:
    known = by_name(scores)
    return {name: known[name] if name in known else score(ctx, {name: model})[name] for name, model in models.items()}


@task(
    "distill",
    cost=Cost(),
    returns=lambda ctx, models, count: models | {f"swag{i}": next(iter(models.values())) for i in range(count)},
)
def with_swag(ctx: TaskContext, models: Mapping[str, Params], count: int) -> dict[str, Params]:
    """Return the models and `count` sampled ones, whose architectures alternate.

    Of K models of an architecture, with mean m, deviations D = (w_1 − m, …, w_K − m) and variance σ² = Σ_k D_k²/K of
    each parameter, a draw is m + σ·z/√2 + D·u/√(2(K − 1)), with z and u standard normal: one half of the covariance is
    diagonal, the other of rank K − 1. If an architecture has only one model, the draw is a copy of it. Batch-norm
    statistics are those of the mean. A sampled model has the mean weight of the models of its architecture.
    """
    teams: dict[str, list[Params]] = {}
    for model in models.values():
        teams.setdefault(model.layout.arch, []).append(model)
    result, by_arch = dict(models), list(teams.values())
    for i in range(count):
        result[f"swag{i}"] = _draw(ctx, by_arch[i % len(by_arch)])
    return result


def _draw(ctx: TaskContext, team: list[Params]) -> Params:
    centre = mean(team, lambda _: 1.0)
    deviations = torch.stack([model.trainable - centre.trainable for model in team])
    per_parameter, per_model = (ctx.rng.standard_normal(size) for size in (centre.layout.size, len(team)))
    z, u = (torch.from_numpy(drawn).to(deviations) for drawn in (per_parameter, per_model))
    vector = centre.vector.clone()
    noise = deviations.square().mean(0).sqrt() * z / sqrt(2) + u @ deviations / sqrt(2 * max(1, len(team) - 1))
    vector[: centre.layout.size] += noise
    return replace(centre, vector=vector, weight=centre.weight / len(team))
