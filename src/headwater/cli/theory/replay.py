"""A finished run played again: its model after every round, and all constants of the bounds that it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.theory.convergence import Problem
    from headwater.theory.softmax import Array, Regression
    from headwater.training.experiment import Experiment
    from headwater.training.result import Run


def again(config: Config) -> tuple[Experiment, list[Array], Run]:
    """The run once more, in this process, with its model after every round and before the first."""
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    experiment = prepare(config.merged({"engine": {"name": "inline", "overlap": False}}))
    seen: list[Any] = []
    kind = type(experiment.method)

    class Watched(kind):  # type: ignore[valid-type, misc]
        def init(self, fed: Any, model: Any) -> Any:
            state = super().init(fed, model)
            seen.append(fed.read(state.model))
            return state

        def round(self, fed: Any, state: Any) -> Any:
            state = super().round(fed, state)
            seen.append(fed.read(state.model))
            return state

    method = object.__new__(Watched)
    method.__dict__.update(experiment.method.__dict__)
    run = train(replace(experiment, method=method))
    return experiment, [_weights(model) for model in seen], run


def _weights(model: Any) -> Array:
    """A linear layer as (features + 1) × classes, the bias last."""
    import numpy as np

    named = {name.split(".")[-1]: tensor.double().numpy() for name, tensor in model.named().items()}
    return np.concatenate([named["weight"].T, named["bias"][None]])


def _rows(x: Any, y: Any, classes: int, decay: float) -> Regression:
    import numpy as np

    from headwater.theory.softmax import Regression

    flat = x.reshape(len(x), -1).double().numpy()
    rows = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
    return Regression(rows, np.eye(classes)[y.numpy()], np.full(len(flat), 1 / len(flat)), decay)


def measure(
    experiment: Experiment, models: list[Array], delta: float, epsilon: float, reference_gap: float
) -> tuple[Problem, list[float], dict[str, Any]]:
    import numpy as np

    from headwater.theory.convergence import Problem
    from headwater.theory.softmax import optima, squared

    tree, split, local = experiment.tree, experiment.split, experiment.config.local
    decay, train = float(local["weight_decay"]), split.train
    holders = list(tree.holders)
    indices = [experiment.rows[c] for c in holders]
    clients = [_rows(train.x[mine], train.y[mine], split.classes, decay) for mine in indices]
    sizes = [len(client.share) for client in clients]
    weights_by = [1 if getattr(experiment.method, "by", "samples") == "uniform" else size for size in sizes]
    shares = [weight / sum(weights_by) for weight in weights_by]
    sectors = [tree.sectors.index(tree.sector_of[c]) for c in holders]
    best = optima(clients, shares, sectors)
    smooth = max(float(client.smoothness) for client in clients)
    known = reference_gap
    labels = split.reference_labels
    if len(split.reference) and labels is not None:
        reference = _rows(split.reference, labels, split.classes, decay)
        known = max(0.0, float(reference.loss(best.weights)) - reference.minimise(best.weights)[1])
        smooth = max(smooth, float(reference.smoothness))
    variance, second, gaps = 0.0, 0.0, []
    for weights in models:
        losses = []
        for client, size in zip(clients, sizes, strict=True):
            batch = min(int(local["batch"]), size)
            residuals = client.residuals(weights)
            spread = float(client.spread(weights, residuals)) / batch if batch < size else 0.0
            variance = max(variance, spread)
            second = max(second, float(squared(client.gradient(weights, residuals))) + spread)
            losses.append(float(client.loss(weights)))
        gaps.append(float(np.dot(shares, losses)) - best.loss)
    by_sector = [sum(s for s, at in zip(shares, sectors, strict=True) if at == m) for m in sorted(set(sectors))]
    p = Problem(
        smoothness=smooth,
        convexity=decay,
        variance=variance,
        gradient=second,
        client_shares=tuple(shares),
        sector_shares=tuple(by_sector),
        client_gap=best.client_gap,
        sector_gap=min(best.sector_gap, best.client_gap),
        reference_gap=known,
        delta=delta,
        epsilon=epsilon,
        distance=float(squared(models[0] - best.weights)),
    )
    return p, gaps, {"optimum": best.loss, "reference_gap_measured": labels is not None}
